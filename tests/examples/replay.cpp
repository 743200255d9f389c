// SPDX-License-Identifier: MIT
// mhla_replay as its user sees it: verdicts, exit status, messages and the arrays it leaves.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "examples/replay/attention_case.hpp"
#include "examples/replay/mix_init_case.hpp"
#include "tests/examples/case_folder.hpp"

namespace {

using namespace test;
using checkpoints::read_npy;

const Program program{MHLA_REPLAY};
const char* const results[] = {"out", "dq", "dk", "dv", "dmix"};

/// Every golden case, in the order of index.txt.
std::vector<std::string> golden_names() {
  std::istringstream lines(text_of(golden_folder("index.txt")));
  return {std::istream_iterator<std::string>(lines), {}};
}

std::string golden_folders() {
  std::string folders;
  for (const std::string& name : golden_names()) folders += quoted(golden_folder(name) / "");
  return folders;
}

/// The line of the case called `name`, without the name: "verdict  text".
std::map<std::string, std::string> lines_of(const std::string& output) {
  std::map<std::string, std::string> lines;
  std::istringstream all(output);
  for (std::string line; std::getline(all, line);) {
    std::istringstream words(line);
    std::string verdict, name, rest;
    words >> verdict >> name >> std::ws;
    std::getline(words, rest);
    REQUIRE(lines.emplace(name, verdict + "  " + rest).second);
  }
  return lines;
}

/// A run of one case, whose line and exit status say so.
void check(const Case& one, const std::string& arguments, const std::string& verdict,
           const std::string& text = "") {
  const std::map<std::string, int> status{
      {"ok", 0}, {"FAILS", 1}, {"unsupported", 2}, {"unreadable", 3}};
  const std::string output =
      program.check(arguments + quoted(one.folder), status.at(verdict), {text});
  INFO(output);
  CHECK(lines_of(output)[one.folder.filename().string()].rfind(verdict + "  ", 0) == 0);
}

/// A golden case with another value of a key, and what is said of it.
struct Change {
  const char* golden;
  const char* key;
  const char* value;
  const char* text = "";
};
void check_changed(const std::vector<Change>& changes, const std::string& arguments,
                   const std::string& verdict) {
  for (const auto& [golden, key, value, text] : changes) {
    INFO(golden << " with " << key << " " << value);
    const Case changed(golden);
    changed.set(key, value);
    check(changed, arguments, verdict, text);
  }
}

}  // namespace

TEST_CASE("replay: every golden case agrees, on every device and scalar", "[replay][golden]") {
  for (const char* options : {"", "--scalar f64 --device pool", "--scalar f32 --device serial",
                              "--scalar f32 --device pool --threads 3"}) {
    auto lines = lines_of(program.check(options + golden_folders(), 0));
    CHECK(lines.size() == 36);
    for (const std::string& name : golden_names()) {
      INFO(lines[name]);
      const bool initial = name.rfind("mixinit", 0) == 0;
      CHECK(lines[name].rfind(initial ? "ok  mix " : "ok  out ", 0) == 0);
      CHECK((initial || says(lines[name], "  dq ", "  dk ", "  dv ", "  dmix ")));
    }
  }
}

TEST_CASE("replay: --decode agrees with every causal golden case, and names the others",
          "[replay][golden]") {
  for (const char* options : {"", "--scalar f32 --device pool --threads 3"}) {
    auto lines = lines_of(program.check(std::string("--decode ") + options + golden_folders(), 2));
    CHECK(lines.size() == 36);
    int decoded = 0;
    for (const std::string& name : golden_names()) {
      INFO(lines[name]);
      if (says(text_of(golden_folder(name) / "case.txt"), "\ncausal 1\n")) {
        CHECK(lines[name].rfind("ok  out ", 0) == 0);
        CHECK(says(lines[name], "  the largest of 8 prefill lengths, at "));
        ++decoded;
      } else if (name.rfind("mixinit", 0) == 0) {
        CHECK(lines[name].rfind("ok  mix ", 0) == 0);
      } else {
        CHECK(lines[name] == "unsupported  causal 0: only causal 1 can be decoded");
      }
    }
    CHECK(decoded == 7);
  }
}

TEST_CASE("replay: the tolerance is where it is said to be, for every result", "[replay]") {
  for (const std::string array : results) {
    const Case one("p17_paper_perheadmix");
    const double scale = one.number("tol_scale." + array);
    const struct {
      double added;
      const char* arguments;
      const char* verdict;
      std::string text;
    } steps[] = {{0.9e-12 * scale, "", "ok", ""},
                 {0.3e-12 * scale, "", "FAILS", array + " 1.2e-12"},
                 {0, "--tolerance 1.3e-12", "ok", ""},
                 {0, "--scalar f32", "ok", ""},
                 {1.2e-5 * scale, "--scalar f32", "FAILS", array + " 1."},
                 {NAN, "--tolerance 1e300", "FAILS", array + " inf"}};
    for (const auto& [added, arguments, verdict, text] : steps) {
      one.add(array, 7, added);
      check(one, arguments, verdict, text);
    }
  }
  const Case initial("mixinit_code_cos_4x4");
  initial.add("mix", 7, 1.2e-12);
  check(initial, "", "FAILS", "mix 1.2e-12");
}

