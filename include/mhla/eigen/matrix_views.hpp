// SPDX-License-Identifier: MIT
// Eigen's matrices as views: what the projections before and after an attention write and read.
#pragma once

#include <Eigen/Core>
#include <mhla/eigen/tensor_views.hpp>
#include <utility>

MHLA_NAMESPACE_BEGIN

namespace eigen {

/// The Eigen type of an expression: for a segment, which derives from a block, the block.
template <class Dense>
Dense dense_type(const Eigen::DenseBase<Dense>&);

}  // namespace eigen

/// \addtogroup views
/// \{

/// An Eigen::Matrix, Vector or Array, a Map, a Ref, a block or segment of one, or a
/// lazy expression of them.
template <class X>
concept EigenMatrix = requires(const std::remove_cvref_t<X>& matrix) {
  eigen::dense_type(matrix);
};

namespace eigen {

/// The matrix' own memory, [rows, cols]. Const where the matrix is.
template <EigenMatrix X>
auto matrix_memory(X&& matrix) {
  using Matrix = decltype(dense_type(matrix));
  constexpr bool in_memory = (Matrix::Flags & Eigen::DirectAccessBit) != 0;
  static_assert(in_memory,
                "mhla: heads_view and mix_view read a matrix where it lies: an Eigen::Matrix, a "
                "Map, a Ref or a block of one; give an expression a matrix of its own first");
  static_assert(
      std::is_lvalue_reference_v<X> || !std::is_base_of_v<Eigen::PlainObjectBase<Matrix>, Matrix>,
      "mhla: heads_view and mix_view do not own memory, and this matrix is a temporary");
  if constexpr (in_memory) {
    auto* const data = storage(matrix.data());
    return TensorView<std::remove_pointer_t<decltype(data)>, 2>{
        data, {matrix.rows(), matrix.cols()}, {matrix.rowStride(), matrix.colStride()}};
  } else {
    return TensorView<typename Matrix::Scalar, 2>{};
  }
}

}  // namespace eigen

/// The heads of a matrix [batch * tokens, heads * dim] as [batch, heads, tokens, dim], RowMajor or
/// ColMajor: nothing is copied. Its columns may be some of a wider matrix'. A vector, of either
/// orientation, is the features of one token:
/// \code
/// auto q = mhla::heads_view(qkv.leftCols(width), heads);
/// auto k = mhla::heads_view(qkv.middleCols(width, width), heads);
/// auto q_of_token = mhla::heads_view(qkv_of_token.head(width), heads);
/// \endcode
/// \throws ShapeError where rows or columns cannot be divided evenly.
template <EigenMatrix X>
auto heads_view(X&& matrix, Index heads, Index batch = 1) {
  auto memory = eigen::matrix_memory(std::forward<X>(matrix));
  if (decltype(eigen::dense_type(matrix))::ColsAtCompileTime == 1) {  // a column: one token
    (std::swap)(memory.extent[0], memory.extent[1]);
    (std::swap)(memory.stride[0], memory.stride[1]);
  }
  const auto [rows, columns] = memory.extent;
  if (heads < 1 || columns % heads != 0)
    throw ShapeError(
        {"mhla: heads_view: ", columns, " columns do not make ", heads, " heads of equal dim"});
  if (batch < 1 || rows % batch != 0)
    throw ShapeError(
        {"mhla: heads_view: ", rows, " rows do not make ", batch, " sequences of equal length"});
  const auto [row, column] = memory.stride;
  const Index tokens = rows / batch;
  const Index dim = columns / heads;
  return TensorView<typename decltype(memory)::Element, 4>{
      memory.data, {batch, heads, tokens, dim}, {tokens * row, dim * column, row, column}};
}

/// A matrix as mix [query blocks, key blocks], or its gradient: one for all heads.
template <EigenMatrix X>
auto mix_view(X&& matrix) {
  return eigen::matrix_memory(std::forward<X>(matrix));
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(AnyView mix_view,
                  "mhla: mix_view(matrix) takes an Eigen matrix: of a pointer or a std::vector "
                  "write mhla::make_view(mix.data(), blocks, blocks)")
/// \endcond

/// \}

MHLA_NAMESPACE_END
