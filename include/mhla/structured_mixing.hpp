// SPDX-License-Identifier: MIT
/// \defgroup structured_mixing Structured mixings' parameters
/// What \ref mixing_matrix has for dense matrices, for the parameters that take mix's place under
/// RecurrentMixing and SeparableMixing: their extents, initial values by the same formulas, the
/// projection after an update, and fits to a dense matrix, a released checkpoint's, say.
/// \code
/// using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
///                                   mhla::HalfSplitRotary, mhla::RecurrentMixing>;
/// const Attention attention{.blocks = {.block = 64}, .mixing = {.states = 8}};
/// const auto [rows, columns] = mhla::mix_extents(attention, tokens);
/// Eigen::Tensor<float, 3, Eigen::RowMajor> mix(heads, rows, columns), dense(heads, rows, rows);
/// mhla::initialize(mix, attention);
/// mhla::project(mix, attention, mhla::causal_projection);      // after each update of mix
/// const double error = mhla::fit(mix, dense, attention);  // relative to the dense matrices' norm
/// \endcode
/// mhla::initialize(mix, attention, InitialMixing) fills every head with what stands for the
/// initial matrix of a dense mix between the same blocks. RecurrentMixing: exactly where the table
/// below says so, else by a fit within [0, 1]; what the matrix has above its diagonal counts where
/// columns or rows are normalized. A single row for all blocks holds what the matrix has far from
/// its ends: of Transform::exp, local up to the block before, identity, or uniform with
/// NormAxis::none; other transforms throw ShapeError. SeparableMixing: by a fit of factors in [0,
/// 1]. States and terms that the matrix does not need add nothing to it, and no two are alike, so
/// that training can make use of them.
///
/// What a structure holds of the initial matrices, and of a kernel that no released model has, as
/// relative error in the Frobenius norm, with factors and weights that `project` leaves as they are
/// (in brackets: of any sign, where that is less):
///
/// | separable, rank | 1 | 2 | 3 | 4 |
/// | --- | --- | --- | --- | --- |
/// | released, 4 x 4 | 4.4 % | 2.6 % | 0.4 % | 0.2 % |
/// | 8 x 8 | 2.5 % | 1.3 % | 0.4 % | 0.2 % |
/// | 7 x 3 x 5 | 2.5 % | 1.3 % | 0.5 % (0.4) | 0.4 % (0.2) |
/// | 3 x 5 x 10 | 2.0 % | 0.7 % | 0.3 % | 0.2 % (0.1) |
/// | the paper's, 4 x 4 | 9.5 % | 5.6 % | 1.7 % | 0.3 % |
/// | 3 x 5 x 10 | 5.6 % | 3.3 % | 1.5 % (1.1) | 1.0 % (0.3) |
/// | exp, 8 x 8 | 8.9 % | 2.1 % | 0.4 % | 0.2 % |
/// | local, 3 x 5 x 10 | 35 % | 29 % (0.9) | 0.9 % (0.4) | 0.6 % (0.2) |
/// | gaussian; local in 1-D and 2-D | exact | | | |
///
/// | recurrent, 64 blocks, states | 1 | 2 | 4 | 8 |
/// | --- | --- | --- | --- | --- |
/// | causal, uniform, exp, local, identity | exact | | | |
/// | linear; cos if `max` is one for all rows | 6.6 %; 1.8 % | exact | | |
/// | gaussian | 15 % (11) | 4.5 % (1.5) | 0.24 % (0.09) | 0.03 % (0.01) |
/// | 1 / (1 + distance), one row for all blocks | 14 % | 2.4 % | 0.04 % | 0.0004 % |
/// | the same, of 512 blocks | 18 % | 5.9 % | 0.44 % | 0.0015 % |
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/mixing_fit/recurrent.hpp>
#include <mhla/mixing_fit/separable.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup structured_mixing
/// \{

/// A variant with RecurrentMixing.
template <class A>
concept RecurrentVariant =
    AttentionVariant<A> && std::same_as<typename A::MixingType, RecurrentMixing>;
/// A variant with SeparableMixing.
template <class A>
concept SeparableVariant =
    AttentionVariant<A> && std::same_as<typename A::MixingType, SeparableMixing>;
/// A variant with either.
template <class A>
concept StructuredVariant = RecurrentVariant<A> || SeparableVariant<A>;

/// The last extents of mix.
struct MixExtents {
  Index rows = 0;     ///< of the dense matrix: query blocks
  Index columns = 0;  ///< and key blocks
};

