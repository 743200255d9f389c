// SPDX-License-Identifier: MIT
// What a call does on a CudaDevice, in words and numbers, before it is made. Needs no CUDA header.
#pragma once

#include <mhla/cuda/pipeline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What explain(attention, shape, device) prints, for one direction.
struct CallCost {
  PathChoice choice;
  Index workspace_bytes = 0;
  Index parts = 0;          ///< of the batch, run one after another
  Index items_at_once = 0;  ///< batch items in each part but the last
  Index flops = 0;          ///< of the products: blocks padded to the longest, tiles padded
  Index bytes_moved = 0;    ///< by the model, of all kernels
  Index bytes_read = 0;     ///< of q, k, v, mix and dy, each once
  Index bytes_written = 0;  ///< of y, or of dq, dk, dv and dmix
};

/// A cost as an integer.
inline Index whole(double cost) {
  constexpr double most = 9e18;
  return static_cast<Index>(std::llround(cost < most ? cost : most));
}

/// What forward_into, or backward_into with every gradient wanted, takes. FLOPs exclude feature
/// maps, rotations and normalizers, which are linear in the tokens.
template <StorageScalar T, AttentionVariant V>
CallCost call_cost(const V& attention, const Shape& shape, const CudaDevice& device,
                   Direction direction) {
  using A = Accumulator<T>;
  const Problem problem = checked_problem(attention, shape);
  CallCost cost;
  const auto call = call_of<T>(attention, problem, device, direction, StateUse::none);
  cost.choice = choose_path(call, device, gpu_at_hand<V, T>());
  const CallMemory memory = memory_of(cost.choice.path, call);
  cost.items_at_once = memory.items_at_once;
  cost.parts = cost.items_at_once == 0 ? 0 : ceil_div(shape.batch, cost.items_at_once);
  cost.workspace_bytes = memory.workspace_bytes;
  cost.flops = whole(cost.choice.cost().flops());
  cost.bytes_moved = whole(cost.choice.cost().bytes());

  const auto bytes = [&](Index heads, Index tokens, Index dim) {
    return checked_mul(checked_mul(shape.batch, heads),
                       checked_mul(tokens, checked_mul(dim, Index{sizeof(T)})));
  };
  const Index mix = checked_mul(checked_mul(shape.mix_heads, shape.mix_query_blocks),
                                checked_mul(shape.mix_key_blocks, Index{sizeof(A)}));
  const Index operands = bytes(shape.heads, shape.query_tokens, shape.key_dim) +
                         bytes(shape.kv_heads, shape.key_tokens, shape.key_dim + shape.value_dim);
  const Index outputs = bytes(shape.heads, shape.query_tokens, shape.value_dim);
  const bool backward = direction == Direction::backward;
  cost.bytes_read = operands + mix + (backward ? outputs : 0);
  cost.bytes_written = backward ? operands + mix : outputs;
  return cost;
}

/// Which path, why, and what each would take.
inline std::string to_string(const PathChoice& choice, const char* cublas_products) {
  const NominalGpu& gpu = h200;
  const auto microseconds = [](double seconds) { return std::to_string(whole(1e6 * seconds)); };
  std::string text =
      std::string("path ") + name_of(choice.path) + ", " + choice.reason + "; products in " +
      (choice.path == CudaPath::cublas ? cublas_products : "16 bits, added up in float");
  // Consecutive paths that are refused for the same reason share a line.
  std::string refused;
  Refusal reason;
  const auto end_line = [&] {
    if (!refused.empty()) text += "\n  " + refused + ": " + reason.text();
    refused = {};
  };
  for (const PathChoice::Option& option : choice.options) {
    if (option.refusal.none()) continue;
    if (!(option.refusal == reason)) end_line();
    reason = option.refusal;
    refused += std::string(refused.empty() ? "not " : ", not ") + name_of(option.path);
  }
  end_line();
  text += std::string("\n  by a model of an ") + gpu.name +
          ", which measurements are to replace, in us:";
  for (const PathChoice::Option& option : choice.options) {
    if (!option.refusal.none()) continue;
    const Times times = option.cost.times(gpu);
    text += std::string("\n    ") + name_of(option.path) + " " +
            microseconds(option.cost.seconds(gpu)) + ", bound by " + option.cost.bound(gpu) +
            ": bytes " + microseconds(times.bytes) + ", products " + microseconds(times.products) +
            ", instructions " + microseconds(times.instructions) + ", launches " +
            microseconds(times.launches);
  }
  return text;
}

inline std::string to_string(const CallCost& cost, const char* direction,
                             const char* cublas_products) {
  const auto number = [](Index n) { return std::to_string(n); };
  std::string text = std::string(direction) + ": " + to_string(cost.choice, cublas_products) +
                     "\n  workspace " + number(cost.workspace_bytes) + " bytes";
  if (cost.choice.path == CudaPath::cublas)
    text += ", of which " + number(cublas_workspace_bytes) + " are for cuBLAS";
  return text + "\n  batch in " + number(cost.parts) +
         (cost.parts == 1 ? " part of " : " parts of up to ") + number(cost.items_at_once) +
         "\n  products " + number(cost.flops) + " FLOP\n  tensors " + number(cost.bytes_read) +
         " bytes read, " + number(cost.bytes_written) + " bytes written; kernels move about " +
         number(cost.bytes_moved) + " bytes\n";
}

}  // namespace cuda

/// \addtogroup cuda
/// \{

/// Says which path forward_into and backward_into take on the device, and why; why not the fused
/// ones, or how long each would take by the cost model; the workspace, the parts of the batch,
/// FLOPs of the products, and bytes of the tensors and of all kernels. Launches nothing.
/// \code
/// std::cout << mhla::explain<float>(attention, call, cuda);
/// \endcode
/// \throws ShapeError if attention and shape do not fit, or the device requests a path that cannot
/// run the call.
template <StorageScalar T, AttentionVariant V>
std::string explain(const V& attention, const Shape& shape, const CudaDevice& device) {
  const char* const products = std::is_same_v<Accumulator<T>, double> ? "double"
                               : device.products() == FloatProducts::tf32
                                   ? "TF32, as the device asks for"
                                   : "float, never TF32";
  const auto part = [&](cuda::Direction direction, const char* name) {
    return cuda::to_string(cuda::call_cost<T>(attention, shape, device, direction), name, products);
  };
  const std::string forward = part(cuda::Direction::forward, "forward");
  if (!cuda::has_backward(device.path()))
    return forward + "backward: path " + cuda::name_of(device.path()) + " has none\n";
  return forward + part(cuda::Direction::backward, "backward");
}

/// \}

MHLA_NAMESPACE_END
