// SPDX-License-Identifier: MIT
/// \defgroup mixing_matrix Mixing matrix
/// Initial values of mix [1 or heads, query blocks, key blocks], and the projection that a training
/// loop applies after each update (arXiv 2601.07832, section 4, and the released code's forms).
/// Functions take views or Eigen tensors.
/// \code
/// mhla::initialize(mix, attention, {.transform = mhla::Transform::local});
/// mix = mix - dmix * 1e-2f;
/// mhla::project(mix);
/// \endcode
/// | model | initialize(mix, ...) | project(mix, ...) |
/// | --- | --- | --- |
/// | the paper | {.max_mode = MaxMode::row, .norm_axis = NormAxis::row} | {}, after each update |
/// | released vision, DiT | {} (the vision module itself: .transform = cos) | {}, after each update |
/// | released Wan (video) | none: every entry is 1e-6 | none |
/// | released language model | {} | causal_projection, before each forward |
///
/// Wan's class defaults to a linear matrix, but the released block passes arguments by position,
/// and they arrive as other parameters.
///
/// mhla::extend makes a trained matrix larger, for longer sequences than it was trained on; a
/// forward pass or a decoder never does so silently.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/overlap.hpp>
#include <mhla/policy/variant.hpp>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup mixing_matrix
/// \{

/// The weight of key block b for query block i before normalization; d is the distance of their
/// centres in query blocks, `max` what MaxMode says. `linear` is the paper's and the released
/// code's, `uniform` and `identity` are this library's, the others the released code's.
enum class Transform {
  automatic,  ///< `causal` for a variant that is Causal or BlockCausal, else `linear`
  linear,     ///< 1 - d / max
  cos,        ///< cos(d / max * pi / 4)
  exp,        ///< exp(-d / exp_sigma)
  gaussian,   ///< exp(-d^2 / (2 sigma^2)), sigma = max / 3
  local,      ///< 1 where d <= local_threshold, else 0
  uniform,    ///< 1: with rows or columns normalized, global linear attention
  identity,   ///< 1 where b == i, else 0: each block sees itself. Equal layouts only
  causal      ///< 1 / (i + 1) where b <= i, else 0: the mean over the past. Sequences only
};

/// What `max` is the largest distance of.
enum class MaxMode {
  global,  ///< the whole matrix (released code)
  row      ///< row i (paper)
};

/// What is normalized to sum to one.
enum class NormAxis {
  automatic,  ///< none for `gaussian` and `causal`, whose rows sum to one already; else column
              ///< between equal layouts (released code), row between different ones
  column,     ///< each column (released code)
  row,        ///< each row (paper)
  none        ///< nothing
};

/// How `initialize` fills a mixing matrix. The defaults are the released code's: those of the
/// published vision script and of DiT, and for causal variants those of the language model.
struct InitialMixing {
  Transform transform = Transform::automatic;  ///< weights by distance
  MaxMode max_mode = MaxMode::global;          ///< what distances are relative to
  NormAxis norm_axis = NormAxis::automatic;    ///< what sums to one
  double exp_sigma = 3;                        ///< of Transform::exp, in blocks
  double local_threshold = 1.5;                ///< of Transform::local, in blocks
};

/// What `project` maps a mixing matrix into. The defaults are the released vision and DiT code's
/// [0, 1], where the paper writes (0, 1).
struct Projection {
  double low = 0;               ///< smallest entry
  double high = 1;              ///< largest entry
  bool lower_triangle = false;  ///< entries above the diagonal become 0
};

/// The released language model's projection.
inline constexpr Projection causal_projection{.low = 1e-5, .high = 1, .lower_triangle = true};

/// How `extend` fills the rows of blocks that a mixing matrix was not made for.
enum class Extension {
  causal_average,  ///< 1 / (i + 1) where b <= i: the mean over the past, as Transform::causal
  last_row         ///< the last known row's weight at distance i - b; beyond it, its farthest one
};

/// \cond INTERNAL
// A concept, so that the remaining constraints order the overloads.
template <int Rank>
concept MixRank = Rank == 2 || Rank == 3;
/// \endcond

