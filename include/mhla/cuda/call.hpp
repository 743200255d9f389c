// SPDX-License-Identifier: MIT
// A call, as it is handed from floor to floor: before its operands are known, what a path is chosen
// by; then a forward or a backward pass. Callers keep two things: the choice, and the summaries
// that a forward pass leaves for the backward pass.
#pragma once

#include <mhla/core/forward_state.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <string_view>

MHLA_NAMESPACE_BEGIN

namespace cuda {

enum class Direction { forward, backward };

/// What is known of a path, whatever the call.
struct PathTraits {
  CudaPath id;
  const char* name;
  bool has_backward = true;
  bool keeps_state = true;  // leaves its summaries in a forward state, and takes them from one
  bool is_fused = true;
};

/// What a path is chosen by.
template <class V, class T>
struct Call {
  const V& attention;
  const Problem& problem;
  Direction direction;
  StateUse state = StateUse::none;
  HeadDimsList compiled = {};
  FloatProducts products = FloatProducts::exact;

  bool is_backward() const { return direction == Direction::backward; }
};

/// The memory that a call takes.
struct CallMemory {
  Index workspace_bytes = 0;
  Index items_at_once = 0;  ///< of the batch, in each part but the last
};

/// The memory of a call by plans of this type.
template <class PlanType, class V, class T>
CallMemory memory_of(const Call<V, T>& call) {
  const bool backward = call.is_backward();
  const Index items = items_at_once<PlanType>(call.attention, call.problem, backward);
  return {plan_size<PlanType>(call.attention, call.problem, items, backward), items};
}

/// A checked forward pass. Summaries are left in `state` if it has memory.
template <class V, class T>
struct ForwardCall {
  static constexpr bool is_backward = false;
  const CudaDevice& device;
  const V& attention;
  const Problem& problem;
  OperandViews<T> operands;
  TensorView<T, 4> y;
  WorkspaceView workspace;
  Span<Accumulator<T>> state = {};
};

/// A checked backward pass. Summaries are taken from `state` if it has memory.
template <class V, class T>
struct BackwardCall {
  static constexpr bool is_backward = true;
  const CudaDevice& device;
  const V& attention;
  const Problem& problem;
  OperandViews<T> operands;
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;
  WorkspaceView workspace;
  Span<Accumulator<T>> state = {};
};

/// What runs checked calls; defined in instantiate.cuh. An undefined reference to a member means
/// that no .cu of the program has MHLA_INSTANTIATE_CUDA(V, T, ...).
template <class V, class T>
struct CompiledKernels {
  /// The head dimensions that it lists.
  static HeadDimsList head_dims();
  /// Bytes of shared memory that a thread block may use on the current device, or nominally if
  /// there is none.
  static Index shared_bytes();
  /// Runs a checked call on a path that can, if CUDA knows the memory that it touches.
  static void forward(CudaPath path, const ForwardCall<V, T>& call, const Footprint& memory);
  static void backward(CudaPath path, const BackwardCall<V, T>& call, const Footprint& memory);
};

/// Why a path cannot run a call, empty if it can: words are put together only where they are read.
struct Refusal {
  std::string_view sentence = {};
  HeadDimsPair missing = {-1, -1};  ///< or head dimensions without kernels

  bool none() const { return sentence.empty() && missing.key_dim < 0; }
  bool operator==(const Refusal&) const = default;
  std::string text() const {
    if (missing.key_dim < 0) return std::string(sentence);
    const auto [key_dim, value_dim] = missing;
    const std::string without =
        joined({"no kernels for head dimensions ", key_dim, "/", value_dim, ": "});
    if (!has_fused_kernels(key_dim, value_dim))
      return without + "they exist for " + fused_head_dims_said;
    return without +
           joined({"add mhla::HeadDims<", key_dim, ", ", value_dim, "> to MHLA_INSTANTIATE_CUDA"});
  }
};

/// Why fused paths cannot run calls of these types.
template <class V, class T>
constexpr std::string_view refusal_of_types() {
  if (std::is_same_v<T, double>) return "double tensors";
  if (std::is_same_v<T, float>) return "float tensors";
  if (is_rowwise<V>) return "the feature map sees whole rows";
  if (is_structured<V>) return "structured mixing";
  if (mixes_products<V>) return "MixedProduct";
  if (is_causal_within_block<V> && mixes_key_sums<V> && rotates<V>)
    return "Causal with MixedKeySum and a rotation";
  return {};
}
/// Whether fused kernels can be compiled at all.
template <class V, class T>
inline constexpr bool has_fused_passes = refusal_of_types<V, T>().empty();

/// Why no fused path can run a call.
template <class V, class T>
Refusal fused_refusal(const Call<V, T>& call) {
  const Shape& shape = call.problem.shape;
  if (!has_fused_passes<V, T>) return {refusal_of_types<V, T>()};
  if (shape.batch == 0 || shape.heads == 0 || shape.query_tokens == 0 || shape.key_tokens == 0)
    return {"a tensor is empty"};
  if (shape.mix_per_item()) return {"a mixing matrix for each batch item"};
  if (!call.compiled.has(shape.key_dim, shape.value_dim))
    return {{}, {shape.key_dim, shape.value_dim}};
  return {};
}

}  // namespace cuda

