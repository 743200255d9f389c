// SPDX-License-Identifier: MIT
// The attention and its gradients as operators of PyTorch, over the tensors' own memory and
// strides. mhla_torch/__init__.py names the variant of a call, sees to it that it is compiled, and
// joins the two passes for autograd.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#ifdef MHLA_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <array>
#include <map>
#include <mhla/executors/at_parallel.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "variant.hpp"

namespace mhla_torch {
namespace {

using at::Tensor;
using Extents = at::IntArrayRef;
using Numbers = at::ArrayRef<double>;

constexpr mhla::AtParallelExecutor torch_threads{};

/// Where a call runs.
struct OnCpu {
  explicit OnCpu(const Tensor& /*q*/) {}
  static constexpr const void* gpu() { return nullptr; }
};
#ifdef MHLA_TORCH_CUDA
struct OnCuda {
  c10::cuda::CUDAGuard guard;
  mhla::CudaDevice device;

  explicit OnCuda(const Tensor& q)
      : guard(q.device()),
        device(at::cuda::getCurrentCUDAStream(), at::cuda::getCurrentCUDABlasHandle()) {}
  const void* gpu() const { return &device; }
};
#else
struct OnCuda : OnCpu {
  explicit OnCuda(const Tensor& q) : OnCpu(q) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "mhla_torch was compiled without CUDA, which takes nvcc and a GPU at hand");
  }
};
#endif

/// The variants that there are, by their names.
class Variants {
 public:
  void add(const std::string& name, const Variant& variant) {
    const std::lock_guard lock(mutex_);
    all_[name] = variant;
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, variant] : all_) names.push_back(name);
    return names;
  }
  /// The variant of a call; `gpu` is where it runs, or null.
  Variant named(const std::string& name, const void* gpu = nullptr) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(name);
    TORCH_CHECK_NOT_IMPLEMENTED(found != all_.end(), "mhla: there is no ", name,
                                "; call mhla_torch.attention, which compiles it");
    TORCH_CHECK_NOT_IMPLEMENTED(
        gpu == nullptr || found->second.runs_on_gpu, "mhla: ", name,
        " was compiled on first use, for the CPU alone; for a GPU add it to "
        "PREBUILT in variants.py and install again");
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Variant> all_;
};
Variants& variants() {
  static Variants all;
  return all;
}

/// A tensor as the library sees it. Nothing is copied.
Strided strided(const Tensor& tensor, int rank, const char* name, const char* axes) {
  TORCH_CHECK_VALUE(tensor.dim() == rank, "mhla: ", name, " has ", tensor.dim(),
                    " axes, but must be ", axes);
  Strided memory{const_cast<void*>(tensor.const_data_ptr()), {}, {}};
  for (int axis = 0; axis < rank; ++axis) {
    memory.extent[axis] = tensor.size(axis);
    memory.stride[axis] = tensor.stride(axis);
  }
  return memory;
}
Strided of_tokens(const Tensor& tensor, const char* name) {
  return strided(tensor, 4, name, "[batch, heads, tokens, dim]");
}
/// mix, or its gradient: one matrix for all heads, or one for each.
Strided matrices(const Tensor& mix) {
  return strided(mix.dim() == 2 ? mix.unsqueeze(0) : mix, 3, "mix", "[(heads,) blocks, blocks]");
}

void require_type(const Tensor& tensor, const char* name, at::ScalarType type, const Tensor& q) {
  TORCH_CHECK_TYPE(tensor.device() == q.device(), "mhla: ", name, " is on ", tensor.device(),
                   ", but q is on ", q.device());
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, "mhla: ", name, " is of ", tensor.scalar_type(),
                   ", but must be of ", type, ", as q is of ", q.scalar_type());
}

/// What a call is told beside q, k, v and mix. `extents`: block, grid, key_block and key_grid on
/// three axes each, then the size of the mixing and nu. `numbers`: scale and the epsilons of
/// features and of the normalizer, then theta.
struct Options {
  const std::optional<Tensor>& offsets;
  const std::optional<Tensor>& query_mask;
  const std::optional<Tensor>& key_mask;
  const std::string& variant;
  Extents extents;
  Numbers numbers;
  bool fast;
};

Settings settings(const Options& o) {
  TORCH_CHECK_VALUE(o.extents.size() == 14 && o.numbers.size() == 4,
                    "mhla: call mhla_torch.attention; the operator's arguments are its own");
  Settings s{};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    s.block[axis] = o.extents[axis];
    s.grid[axis] = o.extents[3 + axis];
    s.key_block[axis] = o.extents[6 + axis];
    s.key_grid[axis] = o.extents[9 + axis];
  }
  s.mixing_size = o.extents[12];
  s.nu = o.extents[13];
  s.scale = o.numbers[0];
  s.feature_epsilon = o.numbers[1];
  s.normalizer_epsilon = o.numbers[2];
  s.theta = o.numbers[3];
  s.fast = o.fast;
  return s;
}

