// SPDX-License-Identifier: MIT
// Which path runs a call: of those that can, the fastest by the cost model, unless the CudaDevice
// brings a plan or requests another.
#pragma once

#include <mhla/cuda/paths/cublas.hpp>
#include <mhla/cuda/paths/quadratic.hpp>
#include <mhla/cuda/paths/resident.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class... Path>
struct PathList {
  static constexpr int size = sizeof...(Path);

  template <class F>
  static constexpr void for_each(const F& f) {
    (f(Path()), ...);
  }
  /// Calls f for the path of that name, if there is one.
  template <class F>
  static constexpr void visit(CudaPath id, const F& f) {
    static_cast<void>(((Path::traits.id == id && (f(Path()), true)) || ...));
  }
};

/// All paths, in the order in which they are reported; the first runs every call.
using Paths = PathList<CublasPath, SummariesPath, QuadraticPath, ResidentPath>;

constexpr PathTraits traits_of(CudaPath path) {
  PathTraits traits{CudaPath::automatic, "automatic"};
  Paths::visit(path, [&](auto of) { traits = of.traits; });
  return traits;
}
constexpr const char* name_of(CudaPath path) { return traits_of(path).name; }

/// The nominal GPU, with the shared memory of the current one.
template <class V, class T>
NominalGpu gpu_at_hand() {
  NominalGpu gpu;
  if constexpr (has_fused_passes<V, T>) gpu.shared_bytes = CompiledKernels<V, T>::shared_bytes();
  return gpu;
}

/// Why `Path` cannot run a call.
template <class Path, class V, class T>
Refusal refusal_of(const Call<V, T>& call, const NominalGpu& gpu) {
  if constexpr (Path::traits.is_fused)
    if (const Refusal of_all = fused_refusal(call); !of_all.none()) return of_all;
  if (call.state == StateUse::given && !Path::traits.keeps_state)
    return {"it has no summaries for a forward state"};
  if (call.is_backward() && !Path::traits.has_backward) return {"it has no backward pass"};
  if constexpr (requires { Path::refusal(call, gpu); }) return Path::refusal(call, gpu);
  return {};
}

/// What runs a call, why, and what each path would take.
struct PathChoice {
  struct Option {
    CudaPath path;
    Refusal refusal;
    PathCost cost = {};  // without kernels if it is refused
  };
  CudaPath path = CudaPath::cublas;
  const char* reason = "";
  Option options[std::size_t{Paths::size}];

  const Option& option(CudaPath of) const {
    for (const Option& option : options)
      if (option.path == of) return option;
    return options[0];
  }
  const PathCost& cost() const { return option(path).cost; }
};

template <class V, class T>
PathChoice path_options(const Call<V, T>& call, const NominalGpu& gpu) {
  PathChoice choice;
  int n = 0;
  Paths::for_each([&]<class Path>(Path) {
    PathChoice::Option& option = choice.options[n++];
    option.path = Path::traits.id;
    option.refusal = refusal_of<Path>(call, gpu);
    if constexpr (!Path::traits.is_fused || has_fused_passes<V, T>)
      if (option.refusal.none()) option.cost = Path::cost(call, gpu);
  });
  return choice;
}

/// The options of a call, and the fastest. With a forward state it is one path for both directions,
/// the fastest for both together. (Summaries that the backward pass need not recompute count all
/// the same, for all paths.)
template <class V, class T>
PathChoice fastest_path(const Call<V, T>& call, const NominalGpu& gpu) {
  PathChoice choice = path_options(call, gpu);
  PathChoice other_direction;
  if (call.state == StateUse::given) {
    Call<V, T> other = call;
    other.direction = call.is_backward() ? Direction::forward : Direction::backward;
    other_direction = path_options(other, gpu);
  }
  const auto seconds = [&](CudaPath path) {
    return choice.option(path).cost.seconds(gpu) + other_direction.option(path).cost.seconds(gpu);
  };
  int able = 0;
  for (const PathChoice::Option& option : choice.options) {
    if (!option.refusal.none()) continue;
    ++able;
    if (seconds(option.path) < seconds(choice.path)) choice.path = option.path;
  }
  choice.reason = able == 1 ? "the one that can run it" : "the fastest by the cost model";
  return choice;
}

/// The path of a call on a device; computes no costs if there is no choice.
/// \throws ShapeError if the device's plan is for another call, or the path it requests cannot run
/// this one.
template <class V, class T>
CudaPath path_of(const Call<V, T>& call, const CudaDevice& device,
                 const NominalGpu& gpu = gpu_at_hand<V, T>()) {
  if (device.plan() != nullptr) return device.plan()->path(call);
  Paths::visit(device.path(), [&]<class Path>(Path) {
    if (const Refusal refusal = refusal_of<Path>(call, gpu); !refusal.none())
      throw ShapeError({"mhla: the CudaDevice was given CudaPath::", Path::traits.name,
                        ", which cannot run this call: ", refusal.text(),
                        "; CudaPath::automatic takes a path that can"});
  });
  if (device.path() != CudaPath::automatic) return device.path();
  return fused_refusal(call).none() ? fastest_path(call, gpu).path : CudaPath::cublas;
}

/// The chosen path with its reason, and all options.
template <class V, class T>
PathChoice choose_path(const Call<V, T>& call, const CudaDevice& device, const NominalGpu& gpu) {
  PathChoice choice = fastest_path(call, gpu);
  if (device.plan() == nullptr && device.path() == CudaPath::automatic) return choice;
  choice.path = path_of(call, device, gpu);
  choice.reason = device.plan() != nullptr ? "as planned" : "as the CudaDevice asks for";
  return choice;
}

/// The memory that a call takes on a path.
template <class V, class T>
CallMemory memory_of(CudaPath path, const Call<V, T>& call) {
  CallMemory memory{0, call.problem.shape.batch};
  if (call.problem.shape.empty()) return memory;
  Paths::visit(path, [&]<class Path>(Path) {
    if constexpr (!Path::traits.is_fused || has_fused_passes<V, T>)
      memory = memory_of<typename Path::template Plan<V, T>>(call);
  });
  return memory;
}

}  // namespace cuda

MHLA_NAMESPACE_END
