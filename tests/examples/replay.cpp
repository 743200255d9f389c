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

double largest_difference(const fs::path& file, const checkpoints::Array& expected) {
  const checkpoints::Array array = read_npy(file);
  CHECK(array.shape == expected.shape);
  REQUIRE(array.values.size() == expected.values.size());
  double largest = 0;
  for (std::size_t i = 0; i < array.values.size(); ++i)
    largest = std::max(largest, std::abs(array.values[i] - expected.values[i]));
  return largest;
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

TEST_CASE("replay: --decode compares and writes out alone", "[replay]") {
  const TemporaryFolder temporary;
  for (const std::string scalar : {"f64", "f32"}) {
    const Case one("p16_causal_paper_elu_rope", scalar);
    for (const char* array : {"dout", "dq", "dk", "dv", "dmix"})  // which it does not need
      fs::remove(one.array(array));
    const std::string options = "--decode --scalar " + scalar;
    check(one, options + " --write" + quoted(temporary / "results"), "ok");
    const fs::path written = temporary / "results" / scalar;
    const checkpoints::Array out = read_npy(one.array("out"));
    const double error = largest_difference(written / "out.npy", out);
    const double tolerance = (scalar == "f64" ? 1e-12 : 1e-5) * one.number("tol_scale.out");
    CHECK(error > 0);
    CHECK(error <= tolerance);
    CHECK(std::distance(fs::directory_iterator(written), fs::directory_iterator{}) == 1);

    // The last token: each of the prefill lengths passes it, in a step or not.
    one.add("out", out.values.size() - 1, 1.2 * tolerance);
    check(one, options, "FAILS");
    one.add("out", out.values.size() - 1, NAN);
    check(one, options + " --tolerance 1e300", "FAILS", "out inf  the largest of 8");
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

TEST_CASE("replay: cross-attention, ragged grids, axial rotations", "[replay]") {
  using namespace mhla;
  // batch, heads, kv_heads, query and key tokens, key_dim, value_dim, mix
  const Case sequence, grid, official;
  write_oracle_case(sequence,
                    Attention<EluPlusOne, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>{
                        .blocks = {7}, .key_blocks = {8}, .normalizer = {1e-3}, .rotation = {1000}},
                    {2, 6, 3, 20, 22, 8, 9, 6, 3, 3},
                    "causal 0\nfeature_map elu1\nrotation neox_1d\nrotation.theta 1000\n"
                    "normalizer paper\nnormalizer_epsilon 1e-3\n");
  write_oracle_case(grid,
                    Attention<Identity, Blocks2D, Bidirectional, Unnormalized, AxialRotary>{
                        .blocks = {.grid = {5, 7}, .block = {2, 3}},
                        .key_blocks = {.grid = {6, 4}, .block = {4, 3}},
                        .scale = 0.5},
                    {1, 2, 2, 35, 24, 6, 5, 1, 9, 4},
                    "causal 0\nfeature_map identity\nrotation axial_2d\nrotation.theta 10000.0\n"
                    "normalizer none\nnormalizer_epsilon 0.0\nnote a grid\n");
  write_oracle_case(official,
                    Attention<SquaredRelu, Blocks2D, Bidirectional, MixedProduct, AxialRotary>{
                        .feature_map = {0.25}, .blocks = {.grid = {6, 4}, .block = {3, 2}}},
                    {1, 4, 2, 24, 24, 8, 3, 4, 4, 4},
                    "causal 0\nfeature_map sqrelu\nfeature_map.eps 0.25\nrotation axial_2d\n"
                    "rotation.theta 10000\nnormalizer official\nnormalizer_epsilon 1e-6\n");
  for (const Case* one : {&sequence, &grid, &official})
    for (const char* options : {"", "--scalar f32 --device pool --threads 2"})
      check(*one, options, "ok");
  // The keys' own side is read: another cut of the same tokens is another attention.
  grid.set("key_grid", "4 6");
  grid.set("key_block", "3 4");
  sequence.set("key_block", "9");
  for (const Case* one : {&sequence, &grid}) check(*one, "", "FAILS");
}

TEST_CASE("replay: causal and block-causal cases with all that a case can have", "[replay]") {
  using namespace mhla;
  using Sequence = Attention<Exp, Blocks1D, Causal, MixedKeySum, AxialRotary>;
  const std::string words =
      "feature_map exp\nrotation axial_1d\nrotation.theta 1000\ncausal 1\nnormalizer paper\n"
      "normalizer_epsilon 0.5\nblocks ";
  // Weights of mix above the diagonal are there, and ignored; mix is larger than the layout.
  const struct {
    Index block;
    Shape shape;  // batch, heads, kv_heads, query and key tokens, key_dim, value_dim, mix
    const char* blocks;
    const char* text;
  } cases[] = {{9, {2, 6, 3, 40, 40, 8, 5, 6, 7, 7}, "5\n", "the largest of 8 prefill lengths"},
               {1, {1, 1, 1, 6, 6, 4, 4, 1, 6, 6}, "6\n", "the largest of 6 prefill lengths"},
               {40, {1, 1, 1, 3, 3, 4, 4, 1, 1, 1}, "1\n", "the largest of 4 prefill lengths"}};
  const Case block_causal;
  write_oracle_case(
      block_causal,
      Attention<Hedgehog, Blocks1D, BlockCausal, MixedKeySum, HalfSplitRotary>{.blocks = {6}},
      {2, 4, 2, 32, 32, 6, 5, 4, 8, 8},
      "causal 2\nfeature_map hedgehog\nrotation neox_1d\nrotation.theta 10000\n"
      "normalizer paper\nnormalizer_epsilon 1e-6\n");
  const std::vector<std::string> options{"", "--scalar f32 --device pool --threads 2"};
  for (const auto& [block, shape, blocks, text] : cases) {
    const Case one;
    const Sequence attention{
        .blocks = {block}, .normalizer = {0.5}, .rotation = {1000}, .scale = 0.5};
    write_oracle_case(one, attention, shape, words + blocks);
    for (const std::string& option : options) {
      check(one, option, "ok");
      check(one, "--decode " + option, "ok", text);
    }
  }
  for (const std::string& option : options) check(block_causal, option, "ok");
  check(block_causal, "--decode", "unsupported", "causal 2: only causal 1 can be decoded");
}

TEST_CASE("replay: initial matrices between two layouts", "[replay]") {
  const Case rectangular;
  // Block centres at 1/2 and 3/2, and at 1/3, 1 and 5/3 query blocks: distances 1/6, 1/2, 7/6.
  const double max = 7.0 / 6;
  const double sum = 3 - (1.0 / 6 + 1.0 / 2 + 7.0 / 6) / max;
  const double near = (1 - 1.0 / 6 / max) / sum;
  const double middle = (1 - 1.0 / 2 / max) / sum;
  rectangular.write("mix", {{2, 3}, {near, middle, 0, 0, middle, near}});
  write_text(rectangular.text(),
             "name rectangular\nkind mix_init\nlayout 2\nkey_layout 3\ntransform linear\n"
             "max_mode global\nnorm_axis row\nexp_sigma 3.0\nlocal_threshold 1.5\n");
  check(rectangular, "", "ok", "mix ");
  check(rectangular, "--scalar f32", "ok", "mix ");
  rectangular.set("key_layout", "");
  check(rectangular, "", "unreadable", "mix.npy: has shape (2, 3), but case.txt says (2, 2)");
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

TEST_CASE("replay: the exit status is the first of 3, 1, 2, 0 that a case gives", "[replay]") {
  const Case taylor("p14_causal_paper_elu", "taylor"), wrong("p02_1d_paper_relu", "wrong"),
      off("p14_causal_paper_elu", "off");
  taylor.set("feature_map", "taylor");
  wrong.add("dv", 0, 1);
  off.add("out", 0, 1);
  const struct {
    fs::path folder;
    int status, decoded;  // what is not causal cannot be decoded
  } cases[] = {{golden_folder("p01_1d_none_relu"), 0, 2},
               {golden_folder("p14_causal_paper_elu"), 0, 0},
               {taylor.folder, 2, 2},
               {wrong.folder, 1, 2},
               {off.folder, 1, 1},
               {"/nowhere", 3, 3}};
  const auto first = [](int a, int b) {
    for (const int status : {3, 1, 2})
      if (a == status || b == status) return status;
    return 0;
  };
  for (const auto& a : cases)
    for (const auto& b : cases) {
      if (&a == &b) continue;
      const std::string folders = quoted(a.folder) + quoted(b.folder);
      const std::string output = program.check(folders, first(a.status, b.status));
      CHECK(lines_of(output).size() == 2);  // no case stops the ones after it
      program.check("--decode" + folders, first(a.decoded, b.decoded));
    }
}

TEST_CASE("replay: --write leaves the results, also of a case that fails", "[replay]") {
  const TemporaryFolder temporary;
  const Case failing("p17_paper_perheadmix", "failing"), initial("mixinit_code_cos_4x4", "initial");
  const Case unknown("p14_causal_paper_elu", "unknown");
  unknown.set("feature_map", "taylor");
  std::map<std::string, checkpoints::Array> expected;
  for (const std::string array : results) {
    expected["failing/" + array + ".npy"] = read_npy(failing.array(array));
    failing.add(array, 0, 10);
  }
  expected["initial/mix.npy"] = read_npy(initial.array("mix"));
  initial.add("mix", 0, 1);
  for (const std::string scalar : {"f64", "f32"}) {
    program.check("--scalar " + scalar + " --write" + quoted(temporary / scalar) +
                      quoted(failing.folder) + quoted(initial.folder) + quoted(unknown.folder),
                  1);
    for (const auto& [array, want] : expected) {
      INFO(scalar << " " << array);
      const double error = largest_difference(temporary / scalar / array, want);
      CHECK(error <= (scalar == "f64" ? 1e-13 : 1e-5));
      CHECK((error > 0 || array == "initial/mix.npy"));
    }
    CHECK_FALSE(fs::exists(temporary / scalar / "unknown"));
  }
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

TEST_CASE("replay: a rectifier's epsilon is the library's where a case has none", "[replay]") {
  const TemporaryFolder temporary;
  for (const char* golden : {"p02_1d_paper_relu", "p22_sqrelu_none"}) {
    const auto out = [&](const std::string& epsilon) {
      const Case one(golden);
      one.set("feature_map.eps", epsilon);
      program("--write" + quoted(temporary / epsilon) + quoted(one.folder));
      return text_of(temporary / epsilon / "case/out.npy");
    };
    CHECK(out("").size() > 1000);
    CHECK(out("") == out("1e-6"));
    CHECK(out("") != out("0"));
  }
}

TEST_CASE("replay: extents beyond reason are refused at once", "[replay]") {
  using Extents = std::vector<replay::Index>;  // batch, heads, tokens, dim
  const auto reshaped = [](const Case& one, const Extents& e) {
    for (const char* array : {"q", "dout", "out", "dq", "k", "v", "dk", "dv"})
      one.write(array, {e, {}});
    const char* const keys[] = {"batch", "heads",   "kv_heads", "tokens",
                                "grid",  "key_dim", "value_dim"};
    const std::size_t axes[] = {0, 1, 1, 2, 2, 3, 3};
    for (int i = 0; i < 7; ++i) one.set(keys[i], std::to_string(e[axes[i]]));
    for (const char* key : {"layout", "blocks"}) one.set(key, "");
  };
  // A batch without heads, and tokens and heads of no dimension.
  constexpr replay::Index huge = replay::Index{1} << 62;
  for (const Extents& extents : {Extents{huge, 0, 32, 4}, Extents{1, 1, 1'000'000'000'000'000, 0},
                                 Extents{1, huge, 32, 0}}) {
    const Case one("p12_causal_none_relu_init");
    reshaped(one, extents);
    check(one, "", "unreadable", "beyond reason");
    check(one, "--decode", "unreadable", "beyond reason");
  }
  // More tokens than one would wait for, of no dimension: there is no output to wait for.
  const Case many("p12_causal_none_relu_init");
  reshaped(many, {1, 1, 100'000'000, 0});
  many.set("block", "100000");
  for (const char* array : {"mix", "dmix"})
    many.write(array, {{1, 1000, 1000}, std::vector<double>(1'000'000)});
  many.set("mix_heads", "1");
  check(many, "", "ok");
  check(many, "--decode", "ok");
}
