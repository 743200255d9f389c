// SPDX-License-Identifier: MIT
// Stages on a CUDA device: the counterpart of <mhla/stages.hpp> in the caller's device memory.
// Needs no CUDA header: the kernels are in another translation unit, made by
// <mhla/cuda/instantiate_stages.cuh>; a missing variant is a link error that names it.
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/token_masks.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/choose_path.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/packed_stages.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/stage_blocks.hpp>
#include <mhla/policy/sums_layout.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What runs checked stages; defined in stages.cuh. Operands that a stage does not have are empty.
/// An undefined reference to a member means that no .cu of the program has
/// MHLA_INSTANTIATE_CUDA_STAGES(V, T).
template <class V, class T>
struct StageKernels {
  using A = Accumulator<T>;
  using Rows = TensorView<const A, 2>;

  static void summarize(const ForwardCall<V, T>& call, const TensorView<A, 2>& summaries);
  static void read_out(const ForwardCall<V, T>& call, const Rows& summaries);
  /// The call's update is dmix's, that of dq is `update`.
  static void read_out_gradient(const BackwardCall<V, T>& call, const Rows& summaries,
                                const QueryRows<A>& left, Update update);
  static void mix_gradient(const ForwardCall<V, T>& call, const Rows& mixtures,
                           const TensorView<A, 2>& summary_gradients);
  /// The call's update is dmix's, that of dk and dv is `update`.
  static void summarize_gradient(const BackwardCall<V, T>& call, const Rows& summary_gradients,
                                 const Rows& denominators, Update update);

  /// Throws unless CUDA knows it.
  static void require_memory(const Footprint& memory);

  // What SequenceParallel does to tensors, and to rows of sums that travel, besides.
  static void copy_tensor(const CudaDevice& device, const TensorView<const T, 4>& from,
                          const TensorView<T, 4>& to);
  static void copy_tensor(const CudaDevice& device, const TensorView<const A, 3>& from,
                          const TensorView<A, 3>& to);
  static void clear_tensor(const CudaDevice& device, const TensorView<A, 3>& tensor);
  static void round_rows(const CudaDevice& device, const SumsLayout& of, const Rows& rows,
                         std::byte* to);
  static void widen_rows(const CudaDevice& device, const SumsLayout& of, const std::byte* from,
                         const TensorView<A, 2>& rows);
};

}  // namespace cuda

/// \addtogroup cuda
/// \{

/// mhla::Stages on a CUDA device: the same calls with a CudaDevice in place of the executor, and
/// views of device memory. They run on cuBLAS, in stream order; nothing is allocated or waited for.
/// \code
/// using Stages = mhla::CudaStages<mhla::Attention<mhla::Relu, mhla::Blocks2D>, float>;
/// const Stages stages(attention, call);
/// const mhla::BlockRange keys{0, 8};
/// const auto sums = mhla::make_view(device_floats, 12, stages.summary_size());
/// const mhla::WorkspaceView memory{
///     device_bytes, stages.workspace_size(mhla::Stage::summarize, cuda, keys)};
/// stages.summarize(cuda, keys, k_view, v_view, mhla::rows_of(sums, keys), memory);
/// \endcode
/// Called in turn, stages make what the whole pass on CudaPath::cublas makes, to the bit where
/// cuBLAS sums a product's terms in one order whatever its number of rows, and of products in a
/// batch; otherwise they differ as two summation orders of these terms do. Rows hold what stages on
/// the CPU leave, but gradients S, not S^T, and what absent tokens of a short block leave, too.
///
/// Every call throws what mhla::Stages' throws, ShapeError if the device asks for another path or
/// has a plan, and CudaError for memory that CUDA does not know, or if a CUDA or cuBLAS call fails:
/// see CudaDevice.
template <class V, class T = void>
class CudaStages : public StageBlocks<V, T> {
  static_assert(!factors_mixing<V>,
                "mhla: CudaStages have rows of the mixing matrix: use DenseMixing, with the matrix "
                "that mhla::expand makes");
  using Blocks = StageBlocks<V, T>;
  using A = Accumulator<T>;
  using Blocks::attention_;
  using Blocks::masked;
  using Blocks::part_of;
  using Blocks::problem_;

