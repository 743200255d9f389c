// SPDX-License-Identifier: MIT
// What a CudaDevice does not evaluate: sums around an attention, operands that would have to be
// evaluated first, results that would have to be copied or converted; and what has no kernels.
// EXPECT 2: mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and nothing
// EXPECT 3: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
// EXPECT: mhla: on a CudaDevice the result of attention(q, k, v, mix) is assigned to a
// EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
// EXPECT: mhla: a CudaDevice computes with float, double, Eigen::bfloat16 and Eigen::half
// EXPECT: mhla: CudaStages have rows of the mixing matrix: use DenseMixing
// EXPECT: mhla: fused CUDA kernels exist for head dimensions
// EXPECT: mhla: MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...) takes head dimensions behind the
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
    y.device(cuda) += attention(q, q, q, mix);
    y.device(cuda) = q - attention(q, q, q, mix);
    y.device(cuda) = attention(q * 2.f, q, q, mix);
    y.device(cuda) = attention(q, q, q, mix.abs());
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q - q);
    y.slice(y.dimensions(), y.dimensions()).device(cuda) = attention(q, q, q, mix);
    wide.device(cuda) = attention(q, q, q, mix);
    longer.device(cuda) = attention(longer, longer, longer, longer_mix);
    const mhla::CudaStages<Sequence<mhla::RecurrentMixing>, float> recurrent({}, mhla::Shape{});
    HeadDims<mhla::HeadDims<80, 80>>::list();
    static_cast<void>(HeadDims<mhla::BFloat16>::size);
#endif
  }
};
