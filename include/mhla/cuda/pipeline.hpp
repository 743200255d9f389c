// SPDX-License-Identifier: MIT
// The CUDA backend's interface: forward_into and backward_into on strided views of device memory,
// and what they will do, in words and numbers.
#pragma once

#include <mhla/cuda/choose_path.hpp>
#include <mhla/policy/argument_errors.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What the path of a call is chosen by, with the head dimensions that the program compiles.
template <class T, class V>
Call<V, T> call_of(const V& attention, const Problem& problem, const CudaDevice& device,
                   Direction direction, StateUse state) {
  HeadDimsList compiled;  // none if there is nothing to compile
  if constexpr (has_fused_passes<V, T>) compiled = CompiledKernels<V, T>::head_dims();
  return {attention, problem, direction, state, compiled, device.products()};
}
/// Bytes of workspace of one direction.
template <class T, class V>
Index workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                     Direction direction, StateUse state) {
  const Problem problem = checked_problem(attention, shape);
  const Call<V, T> call = call_of<T>(attention, problem, device, direction, state);
  return memory_of(path_of(call, device), call).workspace_bytes;
}

/// Elements of the summaries of a call: what a forward state keeps.
template <class V>
Index call_summary_size(const V& attention, const Problem& problem) {
  if (problem.shape.empty()) return 0;
  Arena arena;
  const Extents<V> e(arena, attention, problem, problem.shape.batch);
  return checked_mul(e.key_summaries(),
                     checked_add(e.summary_size(), normalizes<V> ? e.feature_dim : 0));
}

/// How a path keeps the summaries of tensors of T.
template <class T>
SummaryFormat summary_format(CudaPath path, FloatProducts products) {
  if (path == CudaPath::cublas)
    return products == FloatProducts::tf32 && !std::is_same_v<T, double>
               ? SummaryFormat::of_tf32_products
               : SummaryFormat::accumulators;
  return std::is_same_v<T, Half> ? SummaryFormat::half_planes : SummaryFormat::bfloat16_planes;
}

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
  const auto microseconds = [](double seconds) { return whole(1e6 * seconds); };
  std::string text =
      joined({"path ", name_of(choice.path), ", ", choice.reason, "; products in ",
              choice.path == CudaPath::cublas ? cublas_products : "16 bits, added up in float"});
  // Consecutive paths that are refused for the same reason share a line.
  std::string refused;
  Refusal reason;
  const auto end_line = [&] {
    if (!refused.empty()) text += joined({"\n  ", refused, ": ", reason.text()});
    refused = {};
  };
  for (const PathChoice::Option& option : choice.options) {
    if (option.refusal.none()) continue;
    if (!(option.refusal == reason)) end_line();
    reason = option.refusal;
    refused += joined({refused.empty() ? "not " : ", not ", name_of(option.path)});
  }
  end_line();
  text +=
      joined({"\n  by a model of an ", gpu.name, ", which measurements are to replace, in us:"});
  for (const PathChoice::Option& option : choice.options) {
    if (!option.refusal.none()) continue;
    const Times times = option.cost.times(gpu);
    text += joined({"\n    ", name_of(option.path), " ", microseconds(option.cost.seconds(gpu)),
                    ", bound by ", option.cost.bound(gpu), ": bytes ", microseconds(times.bytes),
                    ", products ", microseconds(times.products), ", instructions ",
                    microseconds(times.instructions), ", launches ", microseconds(times.launches)});
  }
  return text;
}

inline std::string to_string(const CallCost& cost, const char* direction,
                             const char* cublas_products) {
  std::string text = joined({direction, ": ", to_string(cost.choice, cublas_products),
                             "\n  workspace ", cost.workspace_bytes, " bytes"});
  if (cost.choice.path == CudaPath::cublas)
    text += joined({", of which ", cublas_workspace_bytes, " are for cuBLAS"});
  return text +
         joined({"\n  batch in ", cost.parts, cost.parts == 1 ? " part of " : " parts of up to ",
                 cost.items_at_once, "\n  products ", cost.flops, " FLOP\n  tensors ",
                 cost.bytes_read, " bytes read, ", cost.bytes_written,
                 " bytes written; kernels move about ", cost.bytes_moved, " bytes\n"});
}

}  // namespace cuda

/// \addtogroup cuda
/// \{

/// Bytes of device memory that forward_into takes as workspace: exact. Pass StateUse::given for a
/// call with a CudaForwardState.
/// \throws ShapeError if attention and shape do not fit, or the device requests a path that cannot
/// run the call.
template <StorageScalar T, AttentionVariant V>
Index forward_workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                             StateUse state = StateUse::none) {
  return cuda::workspace_size<T>(attention, shape, device, cuda::Direction::forward, state);
}

/// Bytes of device memory that backward_into takes as workspace, whichever gradients are wanted:
/// exact. Otherwise as forward_workspace_size.
template <StorageScalar T, AttentionVariant V>
Index backward_workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                              StateUse state = StateUse::none) {
  return cuda::workspace_size<T>(attention, shape, device, cuda::Direction::backward, state);
}

