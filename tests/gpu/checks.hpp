// SPDX-License-Identifier: MIT
// What must hold on a GPU, over every variant of variants.hpp on tensors of T; one translation unit
// (scalar_*.cpp) for each T.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mhla/core/error.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/choose_path.hpp>
#include <mhla/cuda/decoding.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "call.hpp"
#include "groups.hpp"
#include "variants.hpp"

namespace gpu {

/// What is tolerated of y, dq, dk, dv and dmix, as RMS(error) / RMS(expected).
struct Bounds {
  double y, dq, dk, dv, dmix;

  Bounds operator*(double factor) const {
    return {factor * y, factor * dq, factor * dk, factor * dv, factor * dmix};
  }
};

/// What the rounding of T explains; dmix is in the accumulator.
template <class T>
inline constexpr double tolerance = std::is_same_v<T, double>           ? 1e-12
                                    : std::is_same_v<T, float>          ? 1e-5
                                    : std::is_same_v<T, mhla::BFloat16> ? 4e-3
                                                                        : 1e-3;
template <class T>
inline constexpr Bounds bounds{tolerance<T>, tolerance<T>, tolerance<T>, tolerance<T>,
                               tolerance<Accumulator<T>>};

/// Of the fused paths, whose features and summaries are rounded to T as well.
template <class T>
inline constexpr Bounds path_bounds =
    std::is_same_v<T, mhla::BFloat16> ? Bounds{4e-3, 6e-3, 4e-3, 4e-3, 3e-3}
                                      : Bounds{1e-3, 1e-3, 1e-3, 1e-3, 1e-3};

template <class T>
inline constexpr const char* scalar_name = std::is_same_v<T, double>           ? "double"
                                           : std::is_same_v<T, float>          ? "float"
                                           : std::is_same_v<T, mhla::BFloat16> ? "BFloat16"
                                                                               : "Half";
template <class T>
std::string title(const char* group, const std::string& name) {
  return std::string(group) + ", " + scalar_name<T> + ", " + name;
}

constexpr mhla::CudaPath every_path[] = {mhla::CudaPath::cublas, mhla::CudaPath::summaries,
                                         mhla::CudaPath::quadratic, mhla::CudaPath::resident};
constexpr mhla::CudaPath fused_paths[] = {mhla::CudaPath::summaries, mhla::CudaPath::quadratic,
                                          mhla::CudaPath::resident};
inline std::string on(mhla::CudaPath path, const std::string& name) {
  return name + ", path " + mhla::cuda::name_of(path);
}
/// Calls f(path) for those of `paths` that can run a forward pass; says why others cannot.
template <class T, class V, class Paths, class F>
void for_each_path(Report& report, const std::string& title, const V& attention, const Shape& shape,
                   const Paths& paths, const F& f) {
  const auto cost = mhla::cuda::call_cost<T>(attention, shape, mhla::CudaDevice(nullptr, nullptr),
                                             mhla::cuda::Direction::forward);
  for (const mhla::CudaPath path : paths) {
    if (!only_path.empty() && only_path != mhla::cuda::name_of(path)) continue;
    const mhla::cuda::Refusal& refusal = cost.choice.option(path).refusal;
    if (refusal.none()) {
      f(path);
    } else {
      report.skip(on(path, title), refusal.text());
    }
  }
}

/// Expects results to be near others, those in double for example.
template <class T, class U>
void expect_near(Report& report, const std::string& title, const Results<T>& actual,
                 const Results<U>& expected, const Bounds& tolerated) {
  const auto expect = [&](const char* tensor, const auto& got, const auto& want, double bound) {
    const auto comparison = mhla::testing::compare(got.view(), want.view());
    report.expect(comparison.rms_ratio <= bound, title + ": " + tensor, comparison.report());
  };
  expect("y", actual.y, expected.y, tolerated.y);
  expect("dq", actual.dq, expected.dq, tolerated.dq);
  expect("dk", actual.dk, expected.dk, tolerated.dk);
  expect("dv", actual.dv, expected.dv, tolerated.dv);
  expect("dmix", actual.dmix, expected.dmix, tolerated.dmix);
}

/// A call's results in memory that held something else.
template <class T, class V>
Results<T> fresh_results(Call<T, V>& call, const Lane& lane,
                         mhla::CudaPath path = mhla::CudaPath::automatic) {
  const mhla::CudaDevice device = lane.device(path);
  call.reserve(device);
  call.poison();
  call.forward(device);
  call.backward(device);
  lane.stream.wait();
  return call.results();
}

/// Runs a case, named before it runs. What it throws is its failure, and the next case runs, unless
/// the GPU can do no more.
template <class Case>
void attempt(Report& report, const std::string& title, const Case& run) {
  report.begin(title);
  try {
    run();
  } catch (const std::exception& error) {
    report.expect(false, title, error.what());
    cudaGetLastError();
    check(cudaDeviceSynchronize(), "after an error that stays, nothing runs in this process");
  }
}

/// Calls f(name, attention, shape) for every case of scalar T.
template <class T, class F>
void attempt_each_case(Report& report, const char* group, const F& f) {
  if (!only_path.empty()) return;
  for_each_case<T>([&](const std::string& name, const auto& attention, const Shape& shape) {
    attempt(report, title<T>(group, name), [&] { f(name, attention, shape); });
  });
}
/// Calls f(name, attention, shape, path) for every case that has fused kernels, on every path.
template <class T, class Paths, class F>
void attempt_each_fused_case(Report& report, const char* group, const Paths& paths, const F& f) {
  const auto on_each_of = [&](const auto& some) {
    return [&](const std::string& name, const auto& attention, const Shape& shape) {
      for_each_path<T>(
          report, title<T>(group, name), attention, shape, some, [&](mhla::CudaPath path) {
            const std::string where = on(path, name);
            attempt(report, title<T>(group, where), [&] { f(where, attention, shape, path); });
          });
    };
  };
  for_each_fused_case<T>(on_each_of(paths));
  constexpr std::array resident{mhla::CudaPath::resident};
  if (std::count(std::begin(paths), std::end(paths), resident[0]) > 0)
    for_each_sliced_case<T>(on_each_of(resident));
}

/// Calls f(name, attention, shape, path) for every case of scalar T: those of variants.hpp as they
/// come, and those that fused kernels run on every path.
template <class T, class F>
void attempt_each_case_and_path(Report& report, const char* group, const F& f) {
  attempt_each_case<T>(report, group,
                       [&](const std::string& name, const auto& attention, const Shape& shape) {
                         f(name, attention, shape, mhla::CudaPath::automatic);
                       });
  attempt_each_fused_case<T>(report, group, every_path, f);
}

/// A Call, of a variant that is deduced.
template <class T, class V>
Call<T, V> make_call(const V& attention, const Shape& shape, std::uint64_t seed,
                     Layout layout = Layout::heads_first) {
  return {attention, Inputs<T>(shape, seed), layout};
}

/// Tokens [first, first + count) of sequences [sequence, sequence + sequences).
template <class T>
TensorView<T, 4> piece(TensorView<T, 4> of, Index sequence, Index sequences, Index first,
                       Index count) {
  of.data += sequence * of.stride[0] + first * of.stride[2];
  of.extent[0] = sequences;
  of.extent[2] = count;
  return of;
}

/// y and dq of a causal call's first tokens once more, before infinities and not-a-numbers: y to
/// the bit.
template <class T, class V>
void expect_causality(Report& report, const Lane& lane, const std::string& title,
                      const V& attention, Inputs<T> inputs, const Results<T>& results,
                      mhla::CudaPath path, const Bounds& tolerated) {
  const Index tokens = inputs.q.extent(2), cut = tokens * 3 / 4;
  const auto spoil = [&](Index first, Index count, float value) {
    for (HostTensor<T, 4>* x : {&inputs.q, &inputs.k, &inputs.v})
      mhla::testing::for_each_element([&](T& element) { mhla::store(element, value); },
                                      piece(x->view(), 0, x->extent(0), first, count));
  };
  spoil(cut, 1, std::numeric_limits<float>::infinity());
  spoil(cut + 1, tokens - cut - 1, std::numeric_limits<float>::quiet_NaN());
  Call<T, V> call(attention, inputs);
  const Results<T> spoilt = fresh_results(call, lane, path);
  const auto first = [&](const HostTensor<T, 4>& x) {
    return piece(x.view(), 0, x.extent(0), 0, cut);
  };
  report.expect(mhla::testing::bitwise_equal(first(spoilt.y), first(results.y)),
                title + ": y of earlier tokens");
  const auto comparison = mhla::testing::compare(first(spoilt.dq), first(results.dq));
  report.expect(comparison.rms_ratio <= tolerated.dq, title + ": dq of earlier tokens",
                comparison.report());
}

/// The CPU backend's results, whatever memory held before, in both layouts.
template <class T, class V>
void expect_parity(Report& report, const Lane& lane, const char* group, const std::string& name,
                   const V& attention, const Shape& shape, mhla::CudaPath path,
                   const Bounds& tolerated) {
  const Inputs<T> inputs(shape, 100);
  const Results<double> expected = on_cpu(attention, inputs);
  for (const Layout layout : {Layout::heads_first, Layout::tokens_first}) {
    const std::string what =
        title<T>(group, layout == Layout::heads_first ? name : name + ", tokens first");
    Call<T, V> call(attention, inputs, layout);
    const Results<T> results = fresh_results(call, lane, path);
    expect_near(report, what, results, expected, tolerated);
    report.expect(call.damage().empty(), what + ": nothing else is written", call.damage());

    // Onto themselves: twice the gradients, and rounded once more.
    call.start_gradients_at(results);
    call.backward(lane.device(path), Update::accumulate);
    lane.stream.wait();
    Results<double> twice = expected;
    const auto add = [](auto& tensor, const auto& addend) {
      mhla::testing::for_each_element([](double& to, const double& x) { to += x; }, tensor.view(),
                                      addend.view());
    };
    add(twice.dq, expected.dq), add(twice.dk, expected.dk), add(twice.dv, expected.dv);
    add(twice.dmix, expected.dmix);
    expect_near(report, what + ", accumulated", call.results(), twice, tolerated * 2);
    if constexpr (mhla::is_causal_within_block<V>)
      if (layout == Layout::heads_first)
        expect_causality(report, lane, what, attention, inputs, results, path, tolerated);
  }
}

template <class T>
void check_parity(Report& report) {
  const Lane lane;
  attempt_each_case<T>(report, "parity",
                       [&](const std::string& name, const auto& attention, const Shape& shape) {
                         expect_parity<T>(report, lane, "parity", name, attention, shape,
                                          mhla::CudaPath::automatic, bounds<T>);
                       });
}

/// Likewise on every path that runs the call.
template <class T>
void check_paths(Report& report) {
  const Lane lane;
  attempt_each_fused_case<T>(
      report, "paths", every_path,
      [&](const std::string& name, const auto& attention, const Shape& shape, mhla::CudaPath path) {
        expect_parity<T>(report, lane, "paths", name, attention, shape, path, path_bounds<T>);
      });
}

/// Paths among themselves, on calls that are too large for the CPU.
template <class T>
void check_large_paths(Report& report) {
  const Lane lane;
  for_each_large_fused_case<T>(
      [&](const std::string& name, const auto& attention, const Shape& shape) {
        const auto results_on = [&](mhla::CudaPath path) {
          auto call = make_call<T>(attention, shape, 700);
          const Results<T> results = fresh_results(call, lane, path);
          report.expect(call.damage().empty(),
                        title<T>("large paths", on(path, name)) + ": nothing else is written",
                        call.damage());
          return results;
        };
        const std::string large = title<T>("large paths", name);
        for_each_path<T>(report, large, attention, shape, fused_paths, [&](mhla::CudaPath path) {
          const std::string what = on(path, large) + " against cublas";
          attempt(report, what, [&] {
            expect_near(report, what, results_on(path), results_on(mhla::CudaPath::cublas),
                        path_bounds<T> * 2);
          });
        });
      });
}

/// A forward state spares work and changes nothing: no bit on the summaries path; on cuBLAS, which
/// may compute the same product in another way, no more than rounding does.
template <class T>
void check_states(Report& report) {
  const Lane lane;
  const auto check = [&](const std::string& name, const auto& attention, const Shape& shape,
                         mhla::CudaPath path) {
    const std::string what = title<T>("states", name);
    auto call = make_call<T>(attention, shape, 800);
    const Results<T> recomputed = fresh_results(call, lane, path);
    auto saving = make_call<T>(attention, shape, 800);
    saving.keep_state(lane.device(path));
    const Results<T> saved = fresh_results(saving, lane, path);
    report.expect(saving.damage().empty(), what + ": nothing else is written", saving.damage());
    if (path == mhla::CudaPath::summaries) {
      report.expect(saved == recomputed, what);
    } else {
      expect_near(report, what, saved, recomputed, bounds<T>);
    }
  };
  attempt_each_case<T>(
      report, "states", [&](const std::string& name, const auto& attention, const Shape& shape) {
        check(on(mhla::CudaPath::cublas, name), attention, shape, mhla::CudaPath::cublas);
      });
  attempt_each_fused_case<T>(report, "states",
                             std::array{mhla::CudaPath::cublas, mhla::CudaPath::summaries}, check);
}

/// Forward and backward of a larger call on another stream, again and again, so that what is
/// looked at never has the GPU for itself.
template <class T>
class OtherWork {
 public:
  OtherWork() : call_(make_call<T>(attention(), with_blocks(attention(), shape()), 900)) {
    call_.reserve(lane_.device());
  }
  ~OtherWork() { cudaStreamSynchronize(lane_.stream); }

