// SPDX-License-Identifier: MIT
// What a CudaDevice does not evaluate, and what has no kernels.
#include <mhla/attention.hpp>
#include <mhla/cuda.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/stages.hpp>

template <class T, int rank>
using Tensor = Eigen::Tensor<T, rank, Eigen::RowMajor>;
template <class Mixing>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                 mhla::NoRotation, Mixing>;
template <class Dims>
using HeadDims = mhla::cuda::HeadDimsOf<Dims>;

struct Call {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  Eigen::TensorMap<Tensor<float, 4>> q, y;
  Eigen::TensorMap<Tensor<float, 3>> mix;
  Eigen::TensorMap<Tensor<double, 4>> wide;
  Tensor<long double, 4> longer;
  Tensor<long double, 3> longer_mix;
  const mhla::CudaDevice& cuda;

  void use() {
    mhla::tokens_first(y).device(cuda) = attention(mhla::tokens_first(q), q, q, mix);
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q);
    const mhla::CudaStages<Sequence<mhla::DenseMixing>, float> stages({}, mhla::Shape{});
    HeadDims<mhla::HeadDims<128, 256>>::list();
#ifndef MHLA_CONTROL
    // Sums around an attention.
    // EXPECT: mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and nothing
    // around
    y.device(cuda) += attention(q, q, q, mix);
    // EXPECT: mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and nothing
    // around
    y.device(cuda) = q - attention(q, q, q, mix);
    // Operands that would have to be evaluated first.
    // EXPECT: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
    y.device(cuda) = attention(q * 2.f, q, q, mix);
    // EXPECT: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
    y.device(cuda) = attention(q, q, q, mix.abs());
    // EXPECT: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q - q);
    // A result that would have to be copied to where it belongs, or converted.
    // EXPECT: mhla: on a CudaDevice the result of attention(q, k, v, mix) is assigned to a
    // TensorMap of
    y.slice(y.dimensions(), y.dimensions()).device(cuda) = attention(q, q, q, mix);
    // EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
    wide.device(cuda) = attention(q, q, q, mix);
    // EXPECT: mhla: a CudaDevice computes with float, double, Eigen::bfloat16 and Eigen::half
    longer.device(cuda) = attention(longer, longer, longer, longer_mix);
    // On a GPU no stage hands states on.
    // EXPECT: mhla: CudaStages have rows of the mixing matrix: use DenseMixing
    const mhla::CudaStages<Sequence<mhla::RecurrentMixing>, float> recurrent({}, mhla::Shape{});
    // Head dimensions that fused kernels are not written for, and none.
    // EXPECT: mhla: fused CUDA kernels exist for head dimensions
    HeadDims<mhla::HeadDims<80, 80>>::list();
    // EXPECT: mhla: MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...) takes head dimensions behind the
    // scalar
    static_cast<void>(HeadDims<mhla::BFloat16>::size);
#endif
  }
};