namespace mixing_matrix {

// A matrix without a head axis is shared by all heads. Throws if it has extents that no tensor can
// have, or no address.
template <class T, int Rank>
TensorView<T, 3> with_heads(const TensorView<T, Rank>& mix, const char* argument) {
  static_assert(Rank == 2 || Rank == 3,
                "mhla: a mixing matrix is [query blocks, key blocks] or [1 | heads, query blocks, "
                "key blocks]: a view of rank 2 or 3");
  const TensorView<T, 3> matrices = mix;
  require_tensor(argument, matrices);
  if (matrices.data == nullptr && matrices.size() > 0)
    throw ShapeError(
        {"mhla: ", argument, ": has ", matrices.size(), " elements but a null address"});
  return matrices;
}

// with_heads of what is written to.
template <class T, int Rank>
TensorView<T, 3> destination(const TensorView<T, Rank>& mix, const char* argument) {
  const TensorView<T, 3> matrices = with_heads(mix, argument);
  if (!is_injective(matrices))
    throw ShapeError({"mhla: ", argument,
                      ": two of its elements share memory; a destination needs elements of their "
                      "own"});
  return matrices;
}

inline bool same_layout(const Grid& a, const Grid& b) {
  return a.layout(0) == b.layout(0) && a.layout(1) == b.layout(1) && a.layout(2) == b.layout(2);
}

// Between the centres (i_a + 1/2) / L_a of two blocks, in units of query blocks; a shorter block at
// the edge counts as a full one. The numerator is an integer, so that equal distances have equal
// bits and zero is exact.
template <class Real>
Real distance(const Grid& query_grid, Index i, const Grid& key_grid, Index b) {
  Real squared = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const Index query_layout = query_grid.layout(axis);
    const Index key_layout = key_grid.layout(axis);
    const Index numerator = (2 * query_grid.block_coordinate(i, axis) + 1) * key_layout -
                            (2 * key_grid.block_coordinate(b, axis) + 1) * query_layout;
    const Real along_axis = static_cast<Real>(numerator) / static_cast<Real>(2 * key_layout);
    squared += along_axis * along_axis;
  }
  return std::sqrt(squared);
}

// If max is 0, so is d: 0 / 0 counts as 0, and all weights are 1.
template <class Real>
Real weight(const InitialMixing& options, Index i, Index b, Real d, Real max_distance) {
  const Real ratio = max_distance == 0 ? Real(0) : d / max_distance;
  switch (options.transform) {
    case Transform::automatic:
    case Transform::linear:
      return 1 - ratio;
    case Transform::cos:
      return std::cos(ratio * std::atan(Real(1)));  // atan(1) = pi / 4
    case Transform::exp:
      return std::exp(-d / static_cast<Real>(options.exp_sigma));
    case Transform::gaussian:
      return std::exp(-9 * ratio * ratio / 2);
    case Transform::local:
      return d <= static_cast<Real>(options.local_threshold) ? Real(1) : Real(0);
    case Transform::uniform:
      return 1;
    case Transform::identity:
      return b == i ? Real(1) : Real(0);
    case Transform::causal:
      return b <= i ? 1 / static_cast<Real>(i + 1) : Real(0);
  }
  return 0;
}

// The row-major weights [query blocks, key blocks] before normalization.
template <class Real>
std::vector<Real> weights(const InitialMixing& options, const Grid& query_grid,
                          const Grid& key_grid) {
  const Index rows = query_grid.num_blocks();
  const Index columns = key_grid.num_blocks();
  std::vector<Real> result(static_cast<std::size_t>(checked_mul(rows, columns)));
  for (Index i = 0; i < rows; ++i)
    for (Index b = 0; b < columns; ++b)
      result[static_cast<std::size_t>(i * columns + b)] =
          distance<Real>(query_grid, i, key_grid, b);
  if (result.empty()) return result;

  const Real global_max = *std::max_element(result.begin(), result.end());
  for (Index i = 0; i < rows; ++i) {
    const auto row = result.begin() + i * columns;
    const Real max_distance =
        options.max_mode == MaxMode::global ? global_max : *std::max_element(row, row + columns);
    for (Index b = 0; b < columns; ++b) row[b] = weight(options, i, b, row[b], max_distance);
  }
  return result;
}

// Divides `count` weights, `step` apart, by their sum; if all are zero they become equal.
template <class Real>
void normalize(Real* first, Index count, Index step) {
  Real sum = 0;
  for (Index n = 0; n < count; ++n) sum += first[n * step];
  for (Index n = 0; n < count; ++n)
    first[n * step] = sum == 0 ? 1 / static_cast<Real>(count) : first[n * step] / sum;
}