  void wait() const { lane_.stream.wait(); }

  void add() {
    call_.forward(lane_.device());
    call_.backward(lane_.device());
  }

 private:
  static Image attention() { return {.blocks = {{40, 40}, {8, 8}}}; }
  static Shape shape() { return tokens(4, 4, 4, 1600, 32, 32, 1); }

  Lane lane_;
  Call<T, Image> call_;
};

/// The same bits, whatever else the GPU does.
template <class T>
void check_determinism(Report& report) {
  const Lane lane;
  OtherWork<T> other;
  attempt_each_case_and_path<T>(
      report, "determinism",
      [&](const std::string& name, const auto& attention, const Shape& shape, mhla::CudaPath path) {
        auto call = make_call<T>(attention, shape, 200);
        other.wait();
        const Results<T> alone = fresh_results(call, lane, path);
        int different = 0;
        constexpr int runs = 20;
        for (int run = 0; run < runs; ++run) {
          other.add();
          different += !(fresh_results(call, lane, path) == alone);
        }
        report.expect(different == 0, title<T>("determinism", name),
                      std::to_string(different) + " of " + std::to_string(runs) +
                          " runs beside other work have other bits");
      });
}

/// A recorded call is a call.
template <class T>
void check_graphs(Report& report) {
  const Lane lane;
  if (!can_capture(lane.stream)) {
    report.skip(title<T>("graphs", "all"), "streams cannot be recorded here");
    return;
  }
  attempt_each_case_and_path<T>(
      report, "graphs",
      [&](const std::string& name, const auto& attention, const Shape& shape, mhla::CudaPath path) {
        const std::string what = title<T>("graphs", name);
        auto call = make_call<T>(attention, shape, 300);
        const Results<T> eager = fresh_results(call, lane, path);
        const Graph graph(lane.stream, [&] {
          call.forward(lane.device(path));
          call.backward(lane.device(path));
        });
        const auto replayed = [&] {
          call.poison();
          graph.launch(lane.stream);
          lane.stream.wait();
          return call.results();
        };
        report.expect(replayed() == eager, what + ": the first replay");
        report.expect(replayed() == eager, what + ": the second replay");
        const Inputs<T> others(shape, 350);
        call.replace(others);
        const Results<T> of_others = replayed();
        report.expect(!(of_others == eager), what + ": other operands give other results");
        report.expect(fresh_results(call, lane, path) == of_others,
                      what + ": a replay on other operands");
        report.expect(call.damage().empty(), what + ": nothing else is written", call.damage());
      });
}

/// The caller's handle, gradients left out, errors.
template <class T>
void check_etiquette(Report& report) {
  const Lane lane;
  const Stream callers;
  const Image attention{.blocks = {{7, 5}, {2, 3}}};
  const Shape shape = with_blocks(attention, tokens(2, 4, 2, 35, 8, 6, 1));
  const auto what = [](const char* name) { return title<T>("etiquette", name); };

  // The caller's handle, in a state of its own.
  auto call = make_call<T>(attention, shape, 400);
  const Results<T> plain = fresh_results(call, lane);
  check(cublasSetStream(lane.cublas, callers), "cublasSetStream");
  check(cublasSetPointerMode(lane.cublas, CUBLAS_POINTER_MODE_DEVICE), "cublasSetPointerMode");
  check(cublasSetMathMode(lane.cublas, CUBLAS_TF32_TENSOR_OP_MATH), "cublasSetMathMode");
  const Results<T> tuned = fresh_results(call, lane);
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  check(cublasGetStream(lane.cublas, &stream), "cublasGetStream");
  check(cublasGetPointerMode(lane.cublas, &pointers), "cublasGetPointerMode");
  check(cublasGetMathMode(lane.cublas, &math), "cublasGetMathMode");
  report.expect(stream == callers, what("the handle is on its caller's stream again"));
  report.expect(pointers == CUBLAS_POINTER_MODE_DEVICE, what("and in its pointer mode"));
  report.expect(math == CUBLAS_TF32_TENSOR_OP_MATH, what("and in its math mode"));
  report.expect(tuned == plain, what("a handle in TF32 mode changes no bit"));

  // TF32 where it is asked for: 2^-11 in every factor, and twenty times that where terms cancel.
  if constexpr (std::is_same_v<T, float>) {
    const mhla::CudaDevice tf32 = lane.device(mhla::FloatProducts::tf32);
    call.poison();
    call.forward(tf32);
    call.backward(tf32);
    lane.stream.wait();
    expect_near(report, what("TF32"), call.results(), on_cpu(attention, Inputs<T>(shape, 400)),
                bounds<T> * 3000);
  }

  // Gradients that are left out are not written, the others are what they were.
  call.poison();
  const Results<T> before = call.results();
  call.backward(lane.device(), {mhla::skip, call.dk().view(), call.dv().view(), mhla::skip},
                Update::overwrite);
  lane.stream.wait();
  const Results<T> some = call.results();
  using mhla::testing::bitwise_equal;
  report.expect(bitwise_equal(some.dk.view(), plain.dk.view()) &&
                    bitwise_equal(some.dv.view(), plain.dv.view()),
                what("dk and dv alone have the same bits"));
  report.expect(bitwise_equal(some.dq.view(), before.dq.view()) &&
                    bitwise_equal(some.dmix.view(), before.dmix.view()),
                what("gradients left out are not written"));

  // Without value columns nothing is summed, and gradients are zeros.
  const Inputs<T> empty(with_blocks(attention, tokens(2, 4, 2, 35, 8, 0, 1)), 450);
  Call<T, Image> empty_call(attention, empty);
  expect_near(report, what("no value columns"), fresh_results(empty_call, lane),
              on_cpu(attention, empty), {});

  // Too little memory is an error, before anything runs.
  const Index enough = mhla::forward_workspace_size<T>(attention, shape, lane.device());
  const GuardedBuffer memory(enough);
  const DeviceTensor<T, 4> q(Inputs<T>(shape, 1).q), k(Inputs<T>(shape, 1).k),
      v(Inputs<T>(shape, 1).v), y(Inputs<T>(shape, 1).dy);
  const DeviceTensor<Accumulator<T>, 3> mix(Inputs<T>(shape, 1).mix);
  std::string message;
  try {
    mhla::forward_into(attention, lane.device(), q.view(), k.view(), v.view(), mix.view(), y.view(),
                       mhla::WorkspaceView{memory.data(), enough - 1});
  } catch (const mhla::WorkspaceError& error) {
    message = error.what();
  }
  lane.stream.wait();
  report.expect(!message.empty(), what("one byte too little is a WorkspaceError"), message);
  report.expect(bitwise_equal(y.download().view(), Inputs<T>(shape, 1).dy.view()),
                what("and nothing was written"));
}

/// A call whose arguments can be replaced one at a time.
template <class T>
struct LooseCall {
  using A = Accumulator<T>;