/// How `fit` goes about it.
struct FitOptions {
  bool projected = false;  ///< only parameters that `project` leaves as they are
  int sweeps = 20;         ///< over a recurrent mixing's blocks; at least 1
};

namespace structured_mixing {

template <AttentionVariant A>
MixingLayout layout_of(const A& attention, Index query_blocks, Index key_blocks) {
  const auto [query_grid, key_grid] =
      mixing_matrix::grids_without_tokens(attention, query_blocks, key_blocks);
  return MixingLayout::of(A::GeometryType::rank, query_grid, key_grid, sight_of<A>);
}

// Of one head, row-major.
template <class T>
std::vector<double> values_of(const TensorView<T, 3>& matrices, Index head) {
  std::vector<double> values;
  for (Index i = 0; i < matrices.extent[1]; ++i)
    for (Index j = 0; j < matrices.extent[2]; ++j)
      values.push_back(static_cast<double>(matrices(head, i, j)));
  return values;
}
template <class T>
void copy(const std::vector<double>& values, const TensorView<T, 3>& mix, Index head) {
  for (Index i = 0; i < mix.extent[1]; ++i)
    for (Index c = 0; c < mix.extent[2]; ++c)
      mix(head, i, c) = static_cast<T>(values[mixing_fit::at(i * mix.extent[2] + c)]);
}

// Parameters, rounded to T, and what they leave of the matrix.
struct Fitted {
  std::vector<double> parameters;
  mixing_fit::Norms norms;
};
template <class T>
double rounded(double x) {
  return static_cast<double>(static_cast<T>(x));
}

// Factors that cancel each other could be of any size, and lost in float: read and write weights of
// any sign are at most 8, for a matrix whose largest entry is 1.
template <class T>
Fitted fitted(const RecurrentMixing& mixing, const MixingLayout& layout, Index rows,
              const std::vector<double>& matrix, const FitOptions& options) {
  const Index blocks = layout.query_blocks();
  const mixing_fit::CausalMatrix exact = make_view(matrix.data(), blocks, blocks);
  const double largest = mixing_fit::largest_entry(exact);
  const double scale = options.projected || !(largest > 0) ? 1 : largest;
  std::vector<double> scaled = matrix;
  for (double& entry : scaled) entry /= scale;
  const mixing_fit::CausalMatrix m = make_view(scaled.data(), blocks, blocks);
  const mixing_fit::Interval weights =
      options.projected ? mixing_fit::Interval{0, 1} : mixing_fit::Interval{-8, 8};
  mixing_fit::RecurrentParameters p(rows, mixing.states);
  if (rows == 1)
    mixing_fit::fit_constant(m, p, weights, Index{3} * options.sweeps);
  else
    mixing_fit::fit_each_block(m, p, weights, options.sweeps);
  for (Index i = 0; i < rows; ++i) {
    p.own(i) = rows == 1 || options.projected ? p.own(i) * scale : exact(i, i);
    for (Index r = 0; r < p.states; ++r) p.a(i)[r] *= scale;
  }
  std::transform(p.values.begin(), p.values.end(), p.values.begin(), rounded<T>);
  return {p.values, mixing_fit::recurrent_error(exact, p)};
}

template <class T>
Fitted fitted(const SeparableMixing& mixing, const MixingLayout& layout, Index /*rows*/,
              const std::vector<double>& matrix, const FitOptions& options) {
  mixing_fit::SeparableFit separable(layout, matrix, mixing.rank, options.projected);
  separable.round_to(rounded<T>);
  return {separable.parameters(), separable.norms()};
}

// The initial parameters of a head, [rows, columns].
template <class T, RecurrentVariant A>
std::vector<double> initial_values(const A& attention, Index rows, Index columns,
                                   InitialMixing options) {
  attention.mixing.require_parameters(layout_of(attention, rows, rows), rows, columns);
  if (options.transform == Transform::automatic) options.transform = Transform::causal;
  return mixing_fit::initial_recurrence(options, rows, attention.mixing.states).values;
}

template <class T, SeparableVariant A>
std::vector<double> initial_values(const A& attention, Index rows, Index columns,
                                   const InitialMixing& options) {
  Index blocks = 0;  // of a sequence
  if constexpr (A::GeometryType::rank == 1) {
    if (!attention.key_blocks.unset())
      throw ShapeError(
          "mhla: initialize: mix does not say how many blocks each of two sequences has; fit it to "
          "a dense matrix");
    while ((blocks + 1) * (blocks + 1) <= columns) ++blocks;
  }
  const MixingLayout layout = layout_of(attention, blocks, blocks);
  attention.mixing.require_parameters(layout, rows, columns);
  const auto [query_grid, key_grid] =
      mixing_matrix::grids_without_tokens(attention, blocks, blocks);
  std::vector<double> dense(
      mixing_fit::at(checked_mul(layout.query_blocks(), layout.key_blocks())));
  mhla::initialize(make_view(dense.data(), layout.query_blocks(), layout.key_blocks()), query_grid,
                   key_grid, options);
  return fitted<T>(attention.mixing, layout, rows, dense, {.projected = true}).parameters;
}

}  // namespace structured_mixing