TEST_CASE("replay: every operand and number of a case is used", "[replay]") {
  for (const std::string array : {"q", "k", "v", "mix", "dout", "proj"}) {
    const Case favor("p24_favor_paper");
    favor.add(array, 0, 1e-3);
    check(favor, "", "FAILS");
    if (array == "proj") continue;
    const Case causal("p16_causal_paper_elu_rope");
    causal.add(array, 0, 1e-3);
    check(causal, "", "FAILS");
    check(causal, "--decode", array == "dout" ? "ok" : "FAILS");
  }
  check_changed({{"p02_1d_paper_relu", "feature_map.eps", "1e-3"},
                 {"p02_1d_paper_relu", "normalizer_epsilon", "1e-3"},
                 {"p02_1d_paper_relu", "scale", "0.5"},
                 {"p02_1d_paper_relu", "feature_map", "sqrelu"},
                 {"p02_1d_paper_relu", "causal", "1"},
                 {"p02_1d_paper_relu", "causal", "2"},
                 {"p12_causal_none_relu_init", "causal", "0"},
                 {"p12_causal_none_relu_init", "causal", "2"},
                 {"p02_1d_paper_relu", "normalizer", "official"},
                 {"p02_1d_paper_relu", "normalizer", "none"},
                 {"p02_1d_paper_relu", "rotation", "neox_1d\nrotation.theta 10000"},
                 {"p22_sqrelu_none", "feature_map.eps", "1e-3"},
                 {"p11_3d_none_wanrope", "rotation.theta", "9000"},
                 {"p23_dpfp_none", "feature_map.nu", "3"},
                 {"p20_softmax_paper", "feature_map", "identity"},
                 {"mixinit_code_linear_4x4", "transform", "cos"},
                 {"mixinit_code_linear_4x4", "max_mode", "row"},
                 {"mixinit_code_linear_4x4", "norm_axis", "row"},
                 {"mixinit_code_linear_4x4", "layout", "2 8"},
                 {"mixinit_code_exp_4x4", "exp_sigma", "2"},
                 {"mixinit_code_local_4x4", "local_threshold", "1.4"}},
                "", "FAILS");
}

TEST_CASE("replay: what is not supported is named, never skipped or guessed", "[replay]") {
  check_changed(
      {{"p01_1d_none_relu", "causal", "3", "causal 3 is not known"},
       {"p01_1d_none_relu", "kind", "decode", "kind decode is not known"},
       {"p01_1d_none_relu", "feature_map", "taylor", "feature_map taylor is not known"},
       {"p01_1d_none_relu", "normalizer", "l2", "normalizer l2 is not known"},
       {"p01_1d_none_relu", "rotation", "yarn", "rotation yarn is not known"},
       {"p01_1d_none_relu", "rotation", "axial_2d\nrotation.theta 1", "rotation axial_2d"},
       {"p01_1d_none_relu", "key_mask", "1", "the key key_mask is not known"},
       {"p19_exp_paper", "feature_map.eps", "1e-6", "feature_map.eps with feature_map exp"},
       {"p04_2d_paper_codeinit", "rotation", "neox_1d\nrotation.theta 1", "rotation neox_1d"},
       {"p04_2d_paper_codeinit", "causal", "1", "causal"},
       {"p12_causal_none_relu_init", "normalizer", "official", "causal"},
       // The library refuses the ragged grid, with its own sentence.
       {"p03_1d_official_relu", "block", "17", "MixedProduct needs blocks of one size"},
       {"mixinit_code_exp_4x4", "transform", "rbf", "transform rbf is not known"},
       {"mixinit_code_exp_4x4", "max_mode", "col", "max_mode col is not known"},
       {"mixinit_code_exp_4x4", "seed", "1", "the key seed is not known"}},
      "", "unsupported");
  check_changed(
      {{"p12_causal_none_relu_init", "causal", "0", "causal 0: only causal 1 can be decoded"},
       {"p12_causal_none_relu_init", "causal", "3", "causal 3 is not known"},
       {"p12_causal_none_relu_init", "normalizer", "official",
        "causal attention with normalizer official"},
       {"p04_2d_paper_codeinit", "causal", "1", "causal attention over a grid of several axes"}},
      "--decode", "unsupported");
  // The library refuses a mix with other blocks on the key side.
  const Case mix("p12_causal_none_relu_init");
  mix.write("mix", {{1, 4, 5}, std::vector<double>(20, 1.0)});
  check(mix, "--decode", "unsupported", "mhla: mix: axis key blocks is 5");
}