inline NormAxis resolved_axis(const InitialMixing& options, bool equal_layouts) {
  if (options.norm_axis != NormAxis::automatic) return options.norm_axis;
  if (options.transform == Transform::causal) return NormAxis::none;
  if (!equal_layouts) return NormAxis::row;
  return options.transform == Transform::gaussian ? NormAxis::none : NormAxis::column;
}

inline void require_valid(const Grid& grid, const char* side) {
  for (int axis = 0; axis < 3; ++axis)
    if (grid.block[axis] <= 0 || grid.extent[axis] < 0)
      throw ShapeError({"mhla: initialize: the ", side, " grid has axis ", axis, " of ",
                        grid.extent[axis], " tokens in blocks of ", grid.block[axis],
                        "; a block holds at least 1 token and an extent cannot be negative"});
  require_tensor((std::string("initialize: the ") + side + " grid's blocks").c_str(),
                 {{"0", grid.layout(0)}, {"1", grid.layout(1)}, {"2", grid.layout(2)}});
}

inline void require_valid(const InitialMixing& options, const Grid& query_grid,
                          const Grid& key_grid) {
  require_enumerator("initialize: transform", options.transform, Transform::causal);
  require_enumerator("initialize: max_mode", options.max_mode, MaxMode::row);
  require_enumerator("initialize: norm_axis", options.norm_axis, NormAxis::none);
  require_positive("initialize: exp_sigma", options.exp_sigma);
  require_not_negative("initialize: local_threshold", options.local_threshold);
  const bool equal_layouts = same_layout(query_grid, key_grid);
  if (options.transform == Transform::identity && !equal_layouts)
    throw ShapeError(
        "mhla: initialize: Transform::identity needs the same layout of blocks on the query and "
        "the key side; use Transform::local for a matrix between different layouts");
  if (options.transform == Transform::causal &&
      !(equal_layouts && query_grid.layout(0) == 1 && query_grid.layout(1) == 1))
    throw ShapeError(
        "mhla: initialize: Transform::causal needs one sequence of blocks, the same on the query "
        "and the key side; blocks of a 2-D or 3-D grid have no past");
}

// A side without a bound has an infinite one.
inline void require_valid(const Projection& onto) {
  if (onto.low <= onto.high && onto.low <= largest_setting && onto.high >= -largest_setting) return;
  throw ShapeError({"mhla: project: low is ", onto.low, " and high is ", onto.high,
                    "; low must not exceed high, and the range must contain finite floats"});
}

// A geometry's grid when no tensor gives the number of tokens. A sequence has as many blocks as the
// matrix has rows (or columns), which may be more than any one call needs.
template <BlockGeometry G>
Grid grid_without_tokens(const G& geometry, const char* member, Index blocks_of_sequence) {
  if constexpr (G::rank == 1) {
    checked_grid(geometry, 0, member, "mix");
    return {{1, 1, blocks_of_sequence}, {1, 1, 1}};
  } else {
    const Grid grid = geometry.grid_of(0);
    Index tokens = 1;
    for (const Index extent : grid.extent) tokens = extent < 0 ? 0 : checked_mul(tokens, extent);
    return checked_grid(geometry, tokens, member, "mix");
  }
}

// Of queries and of keys.
template <AttentionVariant A>
std::pair<Grid, Grid> grids_without_tokens(const A& attention, Index query_blocks,
                                           Index key_blocks) {
  const Grid query = grid_without_tokens(attention.blocks, "blocks", query_blocks);
  if (attention.key_blocks.unset())
    return {query, grid_without_tokens(attention.blocks, "blocks", key_blocks)};
  return {query, grid_without_tokens(attention.key_blocks, "key_blocks", key_blocks)};
}

}  // namespace mixing_matrix

