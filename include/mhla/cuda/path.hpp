// SPDX-License-Identifier: MIT
// Which path runs a call: of those that can, the fastest by a model of its kernels' bytes and
// FLOPs, unless the CudaDevice requests another.
//
// The fused paths are for 16-bit tensors and element-wise feature maps, and for the head dimensions
// that the program compiles them for; cuBLAS runs everything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/cublas_cost.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/forward_state.hpp>
#include <mhla/cuda/fused/persistent_cost.hpp>
#include <mhla/cuda/fused/quadratic_cost.hpp>
#include <mhla/cuda/fused/resident.hpp>
#include <mhla/cuda/fused/resident_cost.hpp>
#include <mhla/cuda/fused/summaries_cost.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

constexpr const char* name_of(CudaPath path) {
  switch (path) {
    case CudaPath::automatic:
      return "automatic";
    case CudaPath::cublas:
      return "cublas";
    case CudaPath::summaries:
      return "summaries";
    case CudaPath::quadratic:
      return "quadratic";
    case CudaPath::resident:
      return "resident";
    case CudaPath::persistent:
      return "persistent";
  }
  return "";
}

/// The fused paths, in the order in which they are reported.
inline constexpr CudaPath fused_paths[] = {CudaPath::summaries, CudaPath::quadratic,
                                           CudaPath::resident, CudaPath::persistent};

/// Whether a path has a backward pass.
constexpr bool has_backward(CudaPath path) {
  return path != CudaPath::resident && path != CudaPath::persistent;
}
/// Whether `automatic` may choose a path. The persistent one, whose thread blocks wait for each
/// other, is to be measured first.
constexpr bool is_chosen(CudaPath path) { return path != CudaPath::persistent; }
/// Whether a path has summaries in global memory, where a forward state can be.
constexpr bool keeps_states(CudaPath path) {
  return path == CudaPath::cublas || path == CudaPath::summaries;
}

/// Why fused paths cannot run a call: all of them or, from `state` on, one of them.
enum class Refusal {
  none,
  double_tensors,
  float_tensors,
  rowwise_map,
  mixed_product,
  rotated_own_key_sums,
  empty,
  head_dims,
  state,
  backward,
  resident_head_dims,
  resident_blocks,
  shared_memory,
  persistent_packed,
  persistent_matrices,
  persistent_blocks,
  persistent_heads
};

/// Refusal by the types alone.
template <class V, class T>
constexpr Refusal refusal_of_types() {
  if (std::is_same_v<T, double>) return Refusal::double_tensors;
  if (std::is_same_v<T, float>) return Refusal::float_tensors;
  if (is_rowwise<V>) return Refusal::rowwise_map;
  if (mixes_products<V>) return Refusal::mixed_product;
  if (masks_own_block<V> && mixes_key_sums<V> && rotates<V>) return Refusal::rotated_own_key_sums;
  return Refusal::none;
}
/// Whether fused kernels can be compiled at all.
template <class V, class T>
inline constexpr bool has_fused_passes = refusal_of_types<V, T>() == Refusal::none;

/// The head dimensions that a program compiles for a variant; none if there is nothing to compile.
template <class V, class T>
HeadDimsList head_dims_of() {
  if constexpr (has_fused_passes<V, T>) {
    return compiled_head_dims<V, T>();
  } else {
    return {};
  }
}

/// Refusal by the sizes.
inline Refusal refusal_of(const Shape& shape, const HeadDimsList& compiled) {
  if (shape.batch == 0 || shape.heads == 0 || shape.query_tokens == 0 || shape.key_tokens == 0)
    return Refusal::empty;
  if (!compiled.has(shape.key_dim, shape.value_dim)) return Refusal::head_dims;
  return Refusal::none;
}

/// Why the summaries of a call that fused paths can run cannot be in shared memory, whose size
/// `gpu` has.
template <class V>
Refusal resident_refusal(const Problem& problem, const NominalGpu& gpu) {
  const Shape& shape = problem.shape;
  const Index blocks = std::max(problem.query_blocks, problem.key_blocks);
  if (!fused::has_resident_kernels(shape.key_dim, shape.value_dim))
    return Refusal::resident_head_dims;
  if (blocks > fused::max_resident_blocks) return Refusal::resident_blocks;
  const Index slice = fused::resident_slice_of(shape.key_dim, shape.value_dim, blocks,
                                               normalizes<V>, masks_own_block<V>, gpu.shared_bytes);
  return slice == 0 ? Refusal::shared_memory : Refusal::none;
}

