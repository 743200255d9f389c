// SPDX-License-Identifier: MIT
// Stages on a CUDA device: the counterpart of <mhla/stages.hpp> in the caller's device memory.
#pragma once

#include <mhla/cuda/choose_path.hpp>
#include <mhla/stages/basic_stages.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Runs stages on some blocks, whose views have been checked. An undefined reference to a member
/// means that no .cu of the program has MHLA_INSTANTIATE_CUDA_STAGES(V, T).
template <class V, class T>
class StageKernels {
  using A = Accumulator<T>;
  using Rows = TensorView<const A, 2>;

 public:
  StageKernels(const stages::Part<V>& part, const CudaDevice& device)
      : attention_(with_masks(part)), problem_(part.problem), device_(device) {}

  static void require_room(WorkspaceView workspace, Index bytes) {
    require_workspace(workspace, bytes, "mhla::CudaStages",
                      "CudaStages::workspace_size says how many a stage takes");
  }
  Index workspace_size() const {
    if (problem_.shape.empty()) return 0;
    const bool backward =
        problem_.stage == Stage::read_out_gradient || problem_.stage == Stage::summarize_gradient;
    const Call<V, T> call{attention_, problem_,
                          backward ? Direction::backward : Direction::forward};
    return memory_of<CublasPath::Plan<V, T>>(call).workspace_bytes;
  }
  void run(const stages::Summarize<T>& call, WorkspaceView workspace) const;
  void run(const stages::ReadOut<T>& call, WorkspaceView workspace) const;
  void run(const stages::ReadOutGradient<T>& call, WorkspaceView workspace) const;
  void run(const stages::MixGradient<T>& call, WorkspaceView workspace) const;
  void run(const stages::SummarizeGradient<T>& call, WorkspaceView workspace) const;

  /// Throws unless CUDA knows it.
  static void require_memory(const Footprint& memory);

  // What else is done to tensors, and to rows of sums that travel.
  static void copy_tensor(const CudaDevice& device, const TensorView<const T, 4>& from,
                          const TensorView<T, 4>& to);
  static void copy_tensor(const CudaDevice& device, const TensorView<const A, 3>& from,
                          const TensorView<A, 3>& to);
  static void clear_tensor(const CudaDevice& device, const TensorView<T, 4>& tensor);
  static void clear_tensor(const CudaDevice& device, const TensorView<A, 3>& tensor);
  static void clear_masked(const CudaDevice& device, const TensorView<const std::uint8_t, 2>& mask,
                           const TensorView<T, 4>& tensor);
  static void round_rows(const CudaDevice& device, const SumsLayout& of, const Rows& rows,
                         std::byte* to);
  static void widen_rows(const CudaDevice& device, const SumsLayout& of, const std::byte* from,
                         const TensorView<A, 2>& rows);

 private:
  // With masks of those sides alone of which a stage has tokens; throws unless they fit.
  static V with_masks(const stages::Part<V>& part) {
    V attention = part.attention;
    if constexpr (requires { attention.masks; }) {
      TokenMasks& masks = attention.masks;
      const Problem& problem = part.problem;
      const bool own_keys = is_causal_within_block<V> && problem.queries.count > 0;
      if (own_keys) masks.require_one();
      if (problem.queries.count == 0) masks.query = {};
      if (problem.keys.count == 0 && !own_keys) masks.key = {};
      const Index batch = problem.shape.batch;
      TokenMasks::require_fit(masks.query, "masks.query", batch,
                              problem.query_grid.num_tokens(problem.held_queries));
      TokenMasks::require_fit(
          masks.key, "masks.key", batch,
          own_keys ? masks.query.extent[1] : problem.key_grid.num_tokens(problem.held_keys));
    }
    return attention;
  }
  /// A part of a pass in the caller's memory. \throws WorkspaceError unless it has room.
  ForwardCall<V, T> in(WorkspaceView workspace, const OperandViews<T>& x) const {
    require_room(workspace, workspace_size());
    return {device_, attention_, problem_, x, {}, workspace};
  }
  BackwardCall<V, T> in(WorkspaceView workspace, const OperandViews<T>& x,
                        const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                        Update of_mix) const {
    require_room(workspace, workspace_size());
    return {device_, attention_, problem_, x, dy, gradients, of_mix, workspace};
  }

  V attention_;
  const Problem& problem_;
  const CudaDevice& device_;
};

/// A CUDA device as what BasicStages run on.
struct StageBackend {
  template <class E>
  static constexpr bool runs_on = std::is_convertible_v<const E*, const CudaDevice*>;
  static constexpr Borrowed compared = Borrowed::nothing;
  template <class V, class T>
  static constexpr bool rounds = false;

  template <class V, class T>
  using Kernels = StageKernels<V, T>;
  template <class V, class T>
  using Run = StageKernels<V, T>;

  template <class V, class T>
  class Blocks : public StageBlocks<V, T> {
    static_assert(!is_structured<V>,
                  "mhla: CudaStages have rows of the mixing matrix: use DenseMixing, with the "
                  "matrix that mhla::expand makes");

   public:
    using StageBlocks<V, T>::StageBlocks;
  };

  static void require_device(const CudaDevice& device) {
    if (device.plan() != nullptr)
      throw ShapeError(
          "mhla: the CudaDevice has a plan, which CudaStages cannot use: leave it out");
    if (device.path() != CudaPath::automatic && device.path() != CudaPath::cublas)
      throw ShapeError({"mhla: the CudaDevice was given CudaPath::", name_of(device.path()),
                        ", which has no stages: they run on CudaPath::cublas"});
  }
  // cuBLAS reads these rows as a matrix.
  template <class X, int rank>
  static void require_layout(Stage stage, const char* name, stages::Holds holds,
                             const TensorView<X, rank>& rows) {
    if (rank != 2 || (stage != Stage::mix_gradient && holds != stages::Holds::seen)) return;
    if (rows.extent[0] > 1 && rows.stride[0] < rows.extent[1])
      throw ShapeError({"mhla: ", name, ": axis blocks' stride is ", rows.stride[0],
                        " but must be ", rows.extent[1], " or more; on CUDA rows do not overlap"});
  }
};

}  // namespace cuda

/// \ingroup cuda
/// mhla::Stages on a CUDA device: the same calls with a CudaDevice in place of the executor, views
/// of device memory, and a WorkspaceView{address, bytes} of workspace_size() bytes there. They run
/// on cuBLAS, in stream order; nothing is allocated or waited for.
///
/// Called in turn, stages make what the whole pass on CudaPath::cublas makes, to the bit where
/// cuBLAS sums a product's terms in one order whatever its number of rows, and of products in a
/// batch; otherwise they differ as two summation orders of these terms do. Rows hold what stages on
/// the CPU leave, but gradients S, not S^T, and what absent tokens of a short block leave, too.
///
/// Every call throws what mhla::Stages' throws, ShapeError if the device asks for another path or
/// has a plan, and CudaError for memory that CUDA does not know, or if a CUDA or cuBLAS call fails:
/// see CudaDevice.
template <class V, class T = void>
using CudaStages = BasicStages<V, T, cuda::StageBackend>;

MHLA_NAMESPACE_END