/// Fills mix [1 or heads, query blocks, key blocks], or [query blocks, key blocks], with the
/// initial matrix between the blocks of two grids; every head gets the same. Distances are
/// Euclidean, in blocks, on every axis alike (released code); a shorter block at the edge counts as
/// a full one, and between different layouts block centres are scaled to the query layout. A
/// normalized row or column (without normalization: a row) whose weights are all zero becomes
/// uniform, and a single block gives [[1]]. Computed in double, or in T where that is wider.
/// \throws ShapeError, with nothing written, where mix does not have a row per query block and a
/// column per key block, or the transform does not fit the layouts.
// (The key grid is deduced so that initialize(mix, grid, {}) means the overload below.)
template <WritableScalar T, int Rank, std::same_as<Grid> KeyGrid>
void initialize(const TensorView<T, Rank>& mix, const Grid& query_grid, const KeyGrid& key_grid,
                const InitialMixing& options = {}) {
  const TensorView<T, 3> matrices = mixing_matrix::destination(mix, "mix");
  mixing_matrix::require_valid(query_grid, "query");
  mixing_matrix::require_valid(key_grid, "key");
  const Index rows = query_grid.num_blocks();
  const Index columns = key_grid.num_blocks();
  require_extent("mix", "query blocks", matrices.extent[1], rows,
                 "an initial matrix has a row per query block");
  require_extent("mix", "key blocks", matrices.extent[2], columns,
                 "an initial matrix has a column per key block");
  mixing_matrix::require_valid(options, query_grid, key_grid);
  if (matrices.size() == 0) return;

  using Real = std::common_type_t<T, double>;
  std::vector<Real> weights = mixing_matrix::weights<Real>(options, query_grid, key_grid);
  const NormAxis axis =
      mixing_matrix::resolved_axis(options, mixing_matrix::same_layout(query_grid, key_grid));
  if (axis == NormAxis::column) {
    for (Index b = 0; b < columns; ++b) mixing_matrix::normalize(weights.data() + b, rows, columns);
  } else {
    for (Index i = 0; i < rows; ++i) {
      Real* const row = weights.data() + i * columns;
      if (axis == NormAxis::row || std::all_of(row, row + columns, [](Real w) { return w == 0; }))
        mixing_matrix::normalize(row, columns, Index{1});
    }
  }

  for (Index head = 0; head < matrices.extent[0]; ++head)
    for (Index i = 0; i < rows; ++i)
      for (Index b = 0; b < columns; ++b)
        matrices(head, i, b) = static_cast<T>(weights[static_cast<std::size_t>(i * columns + b)]);
}

/// The square matrix between the blocks of one grid.
template <WritableScalar T, int Rank>
requires MixRank<Rank>
void initialize(const TensorView<T, Rank>& mix, const Grid& grid,
                const InitialMixing& options = {}) {
  initialize(mix, grid, grid, options);
}

/// The matrix of a variant: between `attention.blocks` and, in cross-attention,
/// `attention.key_blocks`. With Blocks1D the number of blocks is that of mix, which may be made for
/// longer sequences than any one call has. Unless `options` names a transform, a causal variant
/// gets Transform::causal.
template <WritableScalar T, int Rank, AttentionVariant A>
requires MixRank<Rank>
void initialize(const TensorView<T, Rank>& mix, const A& attention,
                const InitialMixing& options = {}) {
  static_assert(std::same_as<typename A::MixingType, DenseMixing>,
                "mhla: initial values of RecurrentMixing and SeparableMixing need #include "
                "<mhla/structured_mixing.hpp>; a mixing of your own has its own");
  const auto [query_grid, key_grid] =
      mixing_matrix::grids_without_tokens(attention, mix.extent[Rank - 2], mix.extent[Rank - 1]);
  InitialMixing resolved = options;
  if (options.transform == Transform::automatic && is_causal<A>)
    resolved.transform = Transform::causal;
  initialize(mix, query_grid, key_grid, resolved);
}

/// Clamps every entry of mix [1 or heads, query blocks, key blocks], or [query blocks, key blocks],
/// to [low, high] and, for `lower_triangle`, sets those above the diagonal to zero: the step after
/// each update of mix, never part of a forward pass (arXiv 2601.07832, section 4; released code:
/// clamp_(0, 1), and clamp(1e-5, 1).tril() in the language model). NaN stays NaN.
/// \throws ShapeError unless low <= high and the range contains finite floats.
template <WritableScalar T, int Rank>
requires MixRank<Rank>
void project(const TensorView<T, Rank>& mix, const Projection& onto = {}) {
  mixing_matrix::require_valid(onto);
  const TensorView<T, 3> matrices = mixing_matrix::with_heads(mix, "mix");
  if (matrices.size() == 0) return;
  const T low = static_cast<T>(onto.low);
  const T high = static_cast<T>(onto.high);
  for (Index head = 0; head < matrices.extent[0]; ++head)
    for (Index i = 0; i < matrices.extent[1]; ++i)
      for (Index b = 0; b < matrices.extent[2]; ++b) {
        T& entry = matrices(head, i, b);
        if (onto.lower_triangle && b > i)
          entry = 0;
        else if (entry < low)
          entry = low;
        else if (entry > high)
          entry = high;
      }
}