/// Why a call that fused paths can run cannot be one launch.
template <class V>
Refusal persistent_refusal(const V& attention, const Problem& problem) {
  if (is_packed<V>) return Refusal::persistent_packed;
  Arena arena;
  const Extents<V> extents(arena, attention, problem, problem.shape.batch);
  if (extents.matrices != 1) return Refusal::persistent_matrices;
  if (!fused::mix_in_place(attention, extents)) return Refusal::persistent_blocks;
  return fused::has_unit_schedule(extents) ? Refusal::none : Refusal::persistent_heads;
}

/// Why one path cannot run a call that fused paths can run.
template <class V>
Refusal refusal_of(CudaPath path, const V& attention, const Problem& problem, Direction direction,
                   StateUse state, const NominalGpu& gpu) {
  if (path == CudaPath::automatic) return Refusal::none;
  if (state == StateUse::given && !keeps_states(path)) return Refusal::state;
  if (direction == Direction::backward && !has_backward(path)) return Refusal::backward;
  if (path == CudaPath::resident) return resident_refusal<V>(problem, gpu);
  if (path == CudaPath::persistent) return persistent_refusal(attention, problem);
  return Refusal::none;
}

/// A refusal in words.
inline std::string to_string(Refusal refusal, const Shape& shape) {
  switch (refusal) {
    case Refusal::none:
      return "";
    case Refusal::double_tensors:
      return "double tensors";
    case Refusal::float_tensors:
      return "float tensors";
    case Refusal::rowwise_map:
      return "the feature map sees whole rows";
    case Refusal::mixed_product:
      return "MixedProduct";
    case Refusal::rotated_own_key_sums:
      return "Causal with MixedKeySum and a rotation";
    case Refusal::state:
      return "it has no summaries for a forward state";
    case Refusal::empty:
      return "a tensor is empty";
    case Refusal::backward:
      return "it has no backward pass";
    case Refusal::resident_head_dims:
      return "head dimensions over 128";
    case Refusal::resident_blocks:
      return "more than " + std::to_string(fused::max_resident_blocks) + " blocks";
    case Refusal::shared_memory:
      return "the block summaries do not fit into the chip's shared memory";
    case Refusal::persistent_packed:
      return "packed sequences";
    case Refusal::persistent_matrices:
      return "query heads that share keys have mixing matrices of their own";
    case Refusal::persistent_blocks:
      return "more than 128 blocks, or not as many of queries as of keys";
    case Refusal::persistent_heads:
      return "more heads of the batch than one launch can have";
    case Refusal::head_dims:
      break;
  }
  const std::string dims = to_string(HeadDimsPair{shape.key_dim, shape.value_dim});
  const std::string none = "no kernels for head dimensions " + dims;
  if (!has_fused_kernels(shape.key_dim, shape.value_dim))
    return none + ": they exist for " + fused_head_dims_said;
  return none + ": add mhla::HeadDims<" + std::to_string(shape.key_dim) + ", " +
         std::to_string(shape.value_dim) + "> to MHLA_INSTANTIATE_CUDA";
}

/// Throws if the device requests a path that cannot run the call.
inline void require_path(CudaPath asked, Refusal refusal, const Shape& shape) {
  if (refusal != Refusal::none && asked != CudaPath::automatic && asked != CudaPath::cublas)
    throw ShapeError("mhla: the CudaDevice was given CudaPath::", name_of(asked),
                     ", which cannot run this call: ", to_string(refusal, shape),
                     "; CudaPath::automatic takes a path that can");
}

/// What runs a call, why, and what each path would take.
struct PathChoice {
  CudaPath path = CudaPath::cublas;
  CudaPath asked = CudaPath::automatic;
  Refusal refusal = Refusal::none;               ///< of all fused paths
  Refusal of_path[std::size(fused_paths)] = {};  ///< also of each of them
  // Paths that cannot run the call have no costs.
  PathCost cublas;
  PathCost summaries;
  PathCost quadratic;
  PathCost resident;
  PathCost persistent;

  const PathCost& cost_of(CudaPath of) const {
    switch (of) {
      case CudaPath::summaries:
        return summaries;
      case CudaPath::quadratic:
        return quadratic;
      case CudaPath::resident:
        return resident;
      case CudaPath::persistent:
        return persistent;
      case CudaPath::automatic:
      case CudaPath::cublas:
        break;
    }
    return cublas;
  }
  const PathCost& cost() const { return cost_of(path); }
  Refusal refusal_of(CudaPath of) const {
    if (of == CudaPath::cublas) return Refusal::none;
    if (refusal != Refusal::none) return refusal;
    for (std::size_t n = 0; n < std::size(fused_paths); ++n)
      if (fused_paths[n] == of) return of_path[n];
    return Refusal::none;
  }
  bool can(CudaPath run) const { return refusal_of(run) == Refusal::none; }

  /// Why `path`, in words.
  std::string reason() const {
    if (asked != CudaPath::automatic) return "as the CudaDevice asks for";
    if (refusal != Refusal::none) return "the one that can run it";
    return "the fastest by the cost model";
  }
};

