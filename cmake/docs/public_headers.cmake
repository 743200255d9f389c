# SPDX-License-Identifier: MIT
# The headers that users' programs include or whose names they use, below include/mhla: what the API
# reference documents. All others are internal.
set(MHLA_PUBLIC_HEADERS
  attention.hpp cuda.hpp decoding.hpp fork_join.hpp mhla.hpp mixing_matrix.hpp packed.hpp
  stages.hpp structured_mixing.hpp version.hpp views.hpp
  core/config.hpp core/error.hpp core/executor.hpp core/forward_state.hpp core/gradient_views.hpp
  core/index.hpp core/scalar.hpp core/shape.hpp core/tensor_view.hpp
  core/workspace.hpp
  policy/batch_layout.hpp policy/block_geometry.hpp policy/causality.hpp policy/decoding_checks.hpp
  policy/expand_mixing.hpp policy/feature_map.hpp policy/mixing.hpp policy/mixing_product.hpp
  policy/normalizer.hpp policy/problem.hpp policy/recurrent_mixing.hpp policy/rotation.hpp policy/separable_mixing.hpp
  policy/variant.hpp
  cpu/pipeline.hpp cpu/instantiate_kernels.hpp
  eigen/cuda_executor.hpp eigen/fork_join_device.hpp eigen/forward_op.hpp eigen/gradient_op.hpp
  eigen/mixing_matrix.hpp eigen/tensor_views.hpp
  eigen/thread_pool_executor.hpp
  cuda/call.hpp cuda/decoding.hpp cuda/device.hpp cuda/head_dims.hpp cuda/instantiate.cuh
  cuda/instantiate_decoder.cuh cuda/pipeline.hpp
  reference/linear_attention.hpp reference/mhla.hpp reference/softmax_attention.hpp
  reference/token_matrix.hpp
  testing/comparison.hpp testing/gradient_check.hpp testing/host_tensor.hpp
  testing/random_tensor.hpp
  diagnostics/attention_matrix.hpp diagnostics/bounds.hpp diagnostics/cost.hpp
  diagnostics/rank.hpp)
