// SPDX-License-Identifier: MIT
// What a GPU reaches, and what the library reaches on it:
//   bench_gpu [--out FILE] [--seconds 0.3] [--shapes PART] [--scalars float,bfloat16]
//             [--paths cublas,summaries,quadratic,resident] [--no-errors]
//             [--no-ceilings]
//   bench_gpu --list    the shapes, as JSON
// First the ceilings: copies, matrix products, launches. Then forward and backward pass of every
// shape (of those whose name holds PART; what matters most first) on every path that can run it
// (but quadratic up to 8192 tokens), in bfloat16 before float, also with summaries that the forward
// pass saves for the backward pass where it has them; from a CUDA graph with warm and with cold L2
// cache, and call by call. Each result is a line of JSON that also says which path the library
// would choose, what its model expects of this one, and the chip's clocks and power meanwhile;
// MHLA_COMMIT and MHLA_DRIVER in the environment go into it. Times are of CUDA's events, of
// `seconds` each. Exits with 77 where there is no GPU.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/comparison.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu_lines.hpp"
#include "gpu_passes.hpp"
#include "gpu_timing.hpp"
#include "tests/gpu/cuda_resources.hpp"

namespace bench {
namespace {

using mhla::BFloat16;
using mhla::CudaDevice;
using mhla::CudaPath;
using mhla::cuda::name_of;
using mhla::testing::HostTensor;

struct Options {
  std::string out;
  std::string shapes;
  std::string scalars = "float,bfloat16";
  std::string paths = "cublas,summaries,quadratic,resident";
  double seconds = 0.3;
  bool errors = true;
  bool ceilings = true;
  bool list = false;
};

template <class T>
constexpr const char* scalar_name = std::is_same_v<T, float> ? "float" : "bfloat16";

class DeviceArray {
 public:
  explicit DeviceArray(std::size_t bytes) : bytes_(bytes) {
    gpu::check(cudaMalloc(&memory_, bytes == 0 ? 1 : bytes), "cudaMalloc");
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// The stream, the handle, and what empties the L2 cache.
struct Machine {
  gpu::Lane lane;
  DeviceArray flush{std::size_t{256} << 20};
  double copy_bandwidth = 0;  // bytes a second, read and written

  Machine() {
    gpu::check(cudaMemset(flush.as<void>(), 0, flush.bytes()), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  CudaDevice device(CudaPath path = CudaPath::automatic) const { return lane.device(path); }
  /// Reads: lines that were written would have to be written back while work is timed.
  void empty_cache() const {
    read_all(device(), flush.as<float>(), static_cast<mhla::Index>(flush.bytes() / sizeof(float)));
  }
};

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

JsonLine machine_fields() {
  cudaDeviceProp properties{};
  gpu::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0;
  int runtime = 0;
  gpu::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  gpu::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return JsonLine{}
      .add("gpu", properties.name)
      .add("driver", environment("MHLA_DRIVER"))
      .add("driver_cuda", driver)
      .add("cuda", runtime)
      .add("commit", environment("MHLA_COMMIT"));
}

/// Clocks in MHz, power in watts, temperature, as nvidia-smi says; empty without it.
JsonLine chip_fields() {
  std::FILE* const pipe = popen(
      "nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu "
      "--format=csv,noheader,nounits 2>/dev/null",
      "r");
  double sm = 0, memory = 0, power = 0, temperature = 0;
  const int found =
      pipe == nullptr ? 0
                      : std::fscanf(pipe, "%lf, %lf, %lf, %lf", &sm, &memory, &power, &temperature);
  if (pipe != nullptr) pclose(pipe);
  if (found != 4) return {};
  return JsonLine{}
      .add("sm_mhz", sm)
      .add("memory_mhz", memory)
      .add("watts", power)
      .add("celsius", temperature);
}

JsonLine time_fields(const Quantiles& time) {
  return JsonLine{}
      .add("us", time.median)
      .add("us_p10", time.p10)
      .add("us_p90", time.p90)
      .add("samples", static_cast<double>(time.samples));
}

// ------------------------------------------------------------------------------------- ceilings

void measure_copy(Machine& machine, const Options& options, Lines& lines) {
  std::size_t free = 0;
  std::size_t total = 0;
  gpu::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const std::size_t bytes = std::min(std::size_t{4} << 30, free / 8) / 4096 * 4096;
  const DeviceArray from(bytes), to(bytes);
  fill_normal(machine.device(), from.as<float>(), static_cast<mhla::Index>(bytes / 4), 1);
  const Quantiles time = time_on(
      machine.lane.stream, options.seconds, [] {},
      [&] {
        gpu::check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDeviceToDevice,
                                   machine.lane.stream),
                   "cudaMemcpyAsync");
      });
  const double moved = 2 * static_cast<double>(bytes);
  machine.copy_bandwidth = moved / (time.median * 1e-6);
  lines.write(JsonLine{}
                  .add("kind", "ceiling")
                  .add("what", "copy, bytes read and written")
                  .append(time_fields(time))
                  .add("bytes", moved)
                  .add("gb_per_s", machine.copy_bandwidth * 1e-9));
}

void measure_products(const Machine& machine, const Options& options, Lines& lines) {
  struct Kind {
    const char* what;
    bool sixteen_bits;
    cublasComputeType_t compute;
    int size;
  };
  const Kind kinds[] = {{"bfloat16 product", true, CUBLAS_COMPUTE_32F, 8192},
                        {"TF32 product", false, CUBLAS_COMPUTE_32F_FAST_TF32, 8192},
                        {"float product", false, CUBLAS_COMPUTE_32F_PEDANTIC, 4096}};
  gpu::check(cublasSetStream(machine.lane.cublas, machine.lane.stream), "cublasSetStream");
  for (const Kind& kind : kinds) {
    const int n = kind.size;
    const auto count = static_cast<mhla::Index>(n) * n;
    const std::size_t bytes = static_cast<std::size_t>(count) * (kind.sixteen_bits ? 2 : 4);
    const DeviceArray a(bytes), b(bytes), c(bytes);
    const auto fill = [&](const DeviceArray& array, std::uint64_t seed) {
      if (kind.sixteen_bits)
        fill_normal(machine.device(), array.as<BFloat16>(), count, seed);
      else
        fill_normal(machine.device(), array.as<float>(), count, seed);
    };
    fill(a, 1), fill(b, 2);
    const cudaDataType_t type = kind.sixteen_bits ? CUDA_R_16BF : CUDA_R_32F;
    const float one = 1;
    const float zero = 0;
    const Quantiles time = time_on(
        machine.lane.stream, options.seconds, [] {},
        [&] {
          gpu::check(cublasGemmEx(machine.lane.cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one,
                                  a.as<void>(), type, n, b.as<void>(), type, n, &zero, c.as<void>(),
                                  type, n, kind.compute, CUBLAS_GEMM_DEFAULT),
                     "cublasGemmEx");
        });
    lines.write(JsonLine{}
                    .add("kind", "ceiling")
                    .add("what", kind.what)
                    .append(time_fields(time))
                    .add("size", n)
                    .add("tflop_per_s", 2e-6 * static_cast<double>(count) * n / time.median));
  }
}

void measure_launches(const Machine& machine, const Options& options, Lines& lines) {
  constexpr int kernels = 100;
  const auto launch_all = [&] {
    for (int i = 0; i < kernels; ++i) launch_nothing(machine.device());
  };
  const auto write = [&](const char* what, const Quantiles& time) {
    lines.write(JsonLine{}
                    .add("kind", "ceiling")
                    .add("what", what)
                    .append(time_fields(time))
                    .add("kernels", kernels)
                    .add("us_per_kernel", time.median / kernels));
  };
  const gpu::Graph graph(machine.lane.stream, launch_all);
  write("empty kernels from a graph", time_on(
                                          machine.lane.stream, options.seconds, [] {},
                                          [&] { graph.launch(machine.lane.stream); }));
  write("empty kernels, launched", time_on(
                                       machine.lane.stream, options.seconds, [] {}, launch_all));
}

// --------------------------------------------------------------------------------------- passes

void initialize_mix(const GpuShape& shape, HostTensor<float, 3>& mix) {
  const mhla::InitialMixing options{.transform = shape.causal() ? mhla::Transform::causal
                                                                : mhla::Transform::linear};
  with_gpu_variant(shape,
                   [&](const auto& variant) { mhla::initialize(mix.view(), variant, options); });
}

/// The tensors of a shape on the device, random but for mix, which is the library's initial one.
template <class T>
class Operands {
 public:
  Operands(const GpuShape& shape, const CudaDevice& device)
      : shape_(shape),
        q_(bytes(shape.key_dim)),
        k_(bytes(shape.key_dim)),
        v_(bytes(shape.value_dim)),
        dy_(bytes(shape.value_dim)),
        y_(bytes(shape.value_dim)),
        dq_(bytes(shape.key_dim)),
        dk_(bytes(shape.key_dim)),
        dv_(bytes(shape.value_dim)),
        mix_(static_cast<std::size_t>(shape.blocks() * shape.blocks()) * sizeof(float)),
        dmix_(mix_.bytes()),
        mix(1, shape.blocks(), shape.blocks()) {
    fill_normal(device, q_.as<T>(), elements(shape.key_dim), 1);
    fill_normal(device, k_.as<T>(), elements(shape.key_dim), 2);
    fill_normal(device, v_.as<T>(), elements(shape.value_dim), 3);
    fill_normal(device, dy_.as<T>(), elements(shape.value_dim), 4);
    initialize_mix(shape, mix);
    gpu::check(
        cudaMemcpy(mix_.as<void>(), mix.elements().data(), mix_.bytes(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }

  GpuTensors<T> tensors() const {
    return {q_.as<T>(), k_.as<T>(),  v_.as<T>(),  dy_.as<T>(), mix_.as<float>(),
            y_.as<T>(), dq_.as<T>(), dk_.as<T>(), dv_.as<T>(), dmix_.as<float>()};
  }

  /// The last head of the last item: where an index that overflows has gone wrong.
  HeadTensors last_head() const {
    HeadTensors head;
    head.q = last_head(q_, shape_.key_dim), head.k = last_head(k_, shape_.key_dim);
    head.v = last_head(v_, shape_.value_dim), head.dy = last_head(dy_, shape_.value_dim);
    head.mix = mhla::testing::converted<double>(mix);
    head.y = head.dy, head.dq = head.q, head.dk = head.k, head.dv = head.v;
    return head;
  }
  HostTensor<double, 4> last_y() const { return last_head(y_, shape_.value_dim); }
  HostTensor<double, 4> last_dq() const { return last_head(dq_, shape_.key_dim); }
  HostTensor<double, 4> last_dk() const { return last_head(dk_, shape_.key_dim); }
  HostTensor<double, 4> last_dv() const { return last_head(dv_, shape_.value_dim); }
  /// Of all heads.
  HostTensor<float, 3> dmix() const {
    HostTensor<float, 3> sum = mix;
    gpu::check(
        cudaMemcpy(sum.elements().data(), dmix_.as<void>(), dmix_.bytes(), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    return sum;
  }

  /// Not-a-number in all that a pass writes.
  void poison(cudaStream_t stream) const {
    for (const DeviceArray* array : {&y_, &dq_, &dk_, &dv_, &dmix_})
      gpu::check(cudaMemsetAsync(array->as<void>(), 0xff, array->bytes(), stream),
                 "cudaMemsetAsync");
  }

 private:
  mhla::Index elements(std::ptrdiff_t dim) const {
    return shape_.batch * shape_.heads * shape_.tokens() * dim;
  }
  std::size_t bytes(std::ptrdiff_t dim) const {
    return static_cast<std::size_t>(elements(dim)) * sizeof(T);
  }
  HostTensor<double, 4> last_head(const DeviceArray& array, std::ptrdiff_t dim) const {
    HostTensor<T, 4> head(1, 1, shape_.tokens(), dim);
    gpu::check(cudaMemcpy(head.elements().data(), array.as<T>() + elements(dim) - head.size(),
                          head.elements().size() * sizeof(T), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    return mhla::testing::converted<double>(head);
  }

  GpuShape shape_;
  DeviceArray q_, k_, v_, dy_, y_, dq_, dk_, dv_, mix_, dmix_;

 public:
  HostTensor<float, 3> mix;
};

/// What a pass moves and computes at the least.
struct Work {
  const char* name;
  double bytes;
  double flops;
};

/// One pass from a graph with warm and with cold cache, and call by call.
void measure_pass(const Machine& machine, const Options& options, const JsonLine& head,
                  const Work& work, const GpuPass& pass, const JsonLine& choice,
                  mhla::WorkspaceView workspace, const JsonLine& errors, Lines& lines) {
  const CudaPath path = pass.cost.choice.path;
  const auto run = [&] { pass.run(machine.device(path), workspace); };
  const auto write = [&](const char* mode, const Quantiles& time, const JsonLine& more) {
    const double bandwidth = work.bytes / (time.median * 1e-6);
    lines.write(
        JsonLine(head)
            .add("pass", work.name)
            .add("path", name_of(path))
            .add("mode", mode)
            .append(time_fields(time))
            .add("useful_bytes", work.bytes)
            .add("useful_gb_per_s", bandwidth * 1e-9)
            .add("fraction_of_copy", bandwidth / machine.copy_bandwidth)
            .add("useful_tflop_per_s", work.flops / time.median * 1e-6)
            .add("workspace_bytes", static_cast<double>(pass.cost.workspace_bytes))
            .add("moved_gb_per_s", static_cast<double>(pass.cost.bytes_moved) / time.median * 1e-3)
            .append(choice)
            .append(more)
            .append(errors));
  };
  const auto nothing = [] {};
  const auto cold = [&] { machine.empty_cache(); };
  const gpu::Graph graph(machine.lane.stream, run);
  const auto replay = [&] { graph.launch(machine.lane.stream); };
  write("graph, cold L2", time_on(machine.lane.stream, options.seconds, cold, replay), {});
  write("graph, warm L2", time_on(machine.lane.stream, options.seconds, nothing, replay), {});

  // How long the caller is kept, the stream being empty.
  using Clock = std::chrono::steady_clock;
  std::vector<double> kept;
  for (int i = 0; i < 10; ++i) {
    const auto start = Clock::now();
    run();
    kept.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    machine.lane.stream.wait();
  }
  const Quantiles calls = time_on(machine.lane.stream, options.seconds, nothing, run);
  write("calls, warm L2", calls,
        JsonLine{}.add("host_us", quantiles(kept).median).append(chip_fields()));
}

/// Root mean square of the errors over that of the values.
double rms_error(const HostTensor<double, 4>& actual, const HostTensor<double, 4>& exact) {
  return mhla::testing::compare(actual.view(), exact.view()).rms_ratio;
}

/// What the library would choose, and what its model says of a path.
JsonLine model_fields(const GpuPass& chosen, const GpuPass& pass) {
  const mhla::cuda::NominalGpu nominal;
  return JsonLine{}
      .add("automatic", name_of(chosen.cost.choice.path))
      .add("model_us", 1e6 * pass.cost.choice.cost().seconds(nominal))
      .add("model_bytes", static_cast<double>(pass.cost.bytes_moved))
      .add("model_flops", static_cast<double>(pass.cost.flops));
}

/// What a path's results differ by from those of one head in double, and dmix, a sum over all
/// heads, from `other_dmix`, where there is another.
struct Errors {
  JsonLine forward, backward;
};
template <class T>
Errors errors_of(const Operands<T>& operands, const HeadTensors& exact,
                 const HostTensor<float, 3>& other_dmix) {
  Errors errors;
  errors.forward.add("error_y", rms_error(operands.last_y(), exact.y));
  errors.backward.add("error_dq", rms_error(operands.last_dq(), exact.dq))
      .add("error_dk", rms_error(operands.last_dk(), exact.dk))
      .add("error_dv", rms_error(operands.last_dv(), exact.dv));
  if (other_dmix.size() > 0)
    errors.backward.add(
        "dmix_from_first_path",
        mhla::testing::compare(operands.dmix().view(), other_dmix.view()).rms_ratio);
  return errors;
}

template <class T>
void measure_shape(const Machine& machine, const Options& options, const GpuShape& shape,
                   Lines& lines) {
  const JsonLine head =
      JsonLine{}.add("kind", "pass").add("shape", shape.name).add("scalar", scalar_name<T>);
  try {
    const Operands<T> operands(shape, machine.device());
    const GpuPasses chosen = gpu_passes<T>(shape, machine.device(), operands.tensors());
    HeadTensors exact;
    if (options.errors) {
      machine.lane.stream.wait();
      exact = operands.last_head();
      compute_reference(shape, exact, true);
    }
    HostTensor<float, 3> first_dmix;
    for (const CudaPath path :
         {CudaPath::cublas, CudaPath::summaries, CudaPath::quadratic, CudaPath::resident}) {
      if (options.paths.find(name_of(path)) == std::string::npos) continue;
      if (path == CudaPath::quadratic && shape.tokens() > 8192) continue;
      const mhla::cuda::Refusal refusal = chosen.forward.cost.choice.option(path).refusal;
      if (!refusal.none()) {
        lines.write(JsonLine(head).add("path", name_of(path)).add("refused", refusal.text()));
        continue;
      }
      const auto measure = [&](const GpuTensors<T>& tensors, const Work& forward,
                               const Work& backward) {
        const GpuPasses passes = gpu_passes<T>(shape, machine.device(path), tensors);
        const auto bytes = static_cast<std::size_t>(
            std::max(passes.forward.cost.workspace_bytes,
                     passes.backward ? passes.backward->cost.workspace_bytes : 0));
        const DeviceArray memory(bytes);
        const mhla::WorkspaceView workspace{memory.as<std::byte>(),
                                            static_cast<mhla::Index>(bytes)};
        // Checked before it is timed, in memory that holds not-a-number.
        operands.poison(machine.lane.stream);
        passes.forward.run(machine.device(path), workspace);
        if (passes.backward) passes.backward->run(machine.device(path), workspace);
        machine.lane.stream.wait();
        Errors errors;
        if (options.errors) {
          errors = errors_of(operands, exact, first_dmix);
          if (passes.backward && first_dmix.size() == 0) first_dmix = operands.dmix();
        }
        const auto y = operands.last_y().elements();
        errors.forward.add("y_last", std::vector<double>(y.end() - 8, y.end()));
        measure_pass(machine, options, head, forward, passes.forward,
                     model_fields(chosen.forward, passes.forward), workspace, errors.forward,
                     lines);
        if (passes.backward)
          measure_pass(machine, options, head, backward, *passes.backward,
                       model_fields(*chosen.backward, *passes.backward), workspace, errors.backward,
                       lines);
      };
      const double forward_bytes = shape.forward_elements() * sizeof(T);
      const double backward_bytes = shape.backward_elements() * sizeof(T);
      try {
        measure(operands.tensors(), {"forward", forward_bytes, shape.forward_flops()},
                {"backward", backward_bytes, shape.backward_flops()});
        if (!mhla::cuda::traits_of(path).keeps_state) continue;
        const mhla::Index size = gpu_state_size(shape, machine.device());
        const DeviceArray state(static_cast<std::size_t>(size) * sizeof(float));
        GpuTensors<T> tensors = operands.tensors();
        tensors.state = {state.as<float>(), size};
        measure(tensors, {"forward, saving", forward_bytes, shape.forward_flops()},
                {"backward, saved", backward_bytes, shape.backward_flops()});
      } catch (const std::exception& error) {
        lines.write(JsonLine(head).add("path", name_of(path)).add("error", error.what()));
        cudaGetLastError();  // a failed allocation is not the next path's
      }
    }
  } catch (const std::exception& error) {
    lines.write(JsonLine(head).add("error", error.what()));
    cudaGetLastError();  // nor the next shape's
  }
}

Options parsed(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-errors" || name == "--no-ceilings" || name == "--list") {
      (name == "--list"        ? options.list
       : name == "--no-errors" ? options.errors
                               : options.ceilings) = name == "--list";
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + ": unknown, or lacks its value");
    const std::string value = argv[++i];
    if (name == "--out")
      options.out = value;
    else if (name == "--shapes")
      options.shapes = value;
    else if (name == "--scalars")
      options.scalars = value;
    else if (name == "--paths")
      options.paths = value;
    else if (name == "--seconds") {
      const char* const end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, options.seconds);
      if (error != std::errc() || stop != end || !(options.seconds > 0 && options.seconds < 1e6))
        throw std::invalid_argument("--seconds is " + value +
                                    "; it must be a number of seconds above 0 and below 1e6");
    } else
      throw std::invalid_argument(name + ": unknown");
  }
  return options;
}

/// Those that matter most first: time on a GPU may end.
std::vector<GpuShape> ordered_shapes() {
  std::vector<GpuShape> shapes = gpu_shapes();
  auto rest = shapes.begin();
  for (const char* name :
       {"Wan_B1", "DiT-XL/2_512_B64", "DiT-XL/2_256_B64", "NLP_128x128_N2048_B8"})
    rest = std::stable_partition(rest, shapes.end(),
                                 [&](const GpuShape& shape) { return shape.name == name; });
  return shapes;
}

/// For the peers: what a shape is, and its mixing matrix.
void list_shapes() {
  const char* separator = "[";
  for (const GpuShape& shape : ordered_shapes()) {
    HostTensor<float, 3> mix(1, shape.blocks(), shape.blocks());
    initialize_mix(shape, mix);
    const auto axes = [](const std::ptrdiff_t(&extents)[3]) {
      return std::vector<double>(extents, extents + 3);
    };
    std::printf("%s%s", separator,
                JsonLine{}
                    .add("name", shape.name)
                    .add("model", shape.causal()                   ? "language"
                                  : shape.model == GpuModel::video ? "video"
                                                                   : "key_sum")
                    .add("batch", static_cast<double>(shape.batch))
                    .add("heads", static_cast<double>(shape.heads))
                    .add("key_dim", static_cast<double>(shape.key_dim))
                    .add("value_dim", static_cast<double>(shape.value_dim))
                    .add("grid", axes(shape.grid))
                    .add("block", axes(shape.block))
                    .add("mix", std::vector<double>(mix.elements().begin(), mix.elements().end()))
                    .str()
                    .c_str());
    separator = ",\n";
  }
  std::puts("]");
}

int run(const Options& options) {
  if (options.list) {
    list_shapes();
    return 0;
  }
  const std::string missing = gpu::why_no_gpu();
  if (!missing.empty()) {
    std::printf("Skipped: no GPU: %s\n", missing.c_str());
    return gpu::exit_without_gpu;
  }
  Lines lines(options.out, machine_fields());
  Machine machine;
  if (options.ceilings) {
    measure_copy(machine, options, lines);
    measure_products(machine, options, lines);
    measure_launches(machine, options, lines);
  }
  const auto measure_all = [&](auto measure) {
    for (const GpuShape& shape : ordered_shapes())
      if (shape.name.find(options.shapes) != std::string::npos) measure(shape);
  };
  if (options.scalars.find("bfloat16") != std::string::npos)
    measure_all([&](const GpuShape& s) { measure_shape<BFloat16>(machine, options, s, lines); });
  if (options.scalars.find("float,") == 0 || options.scalars == "float" ||
      options.scalars.find(",float") != std::string::npos)
    measure_all([&](const GpuShape& s) { measure_shape<float>(machine, options, s, lines); });
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) try {
  return bench::run(bench::parsed(argc, argv));
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_gpu: %s\n", error.what());
  return 1;
}
