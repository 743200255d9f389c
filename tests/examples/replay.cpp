// SPDX-License-Identifier: MIT
// mhla_replay as its user sees it: verdicts, exit status, messages and the arrays it leaves.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "examples/replay/attention_case.hpp"
#include "examples/replay/mix_init_case.hpp"
#include "tests/examples/case_folder.hpp"
#include "tests/examples/oracle_case.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace test;

/// Every golden case, in the order of index.txt.
std::vector<std::string> golden_names() {
  std::istringstream lines(text_of(golden_folder("index.txt")));
  std::vector<std::string> names;
  for (std::string name; lines >> name;) names.push_back(name);
  return names;
}

bool is_causal(const std::string& name) {
  return text_of(golden_folder(name) / "case.txt").find("\ncausal 1\n") != std::string::npos;
}

/// The line of the case called `name`, without the name: "verdict  text".
std::map<std::string, std::string> lines_of(const Run& run) {
  std::map<std::string, std::string> lines;
  std::istringstream output(run.output);
  for (std::string line; std::getline(output, line);) {
    std::istringstream words(line);
    std::string verdict;
    std::string name;
    std::string rest;
    words >> verdict >> name >> std::ws;
    std::getline(words, rest);
    REQUIRE(lines.emplace(name, verdict + "  " + rest).second);
  }
  return lines;
}