  Image attention{.blocks = {{7, 5}, {2, 3}}};
  Inputs<T> inputs;
  GuardedBuffer memory;
  DeviceTensor<T, 4> on_device[8];  // q, k, v, dy, y, dq, dk, dv
  DeviceTensor<A, 3> mix_on_device, dmix_on_device;
  TensorView<T, 4> q, k, v, dy, y, dq, dk, dv;
  TensorView<A, 3> mix, dmix;
  mhla::WorkspaceView workspace;

  explicit LooseCall(const mhla::CudaDevice& device)
      : inputs(with_blocks(attention, tokens(2, 4, 2, 35, 8, 6, 1)), 600),
        memory(std::max(mhla::forward_workspace_size<T>(attention, inputs.shape(), device),
                        mhla::backward_workspace_size<T>(attention, inputs.shape(), device))),
        on_device{DeviceTensor<T, 4>(inputs.q),  DeviceTensor<T, 4>(inputs.k),
                  DeviceTensor<T, 4>(inputs.v),  DeviceTensor<T, 4>(inputs.dy),
                  DeviceTensor<T, 4>(inputs.dy), DeviceTensor<T, 4>(inputs.q),
                  DeviceTensor<T, 4>(inputs.k),  DeviceTensor<T, 4>(inputs.v)},
        mix_on_device(inputs.mix),
        dmix_on_device(inputs.mix) {
    restore();
  }
  void restore() {
    TensorView<T, 4>* const views[] = {&q, &k, &v, &dy, &y, &dq, &dk, &dv};
    for (std::size_t i = 0; i < 8; ++i) *views[i] = on_device[i].view();
    mix = mix_on_device.view();
    dmix = dmix_on_device.view();
    workspace = memory.workspace();
  }

