// SPDX-License-Identifier: MIT
// A case of kind attention: the extents, the variant and the error scales its case.txt names.
#pragma once

#include <cstddef>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/feature_map.hpp>
#include <string>
#include <vector>

#include "case_file.hpp"

namespace replay {

// The words of case.txt.
enum class FeatureMapName { relu, elu1, exp, sqrelu, identity, softmax, hedgehog, dpfp, favor };
enum class CausalityName { bidirectional, causal, block_causal };
enum class NormalizerName { paper, official, none };
enum class RotationName { none, neox_1d, wan_3d, axial_1d, axial_2d };

inline constexpr Word<FeatureMapName> feature_maps[] = {
    {"relu", FeatureMapName::relu},         {"elu1", FeatureMapName::elu1},
    {"exp", FeatureMapName::exp},           {"sqrelu", FeatureMapName::sqrelu},
    {"identity", FeatureMapName::identity}, {"softmax", FeatureMapName::softmax},
    {"hedgehog", FeatureMapName::hedgehog}, {"dpfp", FeatureMapName::dpfp},
    {"favor", FeatureMapName::favor}};
inline constexpr Word<CausalityName> causalities[] = {{"0", CausalityName::bidirectional},
                                                      {"1", CausalityName::causal},
                                                      {"2", CausalityName::block_causal}};
inline constexpr Word<NormalizerName> normalizers[] = {{"paper", NormalizerName::paper},
                                                       {"official", NormalizerName::official},
                                                       {"none", NormalizerName::none}};
inline constexpr Word<RotationName> rotations[] = {{"none", RotationName::none},
                                                   {"neox_1d", RotationName::neox_1d},
                                                   {"wan_3d", RotationName::wan_3d},
                                                   {"axial_1d", RotationName::axial_1d},
                                                   {"axial_2d", RotationName::axial_2d}};

/// Calls f with the library's map; `epsilon` of Relu and SquaredRelu, `nu` of Dpfp, `projection`
/// [features, key_dim] of Favor.
template <class T, class F>
auto with_feature_map(FeatureMapName name, double epsilon, Index nu,
                      const mhla::TensorView<const T, 2>& projection, const F& f) {
  switch (name) {
    case FeatureMapName::relu:
      return f(mhla::Relu{epsilon});
    case FeatureMapName::elu1:
      return f(mhla::EluPlusOne{});
    case FeatureMapName::exp:
      return f(mhla::Exp{});
    case FeatureMapName::sqrelu:
      return f(mhla::SquaredRelu{epsilon});
    case FeatureMapName::softmax:
      return f(mhla::Softmax{});
    case FeatureMapName::hedgehog:
      return f(mhla::Hedgehog{});
    case FeatureMapName::dpfp:
      return f(mhla::Dpfp{nu});
    case FeatureMapName::favor:
      return f(mhla::Favor<T>{projection});
    case FeatureMapName::identity:
      break;
  }
  return f(mhla::Identity{});
}

/// Every key of such a case.
inline std::vector<Key> attention_keys() {
  return {{"kind", "attention"},
          {"name", "not read"},
          {"note", "not read"},
          {"batch", "N"},
          {"heads", "N, of q: a multiple of kv_heads"},
          {"kv_heads", "N, of k and v"},
          {"tokens", "N, of q, and of k without key_tokens"},
          {"key_dim", "N"},
          {"value_dim", "N"},
          {"grid", "N [N [N]]: tokens on each axis"},
          {"block", "N [N [N]]: tokens of a block on each axis"},
          {"layout", "N [N [N]]: blocks on each axis (grid / block, rounded up)"},
          {"blocks", "N: all of them (their product)"},
          {"key_tokens", "N, and key_grid, key_block: of cross-attention alone (as the queries')"},
          {"key_grid", "as grid"},
          {"key_block", "as block"},
          {"key_layout", "as layout"},
          {"key_blocks", "as blocks"},
          {"mix_heads", "1|heads"},
          {"causal", listed(causalities) + ": not, token by token, block by block"},
          {"feature_map", listed(feature_maps)},
          {"feature_map.eps", "X, of relu and sqrelu (the library's, 1e-6)"},
          {"feature_map.nu", "N, of dpfp alone"},
          {"normalizer", listed(normalizers) + ": of mixed key sums, of mixed products"},
          {"normalizer_epsilon", "X"},
          {"scale", "X, of the queries' features"},
          {"rotation", listed(rotations)},
          {"rotation.theta", "X, unless rotation is none"},
          {"tol_scale.out", "X, and of the other results: see --tolerance"},
          {"tol_scale.dq", "X"},
          {"tol_scale.dk", "X"},
          {"tol_scale.dv", "X"},
          {"tol_scale.dmix", "X"}};
}

/// The tokens of one side, in raster order of `grid`, and their blocks: as many axes in both.
struct TokenGrid {
  std::vector<Index> grid;
  std::vector<Index> block;
};

/// The largest allowed absolute error of a result is tolerance * scale.
struct ErrorScales {
  double out = 0;
  double dq = 0;
  double dk = 0;
  double dv = 0;
  double dmix = 0;
};

/// kind attention.
struct AttentionCase {
  Index batch = 0;
  Index heads = 0;
  Index kv_heads = 0;
  Index tokens = 0;
  Index key_tokens = 0;
  Index key_dim = 0;
  Index value_dim = 0;
  Index mix_heads = 0;
  TokenGrid query_side;
  TokenGrid key_side;  ///< of cross-attention; no axes: as the query side
  FeatureMapName feature_map = FeatureMapName::relu;
  double feature_epsilon = 0;
  Index nu = 0;
  CausalityName causality = CausalityName::bidirectional;
  NormalizerName normalizer = NormalizerName::none;
  double normalizer_epsilon = 0;
  RotationName rotation = RotationName::none;
  double theta = 0;
  double scale = 1;
  ErrorScales error_scale;
};

/// The grid of one side. `prefix` is "" or "key_"; the layout and the number of blocks follow from
/// grid and block, and are checked where they are given.
inline TokenGrid read_token_grid(const CaseFile& file, const std::string& prefix, Index tokens) {
  const TokenGrid side{file.axes(prefix + "grid", 0), file.axes(prefix + "block", 1)};
  if (side.block.size() != side.grid.size())
    file.fail("has another number of axes for " + prefix + "block than for " + prefix + "grid");
  std::vector<Index> layout;
  // A double cannot overflow, and every count that equals `tokens` is exact.
  double cells = 1;
  for (const Index extent : side.grid)
    if (extent > 0) cells *= static_cast<double>(extent);
  if (cells > 1e12) file.fail("has a grid beyond reason for " + prefix + "grid");
  cells = 1;
  Index blocks = 1;
  for (std::size_t axis = 0; axis < side.grid.size(); ++axis) {
    layout.push_back(mhla::ceil_div(side.grid[axis], side.block[axis]));
    cells *= static_cast<double>(side.grid[axis]);
    blocks *= layout.back();
  }
  if (cells != static_cast<double>(tokens))
    file.fail("has " + std::to_string(tokens) + " " + prefix + "tokens but another number of " +
              "cells in " + prefix + "grid");
  if (file.has(prefix + "layout") && file.axes(prefix + "layout", 0) != layout)
    file.fail("has a " + prefix + "layout that is not grid / block, rounded up");
  if (file.has(prefix + "blocks") && file.size(prefix + "blocks") != blocks)
    file.fail("has " + prefix + "blocks other than the " + std::to_string(blocks) + " of its grid");
  return side;
}

inline AttentionCase read_attention_case(const CaseFile& file) {
  file.require_known(attention_keys());
  AttentionCase c;
  c.batch = file.size("batch");
  c.heads = file.size("heads");
  c.kv_heads = file.size("kv_heads");
  c.tokens = file.size("tokens");
  c.key_dim = file.size("key_dim");
  c.value_dim = file.size("value_dim");
  c.mix_heads = file.size("mix_heads");
  if (c.kv_heads == 0 ? c.heads != 0 : c.heads % c.kv_heads != 0)
    file.fail("has heads that are not a multiple of kv_heads");
  if (c.mix_heads != 1 && c.mix_heads != c.heads) file.fail("has mix_heads other than 1 or heads");

  c.query_side = read_token_grid(file, "", c.tokens);
  c.key_tokens = c.tokens;
  const bool cross = file.has("key_tokens") || file.has("key_grid") || file.has("key_block") ||
                     file.has("key_layout") || file.has("key_blocks");
  if (cross) {
    c.key_tokens = file.size("key_tokens");
    c.key_side = read_token_grid(file, "key_", c.key_tokens);
    if (c.key_side.grid.size() != c.query_side.grid.size())
      file.fail("has another number of axes for key_grid than for grid");
  }

  c.feature_map = file.one_of("feature_map", feature_maps);
  // Of the maps of this program, only rectifiers have an epsilon.
  const bool rectifier =
      c.feature_map == FeatureMapName::relu || c.feature_map == FeatureMapName::sqrelu;
  if (file.has("feature_map.eps")) {
    c.feature_epsilon = file.number("feature_map.eps");
  } else if (rectifier) {
    c.feature_epsilon =
        c.feature_map == FeatureMapName::relu ? mhla::Relu{}.epsilon : mhla::SquaredRelu{}.epsilon;
  }
  if (c.feature_epsilon != 0 && !rectifier)
    throw UnsupportedCase("feature_map.eps with feature_map " + file.word("feature_map"));
  if (c.feature_map == FeatureMapName::dpfp) c.nu = file.size("feature_map.nu", 1);
  if (c.nu > 1000000) file.fail("has a value beyond reason for feature_map.nu");

  c.causality = file.one_of("causal", causalities);
  c.normalizer = file.one_of("normalizer", normalizers);
  c.normalizer_epsilon = file.number("normalizer_epsilon");
  c.scale = file.number("scale");
  c.rotation = file.one_of("rotation", rotations);
  if (c.rotation != RotationName::none) c.theta = file.number("rotation.theta");

  const auto error_scale = [&](const std::string& array) {
    const double value = file.number("tol_scale." + array);
    if (value < 0) file.fail("has a negative value for tol_scale." + array);
    return value;
  };
  c.error_scale = {error_scale("out"), error_scale("dq"), error_scale("dk"), error_scale("dv"),
                   error_scale("dmix")};
  return c;
}

}  // namespace replay
