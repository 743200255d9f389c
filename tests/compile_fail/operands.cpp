// SPDX-License-Identifier: MIT
// Operands that an expression does not take.
#include <mhla/mhla.hpp>
//
#include <complex>

template <class T, int rank, int layout = Eigen::RowMajor>
using Tensor = Eigen::Tensor<T, rank, layout>;

struct Call {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  Tensor<float, 4> q, dy;
  Tensor<float, 3> mix, tokens;
  Tensor<double, 4> wide;
  Tensor<double, 3> wide_mix;
  Tensor<float, 4, Eigen::ColMajor> reversed;
  Tensor<float, 2, Eigen::ColMajor> reversed_mix;
  Tensor<std::complex<float>, 4> complex;
  Tensor<int, 4> integers;
  Tensor<int, 3> integer_mix;
  Tensor<Eigen::bfloat16, 4> bfloats;
  Tensor<Eigen::bfloat16, 3> narrow_mix;
  Tensor<Eigen::half, 4> halves;
  Eigen::MatrixXf matrix;

  void use() {
    attention(mhla::tokens_first(q), q, wide.cast<float>(), wide_mix.cast<float>());
    attention(q, q, reversed.swap_layout(), reversed_mix.swap_layout());
    attention(complex.real(), integers.cast<float>(), q, integer_mix.cast<float>());
    attention(bfloats, bfloats, halves.cast<Eigen::bfloat16>(), narrow_mix.cast<float>());
    attention.backward(q, q, q, mix, wide.cast<float>());
    mhla::heads_view(matrix, 4);
    mhla::heads_view(matrix.leftCols(8), 4);
#ifndef MHLA_CONTROL
    // Eigen's matrices have no batch, heads and tokens.
    // FIRST: mhla: attention(q, k, v, mix) takes tensors
    // EXPECT: mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap
    static_cast<void>(attention(q, q, q, matrix));
    // EXPECT: mhla: attention.backward(q, k, v, mix, dy) takes tensors: Eigen::Tensor
    attention.backward(q, q, q, matrix, q);
    // Integers have no attention, nor have complex numbers.
    // EXPECT: mhla: q, k, v and dy must be tensors of float, double, another floating-point type
    attention(integers, integers, integers, integer_mix);
    // EXPECT: mhla: q, k, v and dy must be tensors of float, double, another floating-point type
    attention(complex, complex, complex, mix);
    // Nothing is converted in silence.
    // EXPECT: mhla: q, k, v and dy must have one scalar type
    attention(q, q, wide, mix);
    // EXPECT: mhla: q, k, v and dy must have one scalar type
    attention(bfloats, bfloats, halves, mix);
    // EXPECT: mhla: q, k, v and dy must have one scalar type
    attention.backward(q, q, q, mix, wide);
    // mix has the type of the sums that it multiplies.
    // EXPECT: mhla: mix must have the type that q is accumulated in: float for float,
    // Eigen::bfloat16
    attention(q, q, q, wide_mix);
    // EXPECT: mhla: mix must have the type that q is accumulated in: float for float,
    // Eigen::bfloat16
    attention(bfloats, bfloats, bfloats, narrow_mix);
    // In a ColMajor tensor the axes are reversed: this is never meant.
    // EXPECT: mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor
    attention(q, q, reversed, mix);
    // EXPECT: mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor
    attention(q, q, q, reversed_mix);
    // One sequence alone is still a batch of one; dy has the shape of y; mix is shared by the
    // batch. EXPECT: mhla: q, k, v and dy must have rank 4:
    attention(tokens, q, q, mix);
    // EXPECT: mhla: q, k, v and dy must have rank 4:
    attention.backward(q, q, q, mix, tokens);
    // EXPECT: mhla: mix must have rank 3,
    attention(q, q, q, dy);
    // There are no heads to put before the tokens.
    // EXPECT: mhla: tokens_first takes a tensor of rank 4,
    mhla::tokens_first(tokens);
    // A view shows memory that is there, and stays.
    // EXPECT: mhla: heads_view and mix_view read a matrix where it lies: an Eigen::Matrix, a Map
    mhla::heads_view(matrix * matrix, 4);
    // EXPECT: mhla: heads_view and mix_view do not own memory, and this matrix is a temporary
    mhla::mix_view(Eigen::MatrixXf(matrix * matrix));
#endif
  }
};
