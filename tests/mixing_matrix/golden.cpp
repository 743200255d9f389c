// SPDX-License-Identifier: MIT
// Initial matrices that the authors' released code and an independent program made, reproduced to
// 1e-12.
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <mhla/mixing_matrix.hpp>
#include <string>
#include <vector>

#include "examples/checkpoints/npy.hpp"
#include "examples/replay/case_file.hpp"
#include "examples/replay/mix_init_case.hpp"
#include "tests/support/catch.hpp"

namespace {

const std::filesystem::path golden = MHLA_GOLDEN_DIR;

std::vector<std::string> mix_init_cases() {
  std::ifstream index(golden / "index.txt");
  std::vector<std::string> names;
  for (std::string name; index >> name;)
    if (replay::read_kind(replay::CaseFile(golden / name)) == replay::Kind::mix_init)
      names.push_back(name);
  return names;
}

// One token per block.
mhla::Grid grid_of(const std::vector<mhla::Index>& layout) {
  mhla::Grid grid;
  for (std::size_t axis = 0; axis < layout.size(); ++axis)
    grid.extent[3 - layout.size() + axis] = layout[axis];
  return grid;
}

template <class T>
double worst_error(const replay::MixInitCase& c, const checkpoints::Array& expected) {
  REQUIRE(expected.shape.size() == 2);
  std::vector<T> mix(expected.values.size());
  mhla::initialize(mhla::make_view(mix.data(), expected.shape[0], expected.shape[1]),
                   grid_of(c.layout), grid_of(c.key_layout), c.options);
  double worst = 0;
  for (std::size_t n = 0; n < mix.size(); ++n) {
    const double error = std::abs(static_cast<double>(mix[n]) - expected.values[n]);
    if (!(error <= worst)) worst = error;  // NaN counts as worst
  }
  return worst;
}

}  // namespace

TEST_CASE("initial mixing: the golden cases", "[mixing_matrix][golden]") {
  const std::vector<std::string> names = mix_init_cases();
  REQUIRE(names.size() == 8);
  for (const std::string& name : names) {
    INFO(name);
    const replay::MixInitCase c = replay::read_mix_init_case(replay::CaseFile(golden / name));
    const checkpoints::Array expected = checkpoints::read_npy(golden / name / "mix.npy");
    CHECK(worst_error<double>(c, expected) <= 1e-12);
    CHECK(worst_error<long double>(c, expected) <= 1e-12);
    CHECK(worst_error<float>(c, expected) <= 0x1p-24);  // rounded once, and no entry above 1
  }
}
