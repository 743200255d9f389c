// SPDX-License-Identifier: MIT
// Results and gradients that are assigned to what does not take them.
#include <mhla/attention.hpp>
#include <utility>

template <class T, int rank, int layout = Eigen::RowMajor>
using Tensor = Eigen::Tensor<T, rank, layout>;

struct Call {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  Tensor<float, 4> q, y, dq, dk, dv;
  Tensor<float, 3> mix, dmix, tokens;
  Tensor<double, 4> wide;
  Tensor<double, 3> wide_mix;
  Tensor<float, 4, Eigen::ColMajor> reversed;
  Tensor<Eigen::half, 4> halves;
  Tensor<Eigen::half, 3> narrow_mix;

  void use(float* memory) {
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
    // EXPECT: mhla: the result of attention(q, k, v, mix) has rank 4:
    tokens.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    // Nothing is converted in silence; sums of 16 bits are float, their result is not.
    // EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
    wide = attention(q, q, q, mix);
    // EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
    y = attention(halves, halves, halves, mix);
    // Axes are never reversed in silence.
    // EXPECT: mhla: the result of attention(q, k, v, mix) has the layout of its operands
    reversed.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
    // A view is no destination of an Eigen expression.
    // EXPECT: mhla: nothing is written through `view = ...`: call mhla::forward_into(
    mhla::make_view(memory, 1, 2, 3, 4) = attention(q, q, q, mix);
    // Four gradients do not fit one tensor, and take a backward pass; one is left out by name.
    // EXPECT: mhla: attention.backward(q, k, v, mix, dy) has four results
    dq = attention.backward(q, q, q, mix, q);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) take attention.backward(q, k, v, mix, dy)
    mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) = attention(q, q, q, mix);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) takes four gradients
    mhla::gradients(dq, dk, dv) = attention.backward(q, q, q, mix, q);
    // dmix where dv belongs.
    // EXPECT: mhla: dq, dk and dv must have rank 4, and dmix rank 3,
    mhla::gradients(mhla::skip, mhla::skip, dmix, mhla::skip) = attention.backward(q, q, q, mix, q);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the layout of q, k, v and mix
    mhla::gradients(reversed, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, wide_mix) =
        attention.backward(q, q, q, mix, q);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, narrow_mix) =
        attention.backward(halves, halves, halves, mix, halves);
    // A lazy expression has no memory to write to.
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) takes tensors, maps, tokens_first of them, views,
    // or
    mhla::gradients(dq * 2.f, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
    // EXPECT: mhla: gradients(dq, dk, dv, dmix) are written to, and one of them is const
    mhla::gradients(std::as_const(dq), mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};