 public:
  /// \cond INTERNAL
  using Kernels = cuda::StageKernels<V, T>;
  static constexpr Borrowed compared = Borrowed::nothing;
  static void require_device(const CudaDevice& device, const Footprint& memory) {
    require_path(device);
    Kernels::require_memory(memory);
  }
  /// \endcond
  using Blocks::Blocks;
  /// \cond INTERNAL
  using StageErrors::advance;
  using StageErrors::advance_gradient;
  using StageErrors::mix_gradient;
  using StageErrors::read_out;
  using StageErrors::read_out_gradient;
  using StageErrors::summarize;
  using StageErrors::summarize_gradient;
  using StageErrors::workspace_size;
  template <class E>
  static constexpr bool runs_on = std::is_convertible_v<const E*, const CudaDevice*>;
  /// \endcond

  /// As Stages::padded, with masks in device memory; how far items reach is not asked for.
  auto padded(const StageMasks& masks) const {
    CudaStages<Padded<V>, T> stages(problem_, Padded<V>(attention_, masks.tokens));
    stages.held_ = this->held_;
    return stages;
  }

  /// Bytes of device memory that a stage on these blocks takes as workspace: as
  /// Stages::workspace_size.
  /// \throws ShapeError if there are no such blocks.
  Index workspace_size(Stage stage, const CudaDevice&, const BlockRange& blocks,
                       const BlockRange& keys = {}) const {
    const bool of_keys = stage == Stage::summarize || stage == Stage::summarize_gradient;
    return bytes(part_of(stage, blocks, of_keys ? blocks : keys));
  }

  /// As Stages::summarize.
  void summarize(const CudaDevice& device, const BlockRange& keys, const TensorView<const T, 4>& k,
                 const TensorView<const T, 4>& v, const TensorView<A, 2>& summaries,
                 WorkspaceView workspace) const {
    this->require_summarize(keys, k, v, summaries, workspace);
    const Problem part = checked_part(Stage::summarize, device, keys, keys, workspace);
    const V attention = with_masks(part);
    Kernels::summarize({device, attention, part, {{}, k, v, {}}, {}, workspace}, summaries);
  }

  /// As Stages::read_out.
  void read_out(const CudaDevice& device, const BlockRange& queries, const OperandViews<T>& x,
                const std::type_identity_t<Sums<A>>& sums, const TensorView<T, 4>& y,
                WorkspaceView workspace) const {
    this->require_read_out(queries, x, sums, y, workspace);
    require_pitch("summaries", sums.summaries);
    const Problem part = checked_part(Stage::read_out, device, queries, {}, workspace);
    const V attention = with_masks(part);
    Kernels::read_out({device, attention, part, this->read_by_queries(x), y, workspace},
                      sums.summaries);
  }

  /// As Stages::read_out_gradient.
  void read_out_gradient(const CudaDevice& device, const BlockRange& queries,
                         const OperandViews<T>& x, const std::type_identity_t<Sums<A>>& sums,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                         QueryUpdate update, const QueryRows<A>& left,
                         WorkspaceView workspace) const {
    this->require_read_out_gradient(queries, x, sums, dy, gradients, left, workspace);
    require_pitch("summaries", sums.summaries);
    const Problem part = checked_part(Stage::read_out_gradient, device, queries, {}, workspace);
    const V attention = with_masks(part);
    Kernels::read_out_gradient({device,
                                attention,
                                part,
                                this->read_by_queries(x),
                                dy,
                                {gradients.query, skip, skip, gradients.mix},
                                update.mix,
                                workspace},
                               sums.summaries, left, update.query);
  }

  /// As Stages::mix_gradient.
  void mix_gradient(const CudaDevice& device, const BlockRange& queries, const BlockRange& keys,
                    const TensorView<const A, 3>& mix, const TensorView<const A, 2>& mixtures,
                    const TensorView<A, 2>& summary_gradients, WorkspaceView workspace) const {
    this->require_mix_gradient(queries, keys, mix, mixtures, summary_gradients, workspace);
    require_pitch("mixtures", mixtures);
    require_pitch("summary_gradients", summary_gradients);
    const Problem part = checked_part(Stage::mix_gradient, device, queries, keys, workspace);
    const V attention = with_masks(part);
    Kernels::mix_gradient({device, attention, part, {{}, {}, {}, mix}, {}, workspace}, mixtures,
                          summary_gradients);
  }

