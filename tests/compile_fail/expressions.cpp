// SPDX-License-Identifier: MIT
// Operands that an expression does not take, then results and gradients that are assigned to what
// does not take them: nothing is converted, reversed or copied in silence, integers and complex
// numbers have no attention, and a view shows memory that is there and stays.
// FIRST: mhla: attention(q, k, v, mix) takes tensors
// EXPECT: mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap
// EXPECT: mhla: attention.backward(q, k, v, mix, dy) takes tensors: Eigen::Tensor
// EXPECT 2: mhla: q, k, v and dy must be tensors of float, double, another floating-point type
// EXPECT 3: mhla: q, k, v and dy must have one scalar type
// EXPECT 2: mhla: mix must have the type that q is accumulated in: float for float,
// EXPECT 2: mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor
// EXPECT 2: mhla: q, k, v and dy must have rank 4:
// EXPECT: mhla: mix must have rank 3,
// EXPECT: mhla: tokens_first takes a tensor of rank 4,
// EXPECT: mhla: heads_view and mix_view read a matrix where it lies: an Eigen::Matrix, a Map
// EXPECT: mhla: heads_view and mix_view do not own memory, and this matrix is a temporary
// EXPECT: mhla: the result of attention(q, k, v, mix) has rank 4:
// EXPECT 2: mhla: the result of attention(q, k, v, mix) has the scalar type of q
// EXPECT: mhla: the result of attention(q, k, v, mix) has the layout of its operands
// EXPECT: mhla: nothing is written through `view = ...`: call mhla::forward_into(
// EXPECT: mhla: attention.backward(q, k, v, mix, dy) has four results
// EXPECT: mhla: gradients(dq, dk, dv, dmix) take attention.backward(q, k, v, mix, dy)
// EXPECT: mhla: gradients(dq, dk, dv, dmix) takes four gradients
// EXPECT: mhla: dq, dk and dv must have rank 4, and dmix rank 3,
// EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the layout of q, k, v and mix
// EXPECT 2: mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix
// EXPECT: mhla: gradients(dq, dk, dv, dmix) takes tensors, maps, tokens_first of them, views,
// EXPECT: mhla: gradients(dq, dk, dv, dmix) are written to, and one of them is const
#include <mhla/mhla.hpp>
//
#include <complex>
#include <utility>

template <class T, int rank, int layout = Eigen::RowMajor>
using Tensor = Eigen::Tensor<T, rank, layout>;

struct Call {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  Tensor<float, 4> q, y, dy, dq, dk, dv;
  Tensor<float, 3> mix, dmix, tokens;
  Tensor<double, 4> wide;
  Tensor<double, 3> wide_mix;
  Tensor<float, 4, Eigen::ColMajor> reversed;
  Tensor<float, 2, Eigen::ColMajor> reversed_mix;
  Tensor<std::complex<float>, 4> complex;
  Tensor<int, 4> integers;
  Tensor<int, 3> integer_mix;
  Tensor<Eigen::bfloat16, 4> bfloats;
  Tensor<Eigen::half, 4> halves;
  Tensor<Eigen::half, 3> narrow_mix;
  Eigen::MatrixXf matrix;

  void use(float* memory) {
    attention(mhla::tokens_first(q), q, wide.cast<float>(), wide_mix.cast<float>());
    attention(q, q, reversed.swap_layout(), reversed_mix.swap_layout());
    attention(complex.real(), integers.cast<float>(), q, integer_mix.cast<float>());
    attention(bfloats, bfloats, halves.cast<Eigen::bfloat16>(), narrow_mix.cast<float>());
    attention.backward(q, q, q, mix, wide.cast<float>());
    mhla::heads_view(matrix, 4);
    mhla::heads_view(matrix.leftCols(8), 4);
    y.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    wide = attention(q, q, q, mix).cast<double>();
    reversed.swap_layout().device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    y = attention(halves, halves, halves, mix).cast<float>();
    Eigen::TensorMap<Tensor<float, 4>>(memory, 1, 2, 3, 4) = attention(q, q, q, mix);
    mhla::gradients(mhla::tokens_first(dq), dk, mhla::skip, dmix) =
        attention.backward(q, q, q, mix, q);
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, dmix) =
        attention.backward(halves, halves, halves, mix, halves);
#ifndef MHLA_CONTROL
    static_cast<void>(attention(q, q, q, matrix));
    attention.backward(q, q, q, matrix, q);
    attention(integers, integers, integers, integer_mix);
    attention(complex, complex, complex, mix);
    attention(q, q, wide, mix);
    attention(bfloats, bfloats, halves, mix);
    attention.backward(q, q, q, mix, wide);
    attention(q, q, q, wide_mix);
    attention(bfloats, bfloats, bfloats, narrow_mix);
    attention(q, q, reversed, mix);
    attention(q, q, q, reversed_mix);
    attention(tokens, q, q, mix);
    attention.backward(q, q, q, mix, tokens);
    attention(q, q, q, dy);
    mhla::tokens_first(tokens);
    mhla::heads_view(matrix * matrix, 4);
    mhla::mix_view(Eigen::MatrixXf(matrix * matrix));
    tokens.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    wide = attention(q, q, q, mix);
    y = attention(halves, halves, halves, mix);
    reversed.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    mhla::make_view(memory, 1, 2, 3, 4) = attention(q, q, q, mix);
    dq = attention.backward(q, q, q, mix, q);
    mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) = attention(q, q, q, mix);
    mhla::gradients(dq, dk, dv) = attention.backward(q, q, q, mix, q);
    mhla::gradients(mhla::skip, mhla::skip, dmix, mhla::skip) = attention.backward(q, q, q, mix, q);
    mhla::gradients(reversed, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, wide_mix) =
        attention.backward(q, q, q, mix, q);
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, narrow_mix) =
        attention.backward(halves, halves, halves, mix, halves);
    mhla::gradients(dq * 2.f, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
    mhla::gradients(std::as_const(dq), mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};