/// The rows and columns that mix has for so many tokens, of queries and of keys. (RecurrentMixing
/// also takes a single row.)
/// \throws ShapeError if the geometry does not have these tokens, or the mixing these extents: one of
/// your own knows others.
template <AttentionVariant A>
MixExtents mix_extents(const A& attention, Index query_tokens, Index key_tokens) {
  const auto [query_grid, key_grid] = checked_grids(attention, query_tokens, key_tokens);
  const auto layout = MixingLayout::of(A::GeometryType::rank, query_grid, key_grid, sight_of<A>);
  MixExtents extents{layout.query_blocks(), layout.key_blocks()};
  if constexpr (RecurrentVariant<A>) extents.columns = attention.mixing.columns();
  if constexpr (SeparableVariant<A>)
    extents = {attention.mixing.rank, attention.mixing.columns(layout)};
  attention.mixing.require_parameters(layout, extents.rows, extents.columns);
  return extents;
}
/// Of self-attention.
template <AttentionVariant A>
MixExtents mix_extents(const A& attention, Index tokens) {
  return mix_extents(attention, tokens, tokens);
}

/// \cond INTERNAL
// Documented with the group: doxygen takes it for the dense mix' overload.
template <WritableScalar T, int Rank, StructuredVariant A>
requires MixRank<Rank>
void initialize(const TensorView<T, Rank>& mix, const A& attention,
                const InitialMixing& options = {}) {
  const TensorView<T, 3> parameters = mixing_matrix::destination(mix, "mix");
  const std::vector<double> values = structured_mixing::initial_values<T>(
      attention, parameters.extent[1], parameters.extent[2], options);
  for (Index head = 0; head < parameters.extent[0]; ++head)
    structured_mixing::copy(values, parameters, head);
}
/// \endcond

/// Fits the parameters mix [heads, rows, columns] to dense matrices [heads, query blocks, key
/// blocks] by least squares, and returns the norm of the residual over all heads, relative to the
/// norm of the dense matrices. Alternating steps end where they gain little, near a local minimum
/// of the error.
///
/// RecurrentMixing: reads nothing above the diagonal; own weights are exact unless projected; the
/// rest takes O(blocks^2 states) steps a sweep and blocks^2 states / 2 doubles of memory. A single
/// row for all blocks gets the mean own weight, and exponentials fitted to the mean weight at each
/// distance.
///
/// SeparableMixing: where only two axes have more than one block, unless projected, by singular
/// values: up to rounding no sum of so many products has a smaller error. In a term that the matrix
/// does not need only the last factor is zero, so that training can use the term.
/// \throws ShapeError, with nothing written, where mix, dense and the variant disagree.
template <WritableScalar T, int Rank, StructuredVariant A>
requires MixRank<Rank>
double fit(const TensorView<T, Rank>& mix, const InputView<T, Rank>& dense, const A& attention,
           const FitOptions& options = {}) {
  require_at_least("fit: sweeps", options.sweeps, 1);
  const TensorView<T, 3> parameters = mixing_matrix::destination(mix, "mix");
  const TensorView<const T, 3> matrices = mixing_matrix::with_heads(dense, "dense");
  const Index rows = parameters.extent[1];
  const MixingLayout layout =
      structured_mixing::layout_of(attention, matrices.extent[1], matrices.extent[2]);
  require_extent("mix", "heads", parameters.extent[0], matrices.extent[0],
                 "a fit has a mix for every dense matrix");
  require_extent("dense", "query blocks", matrices.extent[1], layout.query_blocks(),
                 "a dense matrix has a row per query block");
  require_extent("dense", "key blocks", matrices.extent[2],
                 RecurrentVariant<A> ? layout.query_blocks() : layout.key_blocks(),
                 "a dense matrix has a column per key block");
  attention.mixing.require_parameters(layout, rows, parameters.extent[2]);
  if (RecurrentVariant<A> && rows != 1)
    require_extent("mix", "rows", rows, layout.query_blocks(), "a fit has a row per block, or one");
  if (share_memory(parameters, matrices))
    throw ShapeError(
        "mhla: mix: shares memory with dense; a destination needs elements of its own");
  mixing_fit::Norms all;
  for (Index head = 0; head < matrices.extent[0]; ++head) {
    const structured_mixing::Fitted fitted = structured_mixing::fitted<T>(
        attention.mixing, layout, rows, structured_mixing::values_of(matrices, head), options);
    all.matrix = std::hypot(all.matrix, fitted.norms.matrix);
    all.error = std::hypot(all.error, fitted.norms.error);
    structured_mixing::copy(fitted.parameters, parameters, head);
  }
  return all.relative();
}