/// What runs the calls of one variant, scalar type and shape, decided once by mhla::plan: a small
/// value, on the host. Calls on `device.with(plan)` take it instead of choosing anew.
/// \ingroup cuda
class CudaPlan {
 public:
  /// Bytes of device memory that forward_into takes as workspace: exact.
  Index forward_workspace_size() const { return memory_[0].workspace_bytes; }
  /// Likewise for backward_into, whichever gradients are wanted.
  Index backward_workspace_size() const { return memory_[1].workspace_bytes; }
  /// What runs the forward pass.
  CudaPath forward_path() const { return path_[0]; }
  /// What runs the backward pass.
  CudaPath backward_path() const { return path_[1]; }

  /// \cond INTERNAL
  template <class V, class T>
  explicit CudaPlan(const cuda::Call<V, T>& call)
      : variant_(fingerprint::number_of_types<V, T>()),
        shape_(call.problem.shape),
        query_blocks_(call.problem.query_blocks),
        key_blocks_(call.problem.key_blocks),
        state_(call.state) {}
  void set(cuda::Direction direction, CudaPath path, const cuda::CallMemory& memory) {
    path_[direction == cuda::Direction::backward] = path;
    memory_[direction == cuda::Direction::backward] = memory;
  }
  // The path of a call; throws ShapeError if it is another one than planned.
  template <class V, class T>
  CudaPath path(const cuda::Call<V, T>& call) const {
    const CudaPath path = path_[call.is_backward()];
    if (variant_ != fingerprint::number_of_types<V, T>() || !(shape_ == call.problem.shape) ||
        query_blocks_ != call.problem.query_blocks || key_blocks_ != call.problem.key_blocks ||
        state_ != call.state || path == CudaPath::automatic)
      throw ShapeError(
          "mhla: the CudaPlan is for another variant, scalar type, shape or direction, or for "
          "calls with a forward state or without; mhla::plan makes one for this call");
    return path;
  }
  /// \endcond

 private:
  std::uint64_t variant_;
  Shape shape_;
  Index query_blocks_;
  Index key_blocks_;
  StateUse state_;
  // Of the forward and the backward pass; `automatic` where the path has none.
  CudaPath path_[2] = {CudaPath::automatic, CudaPath::automatic};
  cuda::CallMemory memory_[2] = {};
};

/// \cond INTERNAL
// How summaries are stored in a CudaForwardState: in the accumulator type, by which products, or,
// by fused kernels, each as two 16-bit numbers, the rounded value and, in a second plane, the
// remainder, which takes the same memory.
enum class SummaryFormat { accumulators, of_tf32_products, bfloat16_planes, half_planes };
/// \endcond

/// Block summaries S_b and key sums z_b of one forward pass, in device memory:
/// forward_state_size(attention, shape, device) elements, or more, borrowed. The object itself is
/// on the host and describes the contents. Valid for the k and v it was saved with, which only the
/// caller can know, and for later calls on the stream; a backward pass of another shape or variant,
/// or with other FloatProducts, throws StateError. Masks and Favor's projection, which the host
/// cannot read, are compared by address and layout. A moved-from state has no memory.
///
/// A graph that contains a forward pass with a save refills the memory in every replay.
/// \ingroup cuda
template <class A>
class CudaForwardState {
  static_assert(std::is_floating_point_v<A>,
                "mhla: a CudaForwardState has numbers of the type that tensors are accumulated in: "
                "float for float, mhla::BFloat16 and mhla::Half, double for double");

 public:
  CudaForwardState() = default;
  /// Borrows device memory.
  explicit CudaForwardState(Span<A> memory) : memory_(memory) {}
  /// Leaves a state without memory.
  CudaForwardState(CudaForwardState&& other) noexcept { *this = (std::move)(other); }
  /// Leaves a state without memory.
  CudaForwardState& operator=(CudaForwardState&& other) noexcept {
    memory_ = std::exchange(other.memory_, {});
    call_ = (std::move)(other.call_);
    format_ = other.format_;
    return *this;
  }

  /// Its device memory.
  WorkspaceView memory() const {
    return {reinterpret_cast<std::byte*>(memory_.data), memory_.size * Index{sizeof(A)}};
  }

  /// \cond INTERNAL
  // Room for the summaries of a call; overwrites what was saved before. Throws WorkspaceError, with
  // nothing changed, if the memory is too small, or not aligned to A, or to 16 bytes for planes.
  Span<A> prepare(const Shape& shape, std::uint64_t variant, Index count, SummaryFormat format) {
    if (memory_.size < count)
      throw WorkspaceError({"mhla: save(state): ", count,
                            " elements of device memory are needed, the state has ", memory_.size,
                            "; forward_state_size says how many"});
    const bool planes =
        format == SummaryFormat::bfloat16_planes || format == SummaryFormat::half_planes;
    const std::size_t alignment = planes ? 16 : alignof(A);
    if (reinterpret_cast<std::uintptr_t>(memory_.data) % alignment != 0)
      throw WorkspaceError(
          {"mhla: save(state): the memory is not aligned to ", alignment, " bytes"});
    call_.begin(shape, variant, count);
    format_ = format;
    return {memory_.data, count};
  }
  // Called by forward when everything that fills it is on the stream.
  void mark_filled() { call_.mark_filled(); }

  // The summaries saved for a call; throws StateError if something else, or nothing, was saved.
  Span<A> summaries(const Shape& shape, std::uint64_t variant, SummaryFormat format) const {
    const Index count = call_.count(shape, variant);
    if (format != format_)
      throw StateError(
          "mhla: saved(state): the state was saved on another CudaPath or with other "
          "FloatProducts; give both passes a CudaDevice that asks for the same ones");
    return {memory_.data, count};
  }

  /// \endcond

 private:
  Span<A> memory_;
  SavedCall call_;
  SummaryFormat format_ = SummaryFormat::accumulators;
};

MHLA_NAMESPACE_END
