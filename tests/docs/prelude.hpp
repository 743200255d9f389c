// SPDX-License-Identifier: MIT
// What the \code blocks of the headers are compiled with: the library, and the objects that they
// use.
#pragma once
#define EIGEN_USE_THREADS
#include <cstdint>
#include <iostream>
#include <mhla/cuda.hpp>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <mhla/diagnostics/rank.hpp>
#include <mhla/distributed.hpp>
#include <mhla/eigen/fork_join_device.hpp>
#include <mhla/fork_join.hpp>
#include <mhla/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Matrices = Eigen::Tensor<float, 3, Eigen::RowMajor>;
using View = mhla::TensorView<float, 4>;

struct Ranks {
  mhla::Index rank() const;
  mhla::Index size() const;
  void all_gather(const void*, void*, mhla::Span<const mhla::Part>) const;
  void all_to_all(const void*, mhla::Span<const mhla::Part>, void*,
                  mhla::Span<const mhla::Part>) const;
};

struct Objects {
  mhla::Attention<mhla::Relu, mhla::Blocks2D> attention;
  mhla::Attention<mhla::Relu, mhla::Blocks1D> sequence;
  mhla::Index batch, heads, tokens, dim, key_dim, width, blocks, count;
  Ranks ranks;
  mhla::Shape call;
  std::vector<float> rows;
  Eigen::MatrixXf qkv;
  Eigen::VectorXf qkv_of_token;
  Tensor q, k, v, x, y, dy, dq, dk, dv, q_t, y_t;
  Matrices mix, dmix;
  View q_view, k_view, v_view, y_view, dy_view, dq_view, dk_view, dv_view;
  View prompt, prompt_out, token, token_out;
  mhla::TensorView<float, 3> mix_view, dmix_view;
  mhla::TensorView<const std::uint8_t, 2> token_mask;
  mhla::Workspace workspace;
  mhla::ForwardState<float> state;
  mhla::SerialExecutor executor;
  Eigen::ThreadPoolDevice pool;
  CUstream_st* stream;
  cublasContext* cublas;
  mhla::WorkspaceView device_workspace;
  std::byte* device_bytes;
  mhla::CudaDevice cuda;
  Eigen::TensorMap<Tensor> q_map, k_map, v_map, y_map, dy_map, dq_map, dk_map, dv_map;
  Eigen::TensorMap<Matrices> mix_map, dmix_map;
};

/// The same of sequences, as the pages speak of them.
struct PageObjects : Objects {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  std::vector<mhla::Index> offsets;
  mhla::TensorView<const std::uint8_t, 2> mask;
};