  /// As Stages::summarize_gradient.
  void summarize_gradient(const CudaDevice& device, const BlockRange& keys,
                          const OperandViews<T>& x, const TensorView<const A, 2>& summary_gradients,
                          const TensorView<const T, 4>& dy,
                          const TensorView<const A, 2>& denominators,
                          const GradientViews<T>& gradients, Update update,
                          WorkspaceView workspace) const {
    this->require_summarize_gradient(keys, x, summary_gradients, dy, denominators, gradients,
                                     workspace);
    const Problem part = checked_part(Stage::summarize_gradient, device, keys, keys, workspace);
    const V attention = with_masks(part);
    // Only the diagonal of dmix comes from here; what it is added to stays.
    Kernels::summarize_gradient(
        {device,
         attention,
         part,
         this->read_by_keys(keys, x),
         dy,
         {skip, gradients.key, gradients.value, this->own_entries(keys, gradients.mix)},
         Update::accumulate,
         workspace},
        summary_gradients, denominators, update);
  }

 private:
  template <class, class>
  friend class CudaStages;
  template <class, class>
  friend class PackedStages;

  // Of a padded batch, or of a packed sequence.
  CudaStages(const Problem& problem, const V& attention) : Blocks(problem, attention) {}

  // With masks of those sides alone of which a stage has tokens; throws unless they fit.
  V with_masks([[maybe_unused]] const Problem& part) const {
    V attention = attention_;
    if constexpr (masked) {
      TokenMasks& masks = attention.masks;
      const bool own_keys = masks_own_block<V> && part.queries.count > 0;
      if (own_keys) masks.require_one();
      if (part.queries.count == 0) masks.query = {};
      if (part.keys.count == 0 && !own_keys) masks.key = {};
      const Index batch = part.shape.batch;
      TokenMasks::require_fit(masks.query, "masks.query", batch,
                              part.query_grid.num_tokens(part.held_queries));
      TokenMasks::require_fit(
          masks.key, "masks.key", batch,
          own_keys ? masks.query.extent[1] : part.key_grid.num_tokens(part.held_keys));
    }
    return attention;
  }
  Index bytes(const Problem& part) const {
    const V attention = with_masks(part);
    if (problem_.shape.empty()) return 0;
    const bool backward =
        part.stage == Stage::read_out_gradient || part.stage == Stage::summarize_gradient;
    const cuda::Call<V, T> call{attention, part,
                                backward ? cuda::Direction::backward : cuda::Direction::forward};
    return cuda::CublasPath::workspace(call).workspace_bytes;
  }
  Problem checked_part(Stage stage, const CudaDevice& device, const BlockRange& queries,
                       const BlockRange& keys, WorkspaceView workspace) const {
    const Problem part = part_of(stage, queries, keys);
    require_path(device);
    require_room(workspace, bytes(part));
    return part;
  }
  static void require_path(const CudaDevice& device) {
    if (device.plan() != nullptr)
      throw ShapeError(
          "mhla: the CudaDevice has a plan, which CudaStages cannot use: leave it out");
    if (device.path() != CudaPath::automatic && device.path() != CudaPath::cublas)
      throw ShapeError("mhla: the CudaDevice was given CudaPath::", cuda::name_of(device.path()),
                       ", which has no stages: they run on CudaPath::cublas");
  }
  static void require_room(WorkspaceView workspace, Index bytes) {
    require_workspace(workspace, bytes, "mhla::CudaStages",
                      "CudaStages::workspace_size says how many a stage takes");
  }
  // What PackedStages ask of a backend besides.
  static void clear_mix(const CudaDevice& device, const TensorView<A, 3>& dmix) {
    Kernels::clear_tensor(device, dmix);
  }
  // cuBLAS reads these rows as a matrix.
  template <class X>
  static void require_pitch(const char* argument, const TensorView<X, 2>& rows) {
    if (rows.extent[0] > 1 && rows.stride[0] < rows.extent[1])
      throw ShapeError("mhla: ", argument, ": axis blocks' stride is ", rows.stride[0],
                       " but must be ", rows.extent[1],
                       " or more; on CUDA a row begins behind the one before it");
  }
};

/// \cond INTERNAL
template <class V, class T>
requires(!VariantOfTensors<V, T>) class CudaStages<V, T> : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

/// The stages of a packed batch: see PackedStages. Their kernels are a sequence's,
/// MHLA_INSTANTIATE_CUDA_STAGES(V, T).
template <AttentionVariant V, class Offset, StorageScalar T>
class CudaStages<Packed<V, Offset>, T> : public PackedStages<CudaStages<V, T>, Offset> {
 public:
  /// \cond INTERNAL
  using Kernels = cuda::StageKernels<V, T>;
  static constexpr Borrowed compared = Borrowed::nothing;
  /// \endcond
  using PackedStages<CudaStages<V, T>, Offset>::PackedStages;
};

/// \}

MHLA_NAMESPACE_END