/// Chooses what runs the calls of a shape, once; pass StateUse::given for calls with a
/// CudaForwardState. Allocates nothing and launches nothing.
/// \code
/// const mhla::CudaPlan plan = mhla::plan<float>(attention, call, cuda);
/// y.device(cuda.with(plan)) = attention(q, k, v, mix);
/// \endcode
/// \throws ShapeError if attention and shape do not fit, or the device requests a path that cannot
/// run the call.
template <StorageScalar T, AttentionVariant V>
CudaPlan plan(const V& attention, const Shape& shape, const CudaDevice& device,
              StateUse state = StateUse::none) {
  const Problem problem = checked_problem(attention, shape);
  CudaPlan plan(cuda::call_of<T>(attention, problem, device, cuda::Direction::forward, state));
  for (const auto direction : {cuda::Direction::forward, cuda::Direction::backward}) {
    if (direction == cuda::Direction::backward && !cuda::traits_of(device.path()).has_backward)
      continue;
    const auto call = cuda::call_of<T>(attention, problem, device, direction, state);
    const CudaPath path = cuda::path_of(call, device);
    plan.set(direction, path, cuda::memory_of(path, call));
  }
  return plan;
}

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
  if (!cuda::traits_of(device.path()).has_backward)
    return joined({forward, "backward: path ", cuda::name_of(device.path()), " has none\n"});
  return forward + part(cuda::Direction::backward, "backward");
}

/// Elements of the accumulator type that a CudaForwardState needs for a shape.
/// \throws ShapeError if attention and shape do not fit.
template <AttentionVariant V>
Index forward_state_size(const V& attention, const Shape& shape, const CudaDevice&) {
  return cuda::call_summary_size(attention, checked_problem(attention, shape));
}

/// y = attention(q, k, v, mix) in device memory, on the device's stream: shapes, aliasing and
/// errors as the CPU's forward_into. With `save`, the summaries are kept for backward_into; after a
/// CudaError there are none. Everything is checked before anything is launched; nothing is
/// allocated or waited for.
/// \throws ShapeError, also where the device requests a path that cannot run the call;
/// WorkspaceError; CudaError for memory that CUDA does not know, and where a CUDA or cuBLAS call
/// fails: see CudaDevice.
template <AttentionVariant V, StorageScalar T>
void forward_into(const V& attention, const CudaDevice& device, const InputView<T, 4>& q,
                  const InputView<T, 4>& k, const InputView<T, 4>& v,
                  const InputView<Accumulator<T>, 3>& mix, const TensorView<T, 4>& y,
                  WorkspaceView workspace,
                  std::type_identity_t<CudaForwardState<Accumulator<T>>*> save = nullptr) {
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_problem(attention, operands.shape());
  const Footprint memory = require_forward(attention, problem.shape, operands, y, workspace,
                                           save == nullptr ? WorkspaceView{} : save->memory());
  const auto call = cuda::call_of<T>(attention, problem, device, cuda::Direction::forward,
                                     save == nullptr ? StateUse::none : StateUse::given);
  const CudaPath path = cuda::path_of(call, device);
  require_workspace(workspace, cuda::memory_of(path, call).workspace_bytes, "mhla::forward_into");
  Span<Accumulator<T>> state;
  if (save != nullptr)
    state = save->prepare(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                          cuda::call_summary_size(attention, problem),
                          cuda::summary_format<T>(path, device.products()));
  cuda::CompiledKernels<V, T>::forward(
      path, {device, attention, problem, operands, y, workspace, state}, memory);
  if (save != nullptr) save->mark_filled();
}

/// The gradients of sum(dy o attention(q, k, v, mix)) in device memory, on the device's stream: as
/// the CPU's backward_into. The same bits in every run. With `saved`, summaries are taken from the
/// forward pass instead of recomputed: the same bits, unless the forward pass split the batch
/// differently and cuBLAS computes larger batches of products in another way.
/// \throws StateError if `saved` is of another call, and what forward_into throws; the gradients
/// are untouched then, unless a CUDA or cuBLAS call fails midway.
template <AttentionVariant V, class Query, class T = std::remove_const_t<Query>>
requires StorageScalar<T>
void backward_into(const V& attention, const CudaDevice& device, const TensorView<Query, 4>& q,
                   const InputView<T, 4>& k, const InputView<T, 4>& v,
                   const InputView<Accumulator<T>, 3>& mix, const InputView<T, 4>& dy,
                   const std::type_identity_t<GradientViews<T>>& gradients, Update update,
                   WorkspaceView workspace,
                   std::type_identity_t<const CudaForwardState<Accumulator<T>>*> saved = nullptr) {
  require_enumerator("update", update, Update::accumulate);
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_problem(attention, operands.shape());
  const Footprint memory =
      require_backward(attention, problem.shape, operands, dy, gradients, workspace,
                       saved == nullptr ? WorkspaceView{} : saved->memory());
  const auto call = cuda::call_of<T>(attention, problem, device, cuda::Direction::backward,
                                     saved == nullptr ? StateUse::none : StateUse::given);
  const CudaPath path = cuda::path_of(call, device);
  require_workspace(workspace, cuda::memory_of(path, call).workspace_bytes, "mhla::backward_into");
  Span<Accumulator<T>> state;
  if (saved != nullptr)
    state =
        saved->summaries(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                         cuda::summary_format<T>(path, device.products()));
  cuda::CompiledKernels<V, T>::backward(
      path, {device, attention, problem, operands, dy, gradients, update, workspace, state},
      memory);
}

/// \}

MHLA_NAMESPACE_END
