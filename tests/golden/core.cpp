// SPDX-License-Identifier: MIT
// Every golden case of attention through the core API, in double and float. The numbers are those
// of an independent double-precision program that agrees with the authors' released functions.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mhla/testing/comparison.hpp>
#include <set>
#include <string>
#include <vector>

#include "examples/checkpoints/npy.hpp"
#include "examples/replay/attention_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;
using replay::AttentionCase;

const std::filesystem::path golden = MHLA_GOLDEN_DIR;

/// The folders that index.txt lists.
std::vector<std::string> listed_cases() {
  std::ifstream index(golden / "index.txt");
  std::vector<std::string> names;
  for (std::string name; index >> name;) names.push_back(name);
  return names;
}

Policies policies_of(const AttentionCase& c) {
  // In the order of replay's names; causalities have that of ours.
  constexpr Map maps[] = {Map::relu,         Map::elu_plus_one, Map::exp,
                          Map::squared_relu, Map::identity,     Map::softmax,
                          Map::hedgehog,     Map::dpfp,         Map::favor};
  constexpr variants::Normalizer normalizers[] = {variants::Normalizer::mixed_key_sum,
                                                  variants::Normalizer::mixed_product,
                                                  variants::Normalizer::unnormalized};
  Policies policies{};
  policies.map = maps[static_cast<int>(c.feature_map)];
  policies.normalizer = normalizers[static_cast<int>(c.normalizer)];
  policies.causality = static_cast<variants::Causality>(c.causality);
  policies.rank = static_cast<int>(c.query_side.grid.size());
  policies.rotation = c.rotation == replay::RotationName::none      ? Rotation::none
                      : c.rotation == replay::RotationName::neox_1d ? Rotation::half_split
                                                                    : Rotation::axial;
  return policies;
}

/// One side's grid; axes that it lacks are 1.
Grid grid_of(const replay::TokenGrid& side) {
  Grid grid;
  const std::size_t rank = side.grid.size();
  for (std::size_t axis = 0; axis < rank; ++axis) {
    grid.extent[3 - rank + axis] = side.grid[axis];
    grid.block[3 - rank + axis] = side.block[axis];
  }
  return grid;
}

template <int Rank>
HostTensor<double, Rank> read(const std::string& name, const std::string& array) {
  const checkpoints::Array file = checkpoints::read_npy(golden / name / (array + ".npy"));
  REQUIRE(file.shape.size() == Rank);
  TensorView<double, Rank> extents;
  std::copy(file.shape.begin(), file.shape.end(), extents.extent);
  auto tensor = HostTensor<double, Rank>::like(extents);
  tensor.elements() = file.values;
  return tensor;
}

Case case_of(const std::string& name, const AttentionCase& c) {
  Case result;
  Setting& setting = result.setting;
  setting.queries = grid_of(c.query_side);
  setting.cross = !c.key_side.grid.empty();
  setting.keys = setting.cross ? grid_of(c.key_side) : setting.queries;
  setting.feature_epsilon = c.feature_epsilon;
  setting.normalizer_epsilon = c.normalizer_epsilon;
  setting.scale = c.scale;
  setting.theta = c.theta;
  setting.nu = c.nu;
  if (c.feature_map == replay::FeatureMapName::favor) setting.projection = read<2>(name, "proj");
  result.q = read<4>(name, "q");
  result.k = read<4>(name, "k");
  result.v = read<4>(name, "v");
  result.mix = read<3>(name, "mix");
  result.dy = read<4>(name, "dout");
  return result;
}

template <class T, int Rank>
void require_result(const std::string& name, const std::string& array,
                    const HostTensor<T, Rank>& found, double scale) {
  const HostTensor<double, Rank> wanted = read<Rank>(name, array);
  const auto comparison = mhla::testing::compare(found.view(), wanted.view(), scale);
  INFO(array << ": " << comparison);
  REQUIRE(scale > 0);
  REQUIRE(comparison.max_ratio <= tolerance::golden<T>);
}

template <class T>
void check(const std::string& name, const AttentionCase& c, const Variant& variant) {
  INFO("in a type of " << std::numeric_limits<T>::digits << " bits");
  Case call = case_of(name, c);
  for (const Path path : variant.paths()) {
    INFO("by path " << static_cast<int>(path));
    call.setting.path = path;
    const Outcome<T> found = run<T>(variant, call);
    require_result(name, "out", found.y, c.error_scale.out);
    require_result(name, "dq", found.gradients.q, c.error_scale.dq);
    require_result(name, "dk", found.gradients.k, c.error_scale.dk);
    require_result(name, "dv", found.gradients.v, c.error_scale.dv);
    require_result(name, "dmix", found.gradients.mix, c.error_scale.dmix);
  }
}

}  // namespace

TEST_CASE("golden: every case agrees through the core", "[golden]") {
  std::size_t attention_cases = 0;
  for (const std::string& name : listed_cases()) {
    INFO(name);
    const replay::CaseFile file(golden / name);
    if (replay::read_kind(file) != replay::Kind::attention) continue;  // tests/mixing_matrix
    ++attention_cases;
    const AttentionCase c = replay::read_attention_case(file);
    const Policies policies = policies_of(c);
    const auto variant =
        std::find_if(product().begin(), product().end(),
                     [&](const Variant& candidate) { return candidate.policies() == policies; });
    INFO(policies);
    REQUIRE(variant != product().end());
    check<double>(name, c, *variant);
    check<float>(name, c, *variant);
  }
  CHECK(attention_cases == 28);
}

TEST_CASE("golden: index.txt lists every folder there is", "[golden]") {
  std::set<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(golden))
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  const std::vector<std::string> listed = listed_cases();
  CHECK(folders == std::set<std::string>(listed.begin(), listed.end()));
  CHECK(listed.size() == 36);
}