  void forward(const mhla::CudaDevice& device) const {
    mhla::forward_into(attention, device, q, k, v, mix, y, workspace);
  }
  void backward(const mhla::CudaDevice& device) const {
    mhla::backward_into(attention, device, q, k, v, mix, dy, {dq, dk, dv, dmix}, Update::overwrite,
                        workspace);
  }
  Results<T> results() const {
    return {on_device[4].download(), on_device[5].download(), on_device[6].download(),
            on_device[7].download(), dmix_on_device.download()};
  }
};

/// What an E says that a call throws; empty where it throws none.
template <class E, class Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

/// Addresses that no kernel can follow are errors that name the argument, after which the GPU still
/// works. Each argument in turn lies in host memory, or between two elements.
template <class T>
void check_pointers(Report& report) {
  const Lane lane;
  const mhla::CudaDevice device = lane.device();
  LooseCall<T> call(device);
  const auto what = [](const std::string& name) { return title<T>("pointers", name); };
  const Results<T> before = call.results();
  const std::vector<double> host_memory(
      static_cast<std::size_t>(call.workspace.size) / sizeof(double) + 16);
  const auto host = reinterpret_cast<std::uintptr_t>(host_memory.data()) / 64 * 64 + 64;
  const auto check_argument = [&](const char* name, bool forward, auto& argument) {
    using Element = std::remove_pointer_t<decltype(argument.data)>;
    const auto run = [&] { forward ? call.forward(device) : call.backward(device); };
    const std::string prefix = std::string("mhla: ") + name + ": ";
    const std::string of =
        std::string(name) + (forward ? " of the forward pass" : " of the backward pass");
    const auto device_address = reinterpret_cast<std::uintptr_t>(argument.data);
    for (const std::uintptr_t address : {host, std::uintptr_t{0}}) {
      argument.data = reinterpret_cast<Element*>(address);
      const std::string message = refusal<mhla::CudaError>(run);
      report.expect(message.starts_with(prefix + "the address is not in memory"),
                    what(of + (address == 0 ? ", no address" : ", in host memory")), message);
    }
    if constexpr (alignof(Element) > 1) {
      argument.data = reinterpret_cast<Element*>(device_address + alignof(Element) / 2);
      const std::string message = refusal<mhla::ShapeError>(run);
      report.expect(message.starts_with(prefix + "the address is not a multiple"),
                    what(of + ", between two elements"), message);
    }
    call.restore();
  };
  for (const bool forward : {true, false}) {
    check_argument("q", forward, call.q);
    check_argument("k", forward, call.k);
    check_argument("v", forward, call.v);
    check_argument("mix", forward, call.mix);
    check_argument("workspace", forward, call.workspace);
  }
  check_argument("y", true, call.y);
  check_argument("dy", false, call.dy);
  check_argument("dq", false, call.dq);
  check_argument("dk", false, call.dk);
  check_argument("dv", false, call.dv);
  check_argument("dmix", false, call.dmix);
  report.expect(cudaGetLastError() == cudaSuccess, what("no error is left"));
  lane.stream.wait();
  report.expect(call.results() == before, what("nothing was written"));

  // An earlier error of the caller's is not taken for one of the call.
  void* too_much = nullptr;
  const cudaError_t refused = cudaMalloc(&too_much, ~std::size_t{0} / 2);
  report.expect(refused != cudaSuccess, what("more memory than there is"),
                cudaGetErrorString(refused));
  call.forward(device);
  call.backward(device);
  lane.stream.wait();
  cudaGetLastError();
  const Results<T> results = call.results();
  expect_near(report, what("the same call with its own memory"), results,
              on_cpu(call.attention, call.inputs), bounds<T>);

  // Memory that the host reads as well will do.
  void* managed = nullptr;
  const auto bytes = static_cast<std::size_t>(call.inputs.q.size()) * sizeof(T);
  check(cudaMallocManaged(&managed, bytes), "cudaMallocManaged");
  check(cudaMemcpy(managed, call.inputs.q.view().data, bytes, cudaMemcpyHostToDevice),
        "cudaMemcpy");
  call.q.data = static_cast<T*>(managed);
  call.forward(device);
  call.backward(device);
  lane.stream.wait();
  report.expect(call.results() == results, what("q in managed memory"));
  cudaFree(managed);
}

/// What the CPU's forward pass computes: decoded in steps of many tokens, after a snapshot was
/// restored, in replays of a recorded step, and again from the start.
template <class T, class V>
void expect_decoded(Report& report, const Lane& lane, const std::string& what, const V& attention,
                    const Shape& shape) {
  using Decoder = mhla::CudaDecoder<V, T>;
  const Inputs<T> inputs(shape, 1000);
  const DeviceTensor<T, 4> q(inputs.q), k(inputs.k), v(inputs.v), y(inputs.dy);
  const DeviceTensor<Accumulator<T>, 3> mix(inputs.mix);
  const mhla::CudaDevice device = lane.device();
  const mhla::DecoderShape sizes{.batch = shape.batch,
                                 .heads = shape.heads,
                                 .kv_heads = shape.kv_heads,
                                 .key_dim = shape.key_dim,
                                 .value_dim = shape.value_dim};
  const GuardedBuffer memory(Decoder::memory_size(attention, mix.view(), sizes));
  if (poisons) memory.poison();
  Decoder decoder(attention, device, mix.view(), sizes, memory.workspace());
  const Index tokens = shape.query_tokens, half = tokens / 2;
  const auto step = [&](Index from, Index to, Index count) {
    const auto of = [&](const auto& x) { return piece(x.view(), 0, shape.batch, from, count); };
    decoder.step(device, of(q), of(k), of(v), piece(y.view(), 0, shape.batch, to, count));
  };
  step(0, 0, half);
  const GuardedBuffer saved(decoder.snapshot_size());
  const auto snapshot = decoder.save(device, saved.workspace());
  step(0, half, tokens - half);  // tokens that do not follow
  decoder.load(device, snapshot);

  // Operands of a recorded step stay where they are.
  std::vector<HostTensor<T, 4>> replayed;
  if (can_capture(lane.stream)) {
    const auto one = [](const HostTensor<T, 4>& x) {
      return HostTensor<T, 4>(x.extent(0), x.extent(1), 1, x.extent(3));
    };
    const DeviceTensor<T, 4> q1(one(inputs.q)), k1(one(inputs.k)), v1(one(inputs.v)),
        y1(one(inputs.dy));
    const Graph graph(lane.stream, [&] {
      decoder.record_step(device, q1.view(), k1.view(), v1.view(), y1.view());
    });
    for (Index t = half; t < half + 20 && t < tokens; ++t) {
      const auto upload = [&](const DeviceTensor<T, 4>& to, const HostTensor<T, 4>& from) {
        to.upload(mhla::testing::converted<T>(piece(from.view(), 0, shape.batch, t, 1)));
      };
      upload(q1, inputs.q), upload(k1, inputs.k), upload(v1, inputs.v);
      decoder.count_replay();
      graph.launch(lane.stream);
      lane.stream.wait();
      replayed.push_back(y1.download());
    }
  } else {
    report.skip(what + ": replays", "streams cannot be recorded here");
  }
  const Index next = half + static_cast<Index>(replayed.size());
  const Index last = shape.batch - 1;
  decoder.reset(device, last);
  const auto of_last = [&](const auto& x) { return piece(x.view(), last, 1, 0, next); };
  decoder.prefill(device, last, of_last(q), of_last(k), of_last(v), of_last(y));
  step(next, next, tokens - next);
  lane.stream.wait();

  HostTensor<T, 4> decoded = y.download();
  for (std::size_t i = 0; i < replayed.size(); ++i)
    mhla::testing::for_each_element(
        [](T& to, const T& from) { to = from; },
        piece(decoded.view(), 0, shape.batch, half + static_cast<Index>(i), 1), replayed[i].view());
  const auto comparison =
      mhla::testing::compare(decoded.view(), on_cpu(attention, inputs).y.view());
  report.expect(comparison.rms_ratio <= bounds<T>.y, what + ": y", comparison.report());
  report.expect(memory.intact() && saved.intact() && y.buffer().intact(),
                what + ": nothing else is written");
}

template <class T>
void check_decoding(Report& report) {
  const Lane lane;
  for_each_case<T>([&](const std::string& name, const auto& attention, const Shape& shape) {
    if constexpr (is_decoded<std::decay_t<decltype(attention)>>) {
      const std::string what = title<T>("decoding", name);
      attempt(report, what, [&] { expect_decoded<T>(report, lane, what, attention, shape); });
    }
  });
}

/// Each variant once: what a slow tool can watch.
template <class T>
void check_small(Report& report) {
  const Lane lane;
  attempt_each_case<T>(report, "small",
                       [&](const std::string& name, const auto& attention, const Shape& shape) {
                         const Inputs<T> inputs(shape, 500);
                         Call<T, std::decay_t<decltype(attention)>> call(attention, inputs);
                         expect_near(report, title<T>("small", name), fresh_results(call, lane),
                                     on_cpu(attention, inputs), bounds<T>);
                       });
}
/// And each fused path.
template <class T>
void check_small_paths(Report& report) {
  const Lane lane;
  attempt_each_fused_case<T>(
      report, "small paths", fused_paths,
      [&](const std::string& name, const auto& attention, const Shape& shape, mhla::CudaPath path) {
        const Inputs<T> inputs(shape, 500);
        Call<T, std::decay_t<decltype(attention)>> call(attention, inputs);
        expect_near(report, title<T>("small paths", name), fresh_results(call, lane, path),
                    on_cpu(attention, inputs), path_bounds<T>);
      });
}

/// Enters the checks of one scalar.
template <class T>
bool enter_groups() {
  const char* const scalar = scalar_name<T>;
  groups().insert(groups().end(), {{"parity", scalar, check_parity<T>},
                                   {"paths", scalar, check_paths<T>},
                                   {"large_paths", scalar, check_large_paths<T>},
                                   {"states", scalar, check_states<T>},
                                   {"determinism", scalar, check_determinism<T>},
                                   {"graphs", scalar, check_graphs<T>},
                                   {"etiquette", scalar, check_etiquette<T>},
                                   {"pointers", scalar, check_pointers<T>},
                                   {"decoding", scalar, check_decoding<T>},
                                   {"small", scalar, check_small<T>},
                                   {"small_paths", scalar, check_small_paths<T>}});
  return true;
}

}  // namespace gpu