/// Copies mix [1 or heads, blocks, blocks], or [blocks, blocks], of causal attention into the
/// leading corner of `larger`, which has the same heads and at least as many blocks, and fills the
/// rest: new rows i as `extension` says for b <= i, zero above the diagonal. Row i does not depend
/// on the size of `larger`, so that a decoder and a forward pass agree whichever is longer.
/// (Neither the paper nor the released code defines rows for blocks that were not trained.)
/// \throws ShapeError, with nothing written, where either matrix is not square, heads differ,
/// `larger` is smaller or shares memory with mix or itself, or mix has no last row.
template <WritableScalar T, int Rank>
requires MixRank<Rank>
void extend(const InputView<T, Rank>& mix, const TensorView<T, Rank>& larger, Extension extension) {
  require_enumerator("extend: extension", extension, Extension::last_row);
  const TensorView<const T, 3> known = mixing_matrix::with_heads(mix, "mix");
  const TensorView<T, 3> matrices = mixing_matrix::with_heads(larger, "larger");
  const Index blocks = known.extent[1];
  const Index all_blocks = matrices.extent[1];
  require_extent("mix", "key blocks", known.extent[2], blocks,
                 "causal attention has one sequence of blocks: only a square mix can be extended");
  require_extent("larger", "heads", matrices.extent[0], known.extent[0],
                 "an extended mix has the heads of mix");
  require_extent("larger", "key blocks", matrices.extent[2], all_blocks,
                 "causal attention has one sequence of blocks: an extended mix is square");
  if (all_blocks < blocks)
    throw ShapeError({"mhla: larger: axis query blocks is ", all_blocks, " but mix has ", blocks,
                      "; extend makes a matrix larger, a smaller one is its leading corner"});
  if (extension == Extension::last_row && blocks == 0 && all_blocks > 0)
    throw ShapeError(
        "mhla: mix: axis query blocks is 0; Extension::last_row needs a row to go by, use "
        "Extension::causal_average");
  if (!is_injective(matrices) || share_memory(matrices, known))
    throw ShapeError(
        "mhla: larger: shares memory with mix, or with itself; a destination needs elements of its "
        "own");
  if (matrices.size() == 0) return;

  using Real = std::common_type_t<T, double>;
  const auto entry = [&](Index head, Index i, Index b) {
    if (i < blocks && b < blocks) return known(head, i, b);
    if (b > i) return T(0);
    if (extension == Extension::causal_average) return static_cast<T>(1 / static_cast<Real>(i + 1));
    return known(head, blocks - 1, (std::max)(Index{0}, blocks - 1 - (i - b)));
  };
  for (Index head = 0; head < matrices.extent[0]; ++head)
    for (Index i = 0; i < all_blocks; ++i)
      for (Index b = 0; b < all_blocks; ++b) matrices(head, i, b) = entry(head, i, b);
}

/// \cond INTERNAL
// Overloads that say why a call does not compile, also with options in braces.
MHLA_NO_SUCH_CALL(void initialize,
                  "mhla: call initialize(mix, attention, options), or (mix, grid, options) or "
                  "(mix, query_grid, key_grid, options) with an mhla::Grid: mix is a view or an "
                  "Eigen tensor of float or double to write to, of an Eigen::Matrix "
                  "mhla::mix_view(mix), of a std::vector mhla::make_view(mix.data(), blocks, "
                  "blocks)")
MHLA_NO_SUCH_CALL(void project,
                  "mhla: call project(mix, onto) or, for a structured mixing, project(mix, "
                  "attention, onto): mix is a view or an Eigen tensor of float or double to write "
                  "to, of an Eigen::Matrix mhla::mix_view(mix), of a std::vector "
                  "mhla::make_view(mix.data(), blocks, blocks)")
MHLA_NO_SUCH_CALL(void extend,
                  "mhla: call extend(mix, larger, extension), or extend(mix, larger, attention) "
                  "for RecurrentMixing: mix and larger are views of one rank and of one scalar, "
                  "float or double, larger not const")
/// \endcond

/// \}

MHLA_NAMESPACE_END