/// A run of one case, whose line says so.
void check_one(const std::string& arguments, const fs::path& folder, int status,
               const std::string& verdict, const std::string& text = "") {
  const Run run = replay_run(arguments + " '" + folder.string() + "'");
  INFO(run.output);
  CHECK(run.status == status);
  const std::string line = lines_of(run)[folder.filename().string()];
  CHECK(line.rfind(verdict + "  ", 0) == 0);
  CHECK(line.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("replay: every golden case agrees, on every device and scalar", "[replay][golden]") {
  const std::vector<std::string> names = golden_names();
  REQUIRE(names.size() == 36);
  std::string folders;
  for (const std::string& name : names) folders += " '" + golden_folder(name).string() + "/'";
  for (const char* scalar : {"", "--scalar f64 ", "--scalar f32 "})
    for (const char* device : {"", "--device serial", "--device pool", "--device pool --threads 1",
                               "--device pool --threads 3"}) {
      if (*scalar == 0 && *device != 0) continue;  // the defaults
      const Run run = replay_run(std::string(scalar) + device + folders);
      INFO(scalar << device << "\n" << run.output);
      CHECK(run.status == 0);
      auto lines = lines_of(run);
      CHECK(lines.size() == names.size());
      for (const std::string& name : names) {
        const std::string& line = lines[name];
        INFO(name);
        if (name.rfind("mixinit", 0) == 0) {
          CHECK(line.rfind("ok  mix ", 0) == 0);
        } else {
          CHECK(line.rfind("ok  out ", 0) == 0);
          for (const char* array : {"  dq ", "  dk ", "  dv ", "  dmix "})
            CHECK(line.find(array) != std::string::npos);
        }
      }
    }
}

TEST_CASE("replay: --decode agrees with every causal golden case, and names the others",
          "[replay][golden]") {
  std::string folders;
  for (const std::string& name : golden_names())
    folders += " '" + golden_folder(name).string() + "'";
  for (const char* options :
       {"", "--scalar f32", "--device pool --threads 3", "--scalar f32 --device pool"}) {
    const Run run = replay_run(std::string("--decode ") + options + folders);
    INFO(options << "\n" << run.output);
    CHECK(run.status == 2);
    auto lines = lines_of(run);
    CHECK(lines.size() == 36);
    int decoded = 0;
    for (const std::string& name : golden_names()) {
      INFO(name);
      if (is_causal(name)) {
        CHECK(lines[name].rfind("ok  out ", 0) == 0);
        CHECK(lines[name].find("  the largest of 8 prefill lengths, at ") != std::string::npos);
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
  for (const std::string scalar : {"f64", "f32"})
    for (const std::string& name : golden_names()) {
      if (!is_causal(name)) continue;
      INFO(scalar << " " << name);
      const fs::path folder = copy_golden(temporary, name, scalar + name);
      const checkpoints::Array want = checkpoints::read_npy(folder / "out.npy");
      for (const char* array : {"dout", "dq", "dk", "dv", "dmix"})  // which it does not need
        fs::remove(folder / (std::string(array) + ".npy"));
      const std::string options =
          "--decode --scalar " + scalar + " --write '" + (temporary / "results").string() + "'";
      check_one(options, folder, 0, "ok");
      const fs::path written = temporary / "results" / folder.filename().string();
      const checkpoints::Array got = checkpoints::read_npy(written / "out.npy");
      CHECK(got.shape == want.shape);
      REQUIRE(got.values.size() == want.values.size());
      double worst = 0;
      for (std::size_t i = 0; i < want.values.size(); ++i)
        worst = std::max(worst, std::abs(got.values[i] - want.values[i]));
      const double scale = number_of(folder, "tol_scale.out");
      CHECK(worst > 0);
      CHECK(worst <= (scalar == "f64" ? 1e-12 : 1e-5) * scale);
      const auto files = std::distance(fs::directory_iterator(written), fs::directory_iterator{});
      CHECK(files == 1);

      // The last token: each of the prefill lengths passes it, in a step or not.
      const std::size_t last = want.values.size() - 1;
      add_to_element(folder / "out.npy", last, (scalar == "f64" ? 1.2e-12 : 1.2e-5) * scale);
      check_one("--decode --scalar " + scalar, folder, 1, "FAILS");
      if (scalar == "f32") continue;
      add_to_element(folder / "out.npy", last, std::numeric_limits<double>::quiet_NaN());
      check_one("--decode --tolerance 1e300", folder, 1, "FAILS", "out inf  the largest of 8");
    }
}

TEST_CASE("replay: the tolerance is where it is said to be, for every result", "[replay]") {
  const TemporaryFolder temporary;
  for (const std::string array : {"out", "dq", "dk", "dv", "dmix"}) {
    const fs::path folder = copy_golden(temporary, "p17_paper_perheadmix", array);
    const double scale = number_of(folder, "tol_scale." + array);
    add_to_element(folder / (array + ".npy"), 7, 0.9e-12 * scale);
    check_one("", folder, 0, "ok");
    add_to_element(folder / (array + ".npy"), 7, 0.3e-12 * scale);
    check_one("", folder, 1, "FAILS", array + " 1.2e-12");
    check_one("--tolerance 1.3e-12", folder, 0, "ok");
    check_one("--scalar f32", folder, 0, "ok");
    add_to_element(folder / (array + ".npy"), 7, 1.2e-5 * scale);
    check_one("--scalar f32", folder, 1, "FAILS", array + " 1.");
    add_to_element(folder / (array + ".npy"), 7, std::numeric_limits<double>::quiet_NaN());
    check_one("--tolerance 1e300", folder, 1, "FAILS", array + " inf");
  }
  const fs::path initial = copy_golden(temporary, "mixinit_code_cos_4x4", "initial");
  add_to_element(initial / "mix.npy", 7, 1.2e-12);
  check_one("", initial, 1, "FAILS", "mix 1.2e-12");
}

TEST_CASE("replay: every operand and number of a case is used", "[replay]") {
  const TemporaryFolder temporary;
  for (const std::string array : {"q", "k", "v", "mix", "dout", "proj"}) {
    const fs::path folder = copy_golden(temporary, "p24_favor_paper", array);
    add_to_element(folder / (array + ".npy"), 0, 1e-3);
    check_one("", folder, 1, "FAILS");
    if (array == "proj") continue;
    const fs::path causal = copy_golden(temporary, "p16_causal_paper_elu_rope", "causal_" + array);
    add_to_element(causal / (array + ".npy"), 0, 1e-3);
    check_one("", causal, 1, "FAILS");
    check_one("--decode", causal, array == "dout" ? 0 : 1, array == "dout" ? "ok" : "FAILS");
  }
  const struct {
    const char* golden;
    const char* key;
    const char* value;
  } changes[] = {{"p02_1d_paper_relu", "feature_map.eps", "1e-3"},
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
                 {"mixinit_code_local_4x4", "local_threshold", "1.4"}};
  for (const auto& [golden, key, value] : changes) {
    INFO(golden << " with " << key << " " << value);
    const fs::path folder = copy_golden(temporary, golden, "changed");
    check_one("", folder, 0, "ok");
    set_key(folder, key, value);
    check_one("", folder, 1, "FAILS");
    fs::remove_all(folder);
  }
}

TEST_CASE("replay: cross-attention, ragged grids, axial rotations", "[replay]") {
  using mhla::Attention;
  using mhla::AxialRotary;
  using mhla::Bidirectional;
  const TemporaryFolder temporary;
  // batch, heads, kv_heads, query and key tokens, key_dim, value_dim, mix
  write_oracle_case(
      temporary / "cross_1d",
      Attention<mhla::EluPlusOne, mhla::Blocks1D, Bidirectional, mhla::MixedKeySum,
                mhla::HalfSplitRotary>{.blocks = {.block = 7},
                                       .key_blocks = {.block = 8},
                                       .normalizer = {1e-3},
                                       .rotation = {1000}},
      {2, 6, 3, 20, 22, 8, 9, 6, 3, 3},
      "grid 20\nblock 7\nlayout 3\nblocks 3\nkey_tokens 22\nkey_grid 22\nkey_block 8\n"
      "key_layout 3\nkey_blocks 3\ncausal 0\nfeature_map elu1\nnormalizer paper\n"
      "normalizer_epsilon 1e-3\nscale 1\nrotation neox_1d\nrotation.theta 1000\n");
  write_oracle_case(
      temporary / "cross_2d",
      Attention<mhla::Exp, mhla::Blocks2D, Bidirectional, mhla::Unnormalized, AxialRotary>{
          .blocks = {.grid = {5, 7}, .block = {2, 3}},
          .key_blocks = {.grid = {6, 4}, .block = {4, 3}},
          .scale = 0.5},
      {1, 2, 2, 35, 24, 6, 5, 1, 9, 4},
      "grid 5 7\nblock 2 3\nlayout 3 3\nblocks 9\nkey_tokens 24\nkey_grid 6 4\nkey_block 4 3\n"
      "key_layout 2 2\ncausal 0\nfeature_map exp\nnormalizer none\nnormalizer_epsilon 0.0\n"
      "scale 0.5\nrotation axial_2d\nrotation.theta 10000.0\n");
  write_oracle_case(
      temporary / "cross_3d",
      Attention<mhla::Hedgehog, mhla::Blocks3D, Bidirectional, mhla::MixedKeySum, AxialRotary>{
          .blocks = {.grid = {3, 4, 5}, .block = {2, 3, 2}},
          .key_blocks = {.grid = {2, 3, 4}, .block = {1, 2, 4}}},
      {1, 3, 1, 60, 24, 5, 4, 3, 12, 4},
      "grid 3 4 5\nblock 2 3 2\nlayout 2 2 3\nblocks 12\nkey_tokens 24\nkey_grid 2 3 4\n"
      "key_block 1 2 4\nkey_layout 2 2 1\nkey_blocks 4\ncausal 0\nfeature_map hedgehog\n"
      "normalizer paper\nnormalizer_epsilon 1e-6\nscale 1\nrotation wan_3d\n"
      "rotation.theta 10000\nnote three axes, grouped heads\n");
  write_oracle_case(
      temporary / "identity_axial_1d",
      Attention<mhla::Identity, mhla::Blocks1D, Bidirectional, mhla::Unnormalized, AxialRotary>{
          .blocks = {.block = 8}},
      {2, 3, 3, 29, 29, 6, 7, 1, 4, 4},
      "grid 29\nblock 8\nlayout 4\nblocks 4\ncausal 0\nfeature_map identity\nnormalizer none\n"
      "normalizer_epsilon 0\nscale 1\nrotation axial_1d\nrotation.theta 10000\n");
  write_oracle_case(
      temporary / "official_axial_2d",
      Attention<mhla::SquaredRelu, mhla::Blocks2D, Bidirectional, mhla::MixedProduct, AxialRotary>{
          .feature_map = {0.25}, .blocks = {.grid = {6, 4}, .block = {3, 2}}},
      {1, 4, 2, 24, 24, 8, 3, 4, 4, 4},
      "grid 6 4\nblock 3 2\nlayout 2 2\nblocks 4\ncausal 0\nfeature_map sqrelu\n"
      "feature_map.eps 0.25\nnormalizer official\nnormalizer_epsilon 1e-6\nscale 1\n"
      "rotation axial_2d\nrotation.theta 10000\n");

  for (const char* name :
       {"cross_1d", "cross_2d", "cross_3d", "identity_axial_1d", "official_axial_2d"}) {
    check_one("", temporary / name, 0, "ok");
    check_one("--scalar f32 --device pool --threads 2", temporary / name, 0, "ok");
  }
  // The keys' own side is read: another cut of the same tokens is another attention.
  set_key(temporary / "cross_2d", "key_grid", "4 6");
  set_key(temporary / "cross_2d", "key_block", "3 4");
  check_one("", temporary / "cross_2d", 1, "FAILS");
  set_key(temporary / "cross_1d", "key_block", "9");
  check_one("", temporary / "cross_1d", 1, "FAILS");
}

TEST_CASE("replay: causal and block-causal cases with all that a case can have", "[replay]") {
  using mhla::Attention;
  using mhla::AxialRotary;
  using mhla::Blocks1D;
  const TemporaryFolder temporary;
  // Weights of mix above the diagonal are there, and ignored; mix is larger than the layout.
  // batch, heads, kv_heads, query and key tokens, key_dim, value_dim, mix
  write_oracle_case(
      temporary / "grouped_per_head",
      Attention<mhla::Exp, Blocks1D, mhla::Causal, mhla::MixedKeySum, AxialRotary>{
          .blocks = {.block = 9}, .normalizer = {1e-3}, .rotation = {1000}, .scale = 0.5},
      {2, 6, 3, 40, 40, 8, 5, 6, 7, 7},
      "grid 40\nblock 9\nlayout 5\nblocks 5\ncausal 1\nfeature_map exp\nnormalizer paper\n"
      "normalizer_epsilon 1e-3\nscale 0.5\nrotation axial_1d\nrotation.theta 1000\n");
  write_oracle_case(
      temporary / "long_blocks",
      Attention<mhla::Dpfp, Blocks1D, mhla::Causal, mhla::Unnormalized>{.feature_map = {2},
                                                                        .blocks = {.block = 70}},
      {1, 2, 2, 160, 160, 4, 3, 1, 3, 3},
      "grid 160\nblock 70\nlayout 3\nblocks 3\ncausal 1\nfeature_map dpfp\nfeature_map.nu 2\n"
      "normalizer none\nnormalizer_epsilon 0\nscale 1\nrotation none\n");
  write_oracle_case(
      temporary / "one_token_a_block",
      Attention<mhla::Softmax, Blocks1D, mhla::Causal, mhla::MixedKeySum>{.blocks = {.block = 1}},
      {1, 1, 1, 6, 6, 4, 4, 1, 6, 6},
      "grid 6\nblock 1\nlayout 6\nblocks 6\ncausal 1\nfeature_map softmax\nnormalizer paper\n"
      "normalizer_epsilon 1e-6\nscale 1\nrotation none\n");
  write_oracle_case(
      temporary / "block_longer_than_sequence",
      Attention<mhla::SquaredRelu, Blocks1D, mhla::Causal, mhla::Unnormalized>{
          .blocks = {.block = 40}},
      {1, 1, 1, 3, 3, 4, 4, 1, 1, 1},
      "grid 3\nblock 40\nlayout 1\nblocks 1\ncausal 1\nfeature_map sqrelu\n"
      "feature_map.eps 1e-6\nnormalizer none\nnormalizer_epsilon 0\nscale 1\nrotation none\n");
  write_oracle_case(
      temporary / "block_causal",
      Attention<mhla::Hedgehog, Blocks1D, mhla::BlockCausal, mhla::MixedKeySum,
                mhla::HalfSplitRotary>{.blocks = {.block = 6}},
      {2, 4, 2, 32, 32, 6, 5, 4, 8, 8},
      "grid 32\nblock 6\nlayout 6\nblocks 6\ncausal 2\nfeature_map hedgehog\nnormalizer paper\n"
      "normalizer_epsilon 1e-6\nscale 1\nrotation neox_1d\nrotation.theta 10000\n");
  const struct {
    const char* name;
    const char* prefill_lengths;
  } cases[] = {{"grouped_per_head", "the largest of 8 prefill lengths"},
               {"long_blocks", "the largest of 8 prefill lengths"},
               {"one_token_a_block", "the largest of 6 prefill lengths"},
               {"block_longer_than_sequence", "the largest of 4 prefill lengths"},
               {"block_causal", "causal 2: only causal 1 can be decoded"}};
  for (const auto& [name, prefill_lengths] : cases) {
    const bool decodes = std::string(name) != "block_causal";
    for (const char* options : {"", "--scalar f32 --device pool --threads 2"}) {
      check_one(options, temporary / name, 0, "ok");
      check_one(std::string("--decode ") + options, temporary / name, decodes ? 0 : 2,
                decodes ? "ok" : "unsupported", prefill_lengths);
    }
  }
}

TEST_CASE("replay: initial matrices between two layouts", "[replay]") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "rectangular";
  fs::create_directories(folder);
  // Block centres at 1/2 and 3/2, and at 1/3, 1 and 5/3 query blocks: distances 1/6, 1/2, 7/6.
  const double max = 7.0 / 6;
  const double sum = 3 - (1.0 / 6 + 1.0 / 2 + 7.0 / 6) / max;
  const double near = (1 - 1.0 / 6 / max) / sum;
  const double middle = (1 - 1.0 / 2 / max) / sum;
  checkpoints::write_npy(folder / "mix.npy", {{2, 3}, {near, middle, 0, 0, middle, near}});
  write_text(folder / "case.txt",
             "name rectangular\nkind mix_init\nlayout 2\nkey_layout 3\ntransform linear\n"
             "max_mode global\nnorm_axis row\nexp_sigma 3.0\nlocal_threshold 1.5\n");
  check_one("", folder, 0, "ok", "mix ");
  check_one("--scalar f32", folder, 0, "ok", "mix ");
  set_key(folder, "key_layout", "");
  check_one("", folder, 3, "unreadable", "mix.npy: has shape (2, 3), but case.txt says (2, 2)");
}

TEST_CASE("replay: what is not supported is named, never skipped or guessed", "[replay]") {
  const TemporaryFolder temporary;
  const struct {
    const char* golden;
    const char* key;
    const char* value;
    const char* text;
  } changes[] = {
      {"p01_1d_none_relu", "causal", "3", "causal 3 is not known"},
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
      {"mixinit_code_exp_4x4", "transform", "rbf", "transform rbf is not known"},
      {"mixinit_code_exp_4x4", "max_mode", "col", "max_mode col is not known"},
      {"mixinit_code_exp_4x4", "seed", "1", "the key seed is not known"}};
  for (const auto& [golden, key, value, text] : changes) {
    INFO(golden << " with " << key << " " << value);
    const fs::path folder = copy_golden(temporary, golden, "changed");
    set_key(folder, key, value);
    check_one("", folder, 2, "unsupported", text);
    fs::remove_all(folder);
  }
  const struct {
    const char* golden;
    const char* key;
    const char* value;
    const char* text;
  } decoding[] = {
      {"p12_causal_none_relu_init", "causal", "0", "causal 0: only causal 1 can be decoded"},
      {"p12_causal_none_relu_init", "causal", "2", "causal 2: only causal 1 can be decoded"},
      {"p12_causal_none_relu_init", "causal", "3", "causal 3 is not known"},
      {"p12_causal_none_relu_init", "normalizer", "official",
       "causal attention with normalizer official"},
      {"p04_2d_paper_codeinit", "causal", "1", "causal attention over a grid of several axes"}};
  for (const auto& [golden, key, value, text] : decoding) {
    INFO(golden << " decoded with " << key << " " << value);
    const fs::path folder = copy_golden(temporary, golden, "changed");
    set_key(folder, key, value);
    check_one("--decode", folder, 2, "unsupported", text);
    fs::remove_all(folder);
  }
  // The library refuses a mix with too few rows and other blocks on the key side.
  const fs::path short_mix = copy_golden(temporary, "p12_causal_none_relu_init", "short_mix");
  checkpoints::write_npy(short_mix / "mix.npy", {{1, 2, 2}, {1, 0, 1, 1}});
  checkpoints::write_npy(short_mix / "dmix.npy", {{1, 2, 2}, {0, 0, 0, 0}});
  check_one("", short_mix, 2, "unsupported", "mhla: mix: axis query blocks is 2");
  check_one("--decode", short_mix, 2, "unsupported", "mix has rows for 32");
  checkpoints::write_npy(short_mix / "mix.npy", {{1, 4, 5}, std::vector<double>(20, 1.0)});
  check_one("--decode", short_mix, 2, "unsupported", "mhla: mix: axis key blocks is 5");
  const fs::path key_blocks = copy_golden(temporary, "p12_causal_none_relu_init", "key_blocks");
  set_key(key_blocks, "key_tokens", "64\nkey_grid 64\nkey_block 8");
  check_one("", key_blocks, 2, "unsupported", "mix");
  check_one("--decode", key_blocks, 2, "unsupported", "mhla: ");
  // The library refuses the ragged grid, with its own sentence.
  write_oracle_case(temporary / "ragged",
                    mhla::Attention<mhla::Exp, mhla::Blocks1D>{.blocks = {.block = 8}},
                    {1, 1, 1, 20, 20, 4, 4, 1, 3, 3},
                    "grid 20\nblock 8\nlayout 3\nblocks 3\ncausal 0\nfeature_map exp\n"
                    "normalizer official\nnormalizer_epsilon 0\nscale 1\nrotation none\n");
  check_one("", temporary / "ragged", 2, "unsupported", "MixedProduct needs blocks of one size");
}

TEST_CASE("replay: what cannot be read is named with its file", "[replay]") {
  const TemporaryFolder temporary;
  const std::string golden = "p24_favor_paper";
  for (const std::string array :
       {"q", "k", "v", "mix", "dout", "out", "dq", "dk", "dv", "dmix", "proj"}) {
    INFO(array);
    const fs::path folder = copy_golden(temporary, golden, array);
    const fs::path file = folder / (array + ".npy");
    const checkpoints::Array whole = checkpoints::read_npy(file);
    fs::resize_file(file, fs::file_size(file) - 1);
    check_one("", folder, 3, "unreadable", file.string() + ": holds ");
    checkpoints::write_npy(file, {{static_cast<replay::Index>(whole.values.size())}, whole.values});
    check_one("", folder, 3, "unreadable", file.string() + ": has shape (");
    fs::remove(file);
    check_one("", folder, 3, "unreadable", file.string() + ": cannot be read");
  }
  const fs::path smaller = copy_golden(temporary, golden, "smaller");
  set_key(smaller, "heads", "4");
  set_key(smaller, "kv_heads", "4");
  check_one("", smaller, 3, "unreadable", (smaller / "q.npy").string() + ": has shape (1, 2, ");

  const auto check_keys = [&](const std::string& case_name, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      const fs::path folder = copy_golden(temporary, case_name, key);
      const std::string file = (folder / "case.txt").string() + ": ";
      INFO(case_name << " without " << key);
      const std::string before = text_of(folder / "case.txt");
      set_key(folder, key, "");
      check_one("", folder, 3, "unreadable", file + "has no key " + key);
      write_text(folder / "case.txt", before);
      set_key(folder, key, "1x");
      if (key != "kind" && key != "causal" && key != "feature_map" && key != "normalizer" &&
          key != "rotation" && key != "transform" && key != "max_mode" && key != "norm_axis")
        check_one("", folder, 3, "unreadable", file + "has '1x' for " + key);
      set_key(folder, key, "\n" + key);
      check_one("", folder, 3, "unreadable", file);
      fs::remove_all(folder);
    }
  };
  check_keys("p10_3d_official_wanrope", {"kind",           "batch",
                                         "heads",          "kv_heads",
                                         "tokens",         "key_dim",
                                         "value_dim",      "grid",
                                         "block",          "mix_heads",
                                         "causal",         "feature_map",
                                         "normalizer",     "normalizer_epsilon",
                                         "scale",          "rotation",
                                         "rotation.theta", "tol_scale.out",
                                         "tol_scale.dq",   "tol_scale.dk",
                                         "tol_scale.dv",   "tol_scale.dmix"});
  check_keys("mixinit_code_local_4x4",
             {"kind", "layout", "transform", "max_mode", "norm_axis", "local_threshold"});

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
                        {"key_layout", "2 2 2"}, {"grid", "99999999999 99999999999 99999999999"}};
  for (const auto& [key, value] : contradictions) {
    INFO(key << " " << value);
    const fs::path folder = copy_golden(temporary, "p10_3d_official_wanrope", "contradiction");
    set_key(folder, key, value);
    check_one("", folder, 3, "unreadable", (folder / "case.txt").string() + ": has ");
    fs::remove_all(folder);
  }
  check_one("", temporary / "nowhere", 3, "unreadable",
            (temporary / "nowhere" / "case.txt").string() + ": cannot be opened");
}

TEST_CASE("replay: the exit status is the first of 3, 1, 2, 0 that a case gives", "[replay]") {
  const TemporaryFolder temporary;
  const std::string ok = " '" + golden_folder("p01_1d_none_relu").string() + "'";
  const fs::path unknown = copy_golden(temporary, "p14_causal_paper_elu", "unknown");
  set_key(unknown, "feature_map", "taylor");
  const std::string unsupported = " '" + unknown.string() + "'";
  const fs::path failing = copy_golden(temporary, "p02_1d_paper_relu", "failing");
  add_to_element(failing / "dv.npy", 0, 1);
  const std::string fails = " '" + failing.string() + "'";
  const std::string unreadable = " '" + (temporary / "nowhere").string() + "'";
  CHECK(replay_run(ok).status == 0);
  CHECK(replay_run(ok + unsupported).status == 2);
  CHECK(replay_run(unsupported + ok).status == 2);
  CHECK(replay_run(ok + fails).status == 1);
  CHECK(replay_run(unsupported + fails + ok).status == 1);
  CHECK(replay_run(fails + unsupported).status == 1);
  CHECK(replay_run(unreadable + ok).status == 3);
  CHECK(replay_run(unsupported + unreadable).status == 3);
  const Run all = replay_run(fails + unreadable + unsupported + ok);
  CHECK(all.status == 3);
  CHECK(lines_of(all).size() == 4);  // no case stops the ones after it

  // Decoded, the bidirectional cases are not supported.
  const fs::path causal = copy_golden(temporary, "p14_causal_paper_elu", "causal");
  const std::string decodes = " '" + causal.string() + "'";
  CHECK(replay_run("--decode" + decodes).status == 0);
  CHECK(replay_run("--decode" + decodes + ok).status == 2);
  CHECK(replay_run("--decode" + ok + unreadable + decodes).status == 3);
  add_to_element(causal / "out.npy", 0, 1);
  CHECK(replay_run("--decode" + ok + decodes).status == 1);
  CHECK(replay_run("--decode" + unreadable + decodes + ok).status == 3);
}

TEST_CASE("replay: --write leaves the results, also of a case that fails", "[replay]") {
  const TemporaryFolder temporary;
  const fs::path failing = copy_golden(temporary, "p17_paper_perheadmix", "failing");
  const std::vector<std::string> results{"out", "dq", "dk", "dv", "dmix"};
  std::map<std::string, checkpoints::Array> expected;
  for (const std::string& array : results) {
    expected[array] = checkpoints::read_npy(failing / (array + ".npy"));
    add_to_element(failing / (array + ".npy"), 0, 10);
  }
  const fs::path initial = copy_golden(temporary, "mixinit_code_cos_4x4", "initial");
  expected["mix"] = checkpoints::read_npy(initial / "mix.npy");
  add_to_element(initial / "mix.npy", 0, 1);
  const fs::path unknown = copy_golden(temporary, "p14_causal_paper_elu", "unknown");
  set_key(unknown, "feature_map", "taylor");
  for (const std::string scalar : {"f64", "f32"}) {
    const fs::path to = temporary / "results" / scalar;
    const Run run =
        replay_run("--scalar " + scalar + " --write '" + to.string() + "' '" + failing.string() +
                   "' '" + initial.string() + "' '" + unknown.string() + "'");
    INFO(run.output);
    CHECK(run.status == 1);
    for (const auto& [array, want] : expected) {
      INFO(scalar << " " << array);
      const checkpoints::Array got =
          checkpoints::read_npy(to / (array == "mix" ? "initial" : "failing") / (array + ".npy"));
      CHECK(got.shape == want.shape);
      REQUIRE(got.values.size() == want.values.size());
      double worst = 0;
      for (std::size_t i = 0; i < want.values.size(); ++i)
        worst = std::max(worst, std::abs(got.values[i] - want.values[i]));
      CHECK(worst <= (scalar == "f64" ? 1e-13 : 1e-5));
      CHECK((worst > 0 || array == "mix"));
    }
    CHECK_FALSE(fs::exists(to / "unknown"));
  }
}

TEST_CASE("replay: a command line that cannot be followed is explained", "[replay]") {
  const std::string ok = " '" + golden_folder("p01_1d_none_relu").string() + "'";
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
  for (const auto& [arguments, text] : wrong) {
    const Run run = replay_run(arguments);
    INFO(arguments << "\n" << run.output);
    CHECK(run.status == 64);
    CHECK(run.output.find(text) != std::string::npos);
  }
  const Run help = replay_run("--help");
  CHECK(help.status == 0);
  CHECK(help.output.rfind("usage: mhla_replay", 0) == 0);
  for (const char* option :
       {"--decode", "--scalar", "--device", "--threads", "--tolerance", "--write"})
    CHECK(help.output.find(std::string("\n  ") + option + " ") != std::string::npos);
  CHECK(help.output.find("only out is compared, and written") != std::string::npos);
}

TEST_CASE("replay: --help lists every key of case.txt and every word it can have", "[replay]") {
  const Run run = replay_run("--help");
  std::map<std::string, std::set<std::string>> words;  // of keys
  std::istringstream lines(run.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream values(line);
    std::string key;
    std::string list;
    values >> key >> list;
    std::istringstream alternatives(list.substr(0, list.find(':')));
    for (std::string word; std::getline(alternatives, word, '|');) words[key].insert(word);
  }
  for (const auto& keys : {replay::attention_keys(), replay::mix_init_keys()})
    for (const replay::Key& key : keys) {
      INFO(key.name);
      CHECK(words.count(key.name) == 1);
    }
  const auto check_words = [&](const std::string& key, const auto& known) {
    for (const auto& word : known) {
      INFO(key << " " << word.text);
      CHECK(words[key].count(word.text) == 1);
    }
  };
  check_words("kind", replay::kinds);
  check_words("feature_map", replay::feature_maps);
  check_words("causal", replay::causalities);
  check_words("normalizer", replay::normalizers);
  check_words("rotation", replay::rotations);
  check_words("transform", replay::transforms);
  check_words("max_mode", replay::max_modes);
  check_words("norm_axis", replay::norm_axes);

  // What the golden cases have is not refused, so it is among the keys.
  for (const std::string& name : golden_names()) {
    std::istringstream golden(text_of(golden_folder(name) / "case.txt"));
    for (std::string line; std::getline(golden, line);) {
      std::istringstream values(line);
      std::string key;
      values >> key;
      INFO(name << " " << key);
      CHECK((key.empty() || words.count(key) == 1));
    }
  }
}

TEST_CASE("replay: a rectifier's epsilon is the library's where a case has none", "[replay]") {
  const TemporaryFolder temporary;
  for (const std::string map : {"relu", "sqrelu"}) {
    const std::string keys = "grid 12\nblock 4\ncausal 0\nfeature_map " + map +
                             "\nnormalizer paper\nnormalizer_epsilon 0\nscale 1\nrotation none\n";
    // Large enough to see: queries below zero, whose features are the epsilon alone.
    const mhla::Shape shape{1, 2, 1, 12, 12, 4, 3, 1, 3, 3};
    const auto write = [&](const auto& attention) {
      write_oracle_case(temporary / map, attention, shape, keys);
    };
    if (map == "relu") {
      write(mhla::Attention<mhla::Relu, mhla::Blocks1D>{.blocks = {.block = 4},
                                                        .normalizer = {.epsilon = 0}});
    } else {
      write(mhla::Attention<mhla::SquaredRelu, mhla::Blocks1D>{.blocks = {.block = 4},
                                                               .normalizer = {.epsilon = 0}});
    }
    check_one("", temporary / map, 0, "ok");
    set_key(temporary / map, "feature_map.eps", "0");
    check_one("", temporary / map, 1, "FAILS");
  }
}

TEST_CASE("replay: extents beyond reason are refused at once", "[replay]") {
  const TemporaryFolder temporary;
  const std::string golden = "p12_causal_none_relu_init";
  const auto reshape = [&](const fs::path& folder, const std::vector<replay::Index>& query,
                           const std::vector<replay::Index>& key) {
    for (const char* array : {"q", "dout", "out", "dq"})
      checkpoints::write_npy(folder / (std::string(array) + ".npy"), {query, {}});
    for (const char* array : {"k", "v", "dk", "dv"})
      checkpoints::write_npy(folder / (std::string(array) + ".npy"), {key, {}});
  };
  // A batch without heads, and tokens and heads of no dimension.
  constexpr replay::Index huge = replay::Index{1} << 62;
  const struct {
    std::vector<replay::Index> query, key;  // batch, heads, tokens, dim
  } cases[] = {{{huge, 0, 32, 4}, {huge, 0, 32, 4}},
               {{1, 1, 1'000'000'000'000'000, 0}, {1, 1, 1'000'000'000'000'000, 0}},
               {{1, huge, 32, 0}, {1, huge, 32, 0}}};
  int number = 0;
  for (const auto& [query, key] : cases) {
    const fs::path folder = copy_golden(temporary, golden, std::to_string(++number));
    const auto set = [&](const std::string& name, replay::Index value) {
      set_key(folder, name, std::to_string(value));
    };
    reshape(folder, query, key);
    set("batch", query[0]);
    set("heads", query[1]);
    set("kv_heads", key[1]);
    set("tokens", query[2]);
    set("grid", query[2]);
    set_key(folder, "layout", "");
    set_key(folder, "blocks", "");
    set("key_dim", query[3]);
    set("value_dim", query[3]);
    check_one("", folder, 3, "unreadable", "beyond reason");
    check_one("--decode", folder, 3, "unreadable", "beyond reason");
  }
  // More tokens than one would wait for, of no dimension: there is no output, and nothing to wait
  // for.
  const fs::path folder = copy_golden(temporary, golden, "many");
  const replay::Index tokens = 100'000'000;
  reshape(folder, {1, 1, tokens, 0}, {1, 1, tokens, 0});
  for (const char* key : {"heads", "kv_heads", "batch"}) set_key(folder, key, "1");
  for (const char* key : {"tokens", "grid"}) set_key(folder, key, std::to_string(tokens));
  set_key(folder, "block", "100000");
  for (const char* key : {"key_dim", "value_dim"}) set_key(folder, key, "0");
  for (const char* key : {"layout", "blocks"}) set_key(folder, key, "");
  set_key(folder, "mix_heads", "1");
  for (const char* array : {"mix", "dmix"})
    checkpoints::write_npy(folder / (std::string(array) + ".npy"),
                           {{1, 1000, 1000}, std::vector<double>(1'000'000)});
  check_one("", folder, 0, "ok");
  check_one("--decode", folder, 0, "ok");
}