/// What can run one direction of a call, and what each path would take.
template <class T, AttentionVariant V>
PathChoice path_costs(const V& attention, const Problem& problem, Direction direction,
                      CudaPath asked, StateUse state, const HeadDimsList& compiled,
                      FloatProducts products, const NominalGpu& gpu) {
  using A = Accumulator<T>;
  const Shape& shape = problem.shape;
  PathChoice choice;
  choice.asked = asked;
  choice.refusal = refusal_of_types<V, T>();
  if (choice.refusal == Refusal::none) choice.refusal = refusal_of(shape, compiled);
  if (choice.refusal == Refusal::none)
    for (std::size_t n = 0; n < std::size(fused_paths); ++n)
      choice.of_path[n] = refusal_of(fused_paths[n], attention, problem, direction, state, gpu);

  const bool backward = direction == Direction::backward;
  const CallSize size = call_size(attention, problem);
  const Index at_once = items_at_once<V, A>(attention, problem, backward);
  const double flops_per_second = std::is_same_v<A, double>         ? gpu.double_flops
                                  : products == FloatProducts::tf32 ? gpu.tf32_flops
                                                                    : gpu.float_flops;
  choice.cublas = cublas_cost(
      size, direction, at_once == 0 ? 0 : static_cast<double>(ceil_div(shape.batch, at_once)),
      sizeof(T), sizeof(A), flops_per_second);
  if constexpr (has_fused_passes<V, T>) {
    if (choice.refusal == Refusal::none) {
      choice.summaries = fused::summaries_cost<T>(attention, problem, size, direction, gpu);
      choice.quadratic = fused::quadratic_cost(attention, problem, size, direction, gpu);
      if (choice.can(CudaPath::resident))
        choice.resident = fused::resident_cost(attention, problem, size, gpu);
      if (choice.can(CudaPath::persistent))
        choice.persistent = fused::persistent_cost(attention, problem, size, gpu);
    }
  }
  return choice;
}

/// Chooses between paths. With a forward state it is one path for both directions, of those that
/// have summaries, the fastest for both together. (Summaries that the backward pass need not
/// recompute count all the same, for all paths.)
/// \throws ShapeError if `asked` cannot run the call.
template <class T, AttentionVariant V>
PathChoice choose_path(const V& attention, const Problem& problem, Direction direction,
                       CudaPath asked, StateUse state, const HeadDimsList& compiled,
                       FloatProducts products = FloatProducts::exact,
                       const NominalGpu& gpu = NominalGpu()) {
  const auto costs = [&](Direction of) {
    return path_costs<T>(attention, problem, of, asked, state, compiled, products, gpu);
  };
  PathChoice choice = costs(direction);
  require_path(asked, choice.refusal_of(asked), problem.shape);
  choice.path = asked;
  if (asked != CudaPath::automatic) return choice;

  PathChoice other_direction;
  if (state == StateUse::given)
    other_direction =
        costs(direction == Direction::forward ? Direction::backward : Direction::forward);
  const auto seconds = [&](CudaPath path) {
    return choice.cost_of(path).seconds(gpu) + other_direction.cost_of(path).seconds(gpu);
  };
  choice.path = CudaPath::cublas;
  for (const CudaPath other : fused_paths)
    if (is_chosen(other) && choice.can(other) && seconds(other) < seconds(choice.path))
      choice.path = other;
  return choice;
}

/// The nominal GPU, with the shared memory of the current one.
template <class V, class T>
NominalGpu gpu_at_hand() {
  NominalGpu gpu;
  if constexpr (has_fused_passes<V, T>) gpu.shared_bytes = shared_bytes_at_hand<V, T>();
  return gpu;
}

/// Only the path of a call: computes no costs if there is no choice.
template <class T, AttentionVariant V>
CudaPath path_of(const V& attention, const Problem& problem, const CudaDevice& device,
                 Direction direction, StateUse state) {
  constexpr Refusal of_types = refusal_of_types<V, T>();
  if constexpr (of_types != Refusal::none) {
    require_path(device.path(), of_types, problem.shape);
    return CudaPath::cublas;
  } else {
    const HeadDimsList compiled = compiled_head_dims<V, T>();
    const NominalGpu gpu = gpu_at_hand<V, T>();
    Refusal refusal = refusal_of(problem.shape, compiled);
    if (refusal == Refusal::none)
      refusal = refusal_of(device.path(), attention, problem, direction, state, gpu);
    require_path(device.path(), refusal, problem.shape);
    if (device.path() != CudaPath::automatic) return device.path();
    if (refusal != Refusal::none) return CudaPath::cublas;
    return choose_path<T>(attention, problem, direction, device.path(), state, compiled,
                          device.products(), gpu)
        .path;
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
