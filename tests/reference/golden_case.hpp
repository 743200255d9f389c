// SPDX-License-Identifier: MIT
// One folder of tests/golden through the oracle: numbers of an independent double-precision program
// that agrees with the authors' released functions.
#pragma once

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "examples/checkpoints/npy.hpp"
#include "examples/replay/attention_case.hpp"
#include "examples/replay/variant.hpp"
#include "tests/reference/oracle_call.hpp"

#ifndef MHLA_GOLDEN_DIR
#error "MHLA_GOLDEN_DIR must be the path of tests/golden"
#endif

namespace golden {

inline std::filesystem::path folder(const std::string& name) {
  return std::filesystem::path(MHLA_GOLDEN_DIR) / name;
}

template <int Rank>
HostTensor<double, Rank> read(const std::string& name, const std::string& array) {
  const checkpoints::Array file = checkpoints::read_npy(folder(name) / (array + ".npy"));
  mhla::TensorView<double, Rank> view;
  REQUIRE(file.shape.size() == Rank);
  std::copy(file.shape.begin(), file.shape.end(), view.extent);
  auto tensor = HostTensor<double, Rank>::like(view);
  tensor.elements() = file.values;
  return tensor;
}

/// The variant of type V with the case's numbers. `projection` must outlive it.
template <class V>
V variant(const replay::AttentionCase& c, const HostTensor<double, 2>& projection) {
  V attention;
  attention.blocks = replay::blocks_of<typename V::GeometryType>(c.query_side);
  attention.key_blocks = replay::blocks_of<typename V::GeometryType>(c.key_side);
  attention.scale = c.scale;
  if constexpr (requires { attention.feature_map.epsilon; })
    attention.feature_map.epsilon = c.feature_epsilon;
  if constexpr (requires { attention.feature_map.nu; }) attention.feature_map.nu = c.nu;
  if constexpr (requires { attention.feature_map.projection; })
    attention.feature_map.projection = projection.view();
  if constexpr (requires { attention.normalizer.epsilon; })
    attention.normalizer.epsilon = c.normalizer_epsilon;
  if constexpr (requires { attention.rotation.theta; }) attention.rotation.theta = c.theta;
  return attention;
}

/// Whether V is the type of the variant that the case names.
template <class V>
bool is_variant_of(const replay::AttentionCase& c) {
  bool found = false;
  replay::with_causality(c, [&](auto causality) {
    replay::with_normalizer(c, [&](auto normalizer) {
      found = std::is_same_v<decltype(causality), typename V::CausalityType> &&
              std::is_same_v<decltype(normalizer), typename V::NormalizerType>;
    });
  });
  replay::ChosenMap<double>{c.feature_map, 0, 1, {}}.with_map([&](auto map) {
    found = found && std::is_same_v<decltype(map), typename V::FeatureMapType>;
  });
  using R = typename V::RotationType;
  const bool same_rotation =
      c.rotation == replay::RotationName::none      ? std::is_same_v<R, mhla::NoRotation>
      : c.rotation == replay::RotationName::neox_1d ? std::is_same_v<R, mhla::HalfSplitRotary>
                                                    : std::is_same_v<R, mhla::AxialRotary>;
  return found && same_rotation && c.query_side.grid.size() == V::GeometryType::rank;
}

/// Demands that the oracle's output and gradients are the files', within the golden tolerance.
template <class V>
void check(const std::string& name) {
  INFO("golden case " << name);
  const replay::AttentionCase c = replay::read_attention_case(replay::CaseFile(folder(name)));
  REQUIRE(is_variant_of<V>(c));
  HostTensor<double, 2> projection;
  if (c.feature_map == replay::FeatureMapName::favor) projection = read<2>(name, "proj");
  const V attention = variant<V>(c, projection);

  Operands<double> operands({}, 0, mhla::testing::Normal{});
  operands.q = read<4>(name, "q");
  operands.k = read<4>(name, "k");
  operands.v = read<4>(name, "v");
  operands.mix = read<3>(name, "mix");
  operands.dy = read<4>(name, "dout");
  const Results<double> results = run(attention, operands);
  const auto require = [&](const char* array, const auto& actual, const auto& expected,
                           double scale) {
    const auto comparison = mhla::testing::compare(actual.view(), expected.view(), scale);
    INFO(array << " " << comparison);
    CHECK(comparison.max_ratio <= tolerance::golden<double>);
  };
  require("out", results.y, read<4>(name, "out"), c.error_scale.out);
  require("dq", results.dq, read<4>(name, "dq"), c.error_scale.dq);
  require("dk", results.dk, read<4>(name, "dk"), c.error_scale.dk);
  require("dv", results.dv, read<4>(name, "dv"), c.error_scale.dv);
  require("dmix", results.dmix, read<3>(name, "dmix"), c.error_scale.dmix);

  // The block map of the file, for the tokens of the query side.
  const auto grid = attention.blocks.grid_of(c.tokens);
  const checkpoints::Array blocks = checkpoints::read_npy(folder(name) / "block_index.npy");
  REQUIRE(static_cast<Index>(blocks.values.size()) == c.tokens);
  for (Index t = 0; t < c.tokens; ++t)
    REQUIRE(static_cast<Index>(blocks.values[static_cast<std::size_t>(t)]) == grid.block_of(t));
}

/// The folders of tests/golden that hold an attention case, causal or not.
inline std::set<std::string> attention_cases(bool causal) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(MHLA_GOLDEN_DIR)) {
    if (!entry.is_directory()) continue;
    const replay::CaseFile file(entry.path());
    if (replay::read_kind(file) == replay::Kind::attention &&
        (replay::read_attention_case(file).causality != replay::CausalityName::bidirectional) ==
            causal)
      names.insert(entry.path().filename().string());
  }
  return names;
}

/// A golden case and the function that checks it.
struct Entry {
  const char* name;
  void (*check)(const std::string&);
};

/// Checks every entry, and that they are all the cases there are.
template <std::size_t Count>
void check_all(const Entry (&entries)[Count], bool causal) {
  std::set<std::string> names;
  for (const Entry& entry : entries) {
    entry.check(entry.name);
    names.insert(entry.name);
  }
  CHECK(names == attention_cases(causal));
}

}  // namespace golden