TEST_CASE("replay: what cannot be read is named with its file", "[replay]") {
  for (const char* array :
       {"q", "k", "v", "mix", "dout", "out", "dq", "dk", "dv", "dmix", "proj"}) {
    const Case one("p24_favor_paper");
    const std::string file = one.array(array).string();
    const checkpoints::Array whole = read_npy(file);
    fs::resize_file(file, fs::file_size(file) - 1);
    check(one, "", "unreadable", file + ": holds ");
    one.write(array, {{static_cast<replay::Index>(whole.values.size())}, whole.values});
    check(one, "", "unreadable", file + ": has shape (");
    fs::remove(file);
    check(one, "", "unreadable", file + ": cannot be read");
  }
  const Case smaller("p24_favor_paper");
  smaller.set("heads", "4\nkv_heads 4");
  check(smaller, "", "unreadable", smaller.array("q").string() + ": has shape (1, 2, ");

  const std::set<std::string> optional{
      "name", "note", "layout 2 2 2", "blocks", "feature_map.eps", "exp_sigma"};
  int keys = 0;
  for (const char* golden : {"p10_3d_official_wanrope", "mixinit_code_local_4x4"}) {
    std::istringstream lines(text_of(golden_folder(golden) / "case.txt"));
    for (std::string line; std::getline(lines, line);) {
      const std::string key = line.substr(0, line.find(' ')), value = line.substr(key.size() + 1);
      if (optional.count(key) + optional.count(line) > 0) continue;
      const Case one(golden);
      const std::string before = text_of(one.text()), file = one.text().string() + ": has ";
      one.set(key, "");
      check(one, "", "unreadable", file + "no key " + key);
      one.set(key, "1x");
      const bool word = std::isalpha(value[0]) != 0 || key == "causal";
      if (!word) check(one, "", "unreadable", file + "'1x' for " + key);
      write_text(one.text(), before + key + "\n");
      check(one, "", "unreadable", file + "the key " + key + " twice");
      ++keys;
    }
  }
  CHECK(keys == 28);

  const struct {
    const char* key;
    const char* value;
  } contradictions[] = {{"layout", "2 2 3"},     {"blocks", "9"},
                        {"grid", "4 4 7"},       {"grid", "4 24"},
                        {"block", "2 2"},        {"block", "2 0 3"},
                        {"grid", "4 4 3 2"},     {"tokens", "-96"},
                        {"tokens", "96 96"},     {"heads", "3"},
                        {"mix_heads", "3"},      {"scale", "nan"},
                        {"tol_scale.out", "-1"}, {"key_tokens", "96"},
                        {"key_layout", "2 2 2"}, {"grid", "99999999999 99999999999 99999999999"},
                        {"scale", "\n"}};
  for (const auto& [key, value] : contradictions) {
    INFO(key << " " << value);
    const Case one("p10_3d_official_wanrope");
    one.set(key, value);
    check(one, "", "unreadable", one.text().string() + ": has ");
  }
  program.check("/nowhere", 3, {"unreadable", "/nowhere/case.txt: cannot be opened"});
}

TEST_CASE("replay: a command line that cannot be followed is explained", "[replay]") {
  const std::string ok = quoted(golden_folder("p01_1d_none_relu"));
  const struct {
    std::string arguments;
    const char* text;
  } wrong[] = {{"", "no CASE_DIR"},
               {"--scalar f16" + ok, "--scalar is f32 or f64, not f16"},
               {"--device cuda" + ok, "--device is serial or pool, not cuda"},
               {"--threads 0" + ok, "--threads cannot be 0"},
               {"--threads 2x" + ok, "--threads cannot be 2x"},
               {"--tolerance -1" + ok, "--tolerance cannot be -1"},
               {"--tolerance nan" + ok, "--tolerance cannot be nan"},
               {"--colour" + ok, "unknown option --colour"},
               {ok + " --write", "--write needs a value"},
               {"--write /tmp" + ok + ok, "two cases are called p01_1d_none_relu"},
               {"--write /dev/null/results" + ok, "/dev/null/results"}};
  for (const auto& [arguments, text] : wrong) program.check(arguments, 64, {text});
}

TEST_CASE("replay: --help lists every option, every key of case.txt and its words", "[replay]") {
  const std::string help = program.check(
      "--help", 0,
      {"usage: mhla_replay", "\n  --decode ", "\n  --scalar ", "\n  --device ", "\n  --threads ",
       "\n  --tolerance ", "\n  --write ", "only out is compared, and written"});
  for (const auto& keys : {replay::attention_keys(), replay::mix_init_keys()})
    for (const replay::Key& key : keys) CHECK(says(help, "\n  " + key.name + " "));
  for (const auto& kind : replay::kinds)
    CHECK(says(help, std::string("\ncase.txt of kind ") + kind.text + ":\n"));
  for (const std::string& words :
       {replay::listed(replay::feature_maps), replay::listed(replay::causalities),
        replay::listed(replay::normalizers), replay::listed(replay::rotations),
        replay::listed(replay::transforms), replay::listed(replay::max_modes),
        replay::listed(replay::norm_axes)})
    CHECK(says(help, " " + words));
}