Call call_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mix, const Options& o,
             const void* gpu) {
  require_type(k, "k", q.scalar_type(), q);
  require_type(v, "v", q.scalar_type(), q);
  require_type(mix, "mix", q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, q);
  Call call{.threads = torch_threads,
            .settings = settings(o),
            .q = of_tokens(q, "q"),
            .k = of_tokens(k, "k"),
            .v = of_tokens(v, "v"),
            .mix = matrices(mix),
            .gpu = gpu};
  if (o.offsets) {
    TORCH_CHECK_TYPE(o.offsets->scalar_type() == at::kLong && o.offsets->is_contiguous() &&
                         o.offsets->device().is_cpu(),
                     "mhla: offsets are contiguous, of int64 and on the CPU");
    call.offsets = strided(*o.offsets, 1, "offsets", "[sequences + 1]");
  }
  const auto mask = [&](const std::optional<Tensor>& tensor, const char* name) -> Strided {
    if (!tensor) return {};
    TORCH_CHECK_TYPE(tensor->scalar_type() == at::kBool && tensor->device() == q.device(),
                     "mhla: ", name, " is of ", tensor->scalar_type(), " on ", tensor->device(),
                     ", but must be of Bool on ", q.device());
    return strided(*tensor, 2, name, "[batch, tokens]");
  };
  call.query_mask = mask(o.query_mask, "query_mask");
  call.key_mask = mask(o.key_mask, "key_mask");
  return call;
}

/// Calls f; a ShapeError becomes Python's ValueError, another error a RuntimeError.
template <class F>
auto translated(const F& f) {
  try {
    return f();
  } catch (const mhla::ShapeError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const mhla::Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

/// Runs a pass with as much scratch memory as it takes, from PyTorch's allocator.
void run(const Call& call, Index (*size)(const Call&),
         void (*pass)(const Call&, mhla::WorkspaceView), const Tensor& like) {
  translated([&] {
    const Tensor bytes = at::empty({size(call)}, like.options().dtype(at::kByte));
    pass(call, {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.numel()});
  });
}

template <class Machine>
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mix,
               const std::optional<Tensor>& offsets, const std::optional<Tensor>& query_mask,
               const std::optional<Tensor>& key_mask, std::string variant, Extents extents,
               Numbers numbers, bool fast) {
  const Machine on(q);
  const Options options{offsets, query_mask, key_mask, variant, extents, numbers, fast};
  Call call = call_of(q, k, v, mix, options, on.gpu());
  // Tokens first in memory, so that joining the heads afterwards copies nothing.
  const Tensor y =
      at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
  call.y = of_tokens(y, "y");
  const Variant functions = variants().named(variant, call.gpu);
  run(call, functions.forward_size, functions.forward, q);
  return y;
}

/// The gradients that are wanted of q, k, v and mix, in this order.
template <class Machine>
std::vector<Tensor> backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& mix, const std::optional<Tensor>& offsets,
                             const std::optional<Tensor>& query_mask,
                             const std::optional<Tensor>& key_mask, std::string variant,
                             Extents extents, Numbers numbers, bool fast,
                             std::array<bool, 4> wanted) {
  const Machine on(q);
  const Options options{offsets, query_mask, key_mask, variant, extents, numbers, fast};
  Call call = call_of(q, k, v, mix, options, on.gpu());
  require_type(dy, "dy", q.scalar_type(), q);
  call.dy = of_tokens(dy, "dy");
  std::vector<Tensor> results;
  const auto like = [&](const Tensor& operand) {
    return results.emplace_back(at::empty_like(operand));
  };
  if (wanted[0]) call.dq = of_tokens(like(q), "dq");
  if (wanted[1]) call.dk = of_tokens(like(k), "dk");
  if (wanted[2]) call.dv = of_tokens(like(v), "dv");
  if (wanted[3]) call.dmix = matrices(like(mix));
  const Variant functions = variants().named(variant, call.gpu);
  run(call, functions.backward_size, functions.backward, q);
  return results;
}

/// Sequences that grow, on the CPU.
class Decoder : public torch::CustomClassHolder {
 public:
  /// `sizes`: sequences, heads, kv_heads, key_dim, value_dim, max_tokens.
  Decoder(Tensor mix, std::vector<std::int64_t> sizes, std::string variant,
          std::vector<std::int64_t> extents, std::vector<double> numbers) {
    const std::optional<Tensor> none;
    Call call{torch_threads, settings({none, none, none, variant, extents, numbers, false})};
    call.mix = matrices(mix);
    const Variant functions = variants().named(variant);
    TORCH_CHECK_VALUE(functions.streams != nullptr,
                      "mhla: a decoder generates token by token: "
                      "its attention must be causal=True");
    streams_ = translated([&] {
      return functions.streams(call, {.batch = sizes.at(0),
                                      .heads = sizes.at(1),
                                      .kv_heads = sizes.at(2),
                                      .key_dim = sizes.at(3),
                                      .value_dim = sizes.at(4),
                                      .num_slots = torch_threads.num_slots(),
                                      .max_tokens = sizes.at(5)});
    });
  }