/// The step after each update: clamps the weights of RecurrentMixing's mix (own, read and write) or
/// SeparableMixing's factors to [low, high], so that with low >= 0 the dense matrix has no negative
/// entry, and decays to [0, 1]. Of DenseMixing, as project(mix, onto). NaN stays NaN.
/// \throws ShapeError unless low <= high, or where mix does not have the columns of its states.
template <WritableScalar T, int Rank, AttentionVariant A>
requires MixRank<Rank>
void project(const TensorView<T, Rank>& mix, const A& attention, const Projection& onto = {}) {
  if constexpr (RecurrentVariant<A>) {
    const TensorView<T, 3> parameters = mixing_matrix::with_heads(mix, "mix");
    mixing_matrix::require_valid(onto);
    attention.mixing.require_columns(parameters.extent[2]);
    if (parameters.size() == 0) return;
    const Index weights = 2 * attention.mixing.states + 1;
    project(slice(parameters, 2, 0, weights), Projection{.low = onto.low, .high = onto.high});
    project(slice(parameters, 2, weights, attention.mixing.states), Projection{});
  } else {
    project(mix, onto);
  }
}

/// Copies mix [heads, blocks or 1, 3 states + 1] into the leading rows of `larger`, which has the
/// same heads and at least as many rows; the new ones are the last one again. Row i does not depend
/// on the size of `larger`, so that a decoder and a forward pass agree whichever is longer.
/// \throws ShapeError, with nothing written, where mix has no rows, `larger` is smaller, shares
/// memory with mix or itself, or either does not have the columns of its states.
template <WritableScalar T, int Rank, RecurrentVariant A>
requires MixRank<Rank>
void extend(const InputView<T, Rank>& mix, const TensorView<T, Rank>& larger, const A& attention) {
  const TensorView<const T, 3> known = mixing_matrix::with_heads(mix, "mix");
  const TensorView<T, 3> parameters = mixing_matrix::destination(larger, "larger");
  attention.mixing.require_valid();
  require_extent("larger", "heads", parameters.extent[0], known.extent[0],
                 "an extended mix has the heads of mix");
  for (const Index columns : {known.extent[2], parameters.extent[2]})
    attention.mixing.require_columns(columns);
  if (parameters.extent[1] < known.extent[1] || known.extent[1] == 0)
    throw ShapeError({"mhla: larger: axis rows is ", parameters.extent[1], " but mix has ",
                      known.extent[1], "; extend repeats the last of at least one row"});
  if (share_memory(parameters, known))
    throw ShapeError(
        "mhla: larger: shares memory with mix; a destination needs elements of its own");
  for (Index head = 0; head < known.extent[0]; ++head)
    for (Index i = 0; i < parameters.extent[1]; ++i)
      for (Index c = 0; c < known.extent[2]; ++c)
        parameters(head, i, c) = known(head, (std::min)(i, known.extent[1] - 1), c);
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(double fit,
                  "mhla: call fit(mix, dense, attention, options): mix and dense are views, or "
                  "Eigen tensors, of one rank and scalar, float or double, mix not const, and the "
                  "attention has RecurrentMixing or SeparableMixing")
MHLA_NO_SUCH_CALL(MixExtents mix_extents,
                  "mhla: call mix_extents(attention, tokens), or (attention, query_tokens, "
                  "key_tokens)")
/// \endcond

/// \}

MHLA_NAMESPACE_END