  Tensor step(const Tensor& q, const Tensor& k, const Tensor& v) {
    return run(q, k, v, [&](const Call& call) { streams_->step(call); });
  }
  Tensor prefill(std::int64_t sequence, const Tensor& q, const Tensor& k, const Tensor& v) {
    return run(q, k, v, [&](const Call& call) { streams_->prefill(sequence, call); });
  }
  void reset(std::int64_t sequence) {
    translated([&] { streams_->reset(sequence); });
  }
  std::int64_t position(std::int64_t sequence) const {
    return translated([&] { return streams_->position(sequence); });
  }
  std::int64_t capacity() const { return streams_->capacity(); }

 private:
  template <class F>
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, const F& f) const {
    TORCH_CHECK_VALUE(q.dim() == 4 && v.dim() == 4 && q.device().is_cpu(),
                      "mhla: q, k and v are [batch, heads, tokens, dim], on the CPU");
    require_type(k, "k", q.scalar_type(), q);
    require_type(v, "v", q.scalar_type(), q);
    const Tensor y =
        at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
    Call call{torch_threads};
    call.q = of_tokens(q, "q");
    call.k = of_tokens(k, "k");
    call.v = of_tokens(v, "v");
    call.y = of_tokens(y, "y");
    translated([&] { f(call); });
    return y;
  }

  std::unique_ptr<Streams> streams_;
};

mhla::Grid grid_of(Extents block, Extents grid) {
  TORCH_CHECK_VALUE(block.size() == 3 && grid.size() == 3, "mhla: call mhla_torch.initial_mix");
  mhla::Grid blocks;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    blocks.extent[axis] = grid[axis];
    blocks.block[axis] = block[axis];
  }
  return blocks;
}

/// Memory of a float matrix.
mhla::TensorView<float, 2> matrix(const Tensor& mix) {
  return {mix.data_ptr<float>(), {mix.size(0), mix.size(1)}, {mix.stride(0), mix.stride(1)}};
}

/// mix between blocks of two grids, as mhla::initialize fills it. The integers are enumerators.
Tensor initial_mix(Extents block, Extents grid, Extents key_block, Extents key_grid,
                   std::int64_t transform, std::int64_t max_mode, std::int64_t norm_axis,
                   double exp_sigma, double local_threshold) {
  return translated([&] {
    const mhla::Grid queries = grid_of(block, grid);
    const mhla::Grid keys = grid_of(key_block, key_grid);
    const Tensor mix = at::empty({queries.num_blocks(), keys.num_blocks()}, at::kFloat);
    mhla::initialize(matrix(mix), queries, keys,
                     {.transform = static_cast<mhla::Transform>(transform),
                      .max_mode = static_cast<mhla::MaxMode>(max_mode),
                      .norm_axis = static_cast<mhla::NormAxis>(norm_axis),
                      .exp_sigma = exp_sigma,
                      .local_threshold = local_threshold});
    return mix;
  });
}

/// Adds a variant that was compiled on its own: `functions` is the address of its Variant.
void add_variant(std::string name, std::int64_t functions) {
  variants().add(name, *reinterpret_cast<const Variant*>(functions));
}

}  // namespace

void add(const char* name, const Variant& variant) { variants().add(name, variant); }

#define MHLA_TORCH_OPTIONS                                                                      \
  "Tensor? offsets, Tensor? query_mask, Tensor? key_mask, str variant, int[] extents, float[] " \
  "numbers, bool fast"

TORCH_LIBRARY(mhla_torch, library) {
  library.def("attention(Tensor q, Tensor k, Tensor v, Tensor mix, " MHLA_TORCH_OPTIONS
              ") -> Tensor");
  library.def(
      "attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor mix, " MHLA_TORCH_OPTIONS
      ", bool[4] wanted) -> Tensor[]");
  library.def(
      "initial_mix(int[] block, int[] grid, int[] key_block, int[] key_grid, int transform, "
      "int max_mode, int norm_axis, float exp_sigma, float local_threshold) -> Tensor",
      initial_mix);
  library.def("add_variant(str name, int functions) -> ()", add_variant);
  library.def("variants() -> str[]", [] { return variants().names(); });
#ifdef MHLA_TORCH_CUDA
  library.def("is_for_gpu() -> bool", [] { return true; });
#else
  library.def("is_for_gpu() -> bool", [] { return false; });
#endif
  library.class_<Decoder>("Decoder")
      .def(torch::init<Tensor, std::vector<std::int64_t>, std::string, std::vector<std::int64_t>,
                       std::vector<double>>())
      .def("step", &Decoder::step)
      .def("prefill", &Decoder::prefill)
      .def("reset", &Decoder::reset)
      .def("position", &Decoder::position)
      .def("capacity", &Decoder::capacity);
}
TORCH_LIBRARY_IMPL(mhla_torch, CPU, library) {
  library.impl("attention", forward<OnCpu>);
  library.impl("attention_backward", backward<OnCpu>);
}
TORCH_LIBRARY_IMPL(mhla_torch, CUDA, library) {
  library.impl("attention", forward<OnCuda>);
  library.impl("attention_backward", backward<OnCuda>);
}

}  // namespace mhla_torch
