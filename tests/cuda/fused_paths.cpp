// SPDX-License-Identifier: MIT
// Calls on a CudaDevice that runs them on one path or another: all agree, with the oracle and with
// each other; nothing outside the workspace is touched, and nothing in it matters; parts of the
// batch, omitted gradients and accumulation are as on cuBLAS. Tensors are read as often as it
// takes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/call_memory.hpp"
#include "tests/cuda/traffic.hpp"
#include "tests/support/error_message.hpp"

namespace {

using call_memory::Affordable;
using call_memory::check_exact;
using namespace mhla;
using call::Operands;
using mhla::testing::HostTensor;

using Language = Attention<Identity, Blocks1D, Causal, Unnormalized, HalfSplitRotary>;
using Normalized = Attention<EluPlusOne, Blocks1D, Causal>;
using Image = Attention<Relu, Blocks2D>;
using Video = Attention<Relu, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;

}  // namespace

// What MHLA_INSTANTIATE_CUDA does where there is a CUDA compiler.
template <>
struct mhla::cuda::FusedHeadDims<Language, Half> {
  using List = HeadDimsOf<HeadDims<64, 64>, HeadDims<128, 128>>;
};
template <>
struct mhla::cuda::FusedHeadDims<Normalized, BFloat16> {
  using List = HeadDimsOf<HeadDims<64, 64>>;
};
template <>
struct mhla::cuda::FusedHeadDims<Image, BFloat16> {
  using List = HeadDimsOf<HeadDims<72, 72>>;
};
template <>
struct mhla::cuda::FusedHeadDims<Video, BFloat16> {
  using List = HeadDimsOf<HeadDims<64, 64>>;
};

namespace {

const Language language{.blocks = {.block = 20}, .scale = 0.1};
const Normalized normalized{.blocks = {.block = 20}};
const Image image{.blocks = {.grid = {7, 9}, .block = {4, 3}}};
const Image small_image{.blocks = {.grid = {5, 4}, .block = {4, 3}}};

constexpr CudaPath fused_paths[] = {CudaPath::summaries, CudaPath::quadratic, CudaPath::resident};
constexpr CudaPath paths[] = {CudaPath::cublas, CudaPath::summaries, CudaPath::quadratic,
                              CudaPath::resident};

/// Whether it runs forward passes of a variant.
template <class V>
constexpr bool runs(CudaPath path) {
  return path != CudaPath::resident || !mhla::is_causal_within_block<V>;
}

CudaDevice device_on(CudaPath path) {
  return {nullptr, &machine::context(), {}, FloatProducts::exact, path};
}

// Relative RMS errors, of y and of dq, dk, dv and dmix.
struct Bounds {
  double y, query, key, value, mix;
};
template <class T>
constexpr Bounds bounds = std::is_same_v<T, BFloat16> ? Bounds{4e-3, 6e-3, 4e-3, 4e-3, 3e-3}
                                                      : Bounds{1e-3, 1e-3, 1e-3, 1e-3, 1e-3};

/// Values have a mean that is not 0.
template <class T, class V>
Operands<T> operands_of(const V& attention, const Shape& shape) {
  Operands<T> x = call::operands<T>(attention, shape);
  mhla::testing::for_each_element([](T& v) { store(v, load(v) + 1.0f); }, x.v.view());
  return x;
}

/// Calls f(name, attention, operands).
template <class F>
void for_each_call(const F& f, Index batch = 1) {
  f("language", language, operands_of<Half>(language, {batch, 2, 1, 27, 27, 64, 64, 2}));
#ifdef MHLA_FULL_PRODUCT
  f("normalized", normalized, operands_of<BFloat16>(normalized, {batch, 2, 1, 27, 27, 64, 64}));
#endif
  f("image", small_image, operands_of<BFloat16>(small_image, {batch, 1, 1, 20, 20, 72, 72}));
}

template <class T>
void fill_with_nan(T& tensor) {
  mhla::testing::for_each_element(
      [](auto& e) { store(e, std::numeric_limits<float>::quiet_NaN()); }, tensor.view());
}

template <class A, class B>
void check_close(const char* name, const A& actual, const B& expected, double bound) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  INFO(name << " " << result.report());
  CHECK(result.rms_ratio <= bound);
}

}  // namespace

TEST_CASE("paths: all agree with the oracle", "[cuda]") {
  for_each_call([]<class V, class T>(const char* name, const V& attention, const Operands<T>& x) {
    const auto wide = call::converted<double>(x);
    const auto y = call::oracle_forward(attention, wide);
    const auto gradients = call::oracle_backward(attention, wide);
    for (const CudaPath path : paths) {
      if (!runs<V>(path)) continue;
      CAPTURE(name, cuda::name_of(path));
      const CudaDevice device = device_on(path);
      check_close("y", call::forward(attention, x, device), y, bounds<T>.y);
      if (!cuda::traits_of(path).has_backward) continue;
      const auto found = call::backward(attention, x, device);
      check_close("dq", found.query, gradients.query, bounds<T>.query);
      check_close("dk", found.key, gradients.key, bounds<T>.key);
      check_close("dv", found.value, gradients.value, bounds<T>.value);
      check_close("dmix", found.mix, gradients.mix, bounds<T>.mix);
    }
  });
}

TEST_CASE("paths: the workspace is exact and its contents do not matter", "[cuda]") {
  for_each_call([]<class V, class T>(const char* name, const V& attention, const Operands<T>& x) {
    for (const CudaPath path : fused_paths) {
      if (!runs<V>(path)) continue;
      CAPTURE(name, cuda::name_of(path));
      const CudaDevice device = device_on(path);
      auto y = x.dy;
      fill_with_nan(y);
      check_exact(forward_workspace_size<T>(attention, x.shape(), device),
                  [&](WorkspaceView workspace) {
                    forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(), workspace);
                  });
      CHECK(call::bitwise_equal(y.view(), call::forward(attention, x, device).view()));
      if (!cuda::traits_of(path).has_backward) continue;
      call::Gradients<T> gradients(x);
      fill_with_nan(gradients.query);
      fill_with_nan(gradients.key);
      fill_with_nan(gradients.value);
      check_exact(backward_workspace_size<T>(attention, x.shape(), device),
                  [&](WorkspaceView workspace) {
                    backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy,
                                  gradients.views(), Update::overwrite, workspace);
                  });
      machine::context().seed += 1000;
      auto again = call::backward(attention, x, device);
      call::check_same_bits(gradients, again);
    }
  });
}

TEST_CASE("paths: a batch in parts", "[cuda]") {
  for_each_call(
      []<class V, class T>(const char* name, const V& attention, const Operands<T>& x) {
        for (const CudaPath path : {CudaPath::summaries, CudaPath::quadratic}) {
          CAPTURE(name, cuda::name_of(path));
          const CudaDevice device = device_on(path);
          const auto y = call::forward(attention, x, device);
          const auto whole = call::backward(attention, x, device);
          const Affordable one_item(0);
          CHECK(call::bitwise_equal(call::forward(attention, x, device).view(), y.view()));
          const auto parts = call::backward(attention, x, device);
          CHECK(call::bitwise_equal(parts.query.view(), whole.query.view()));
          CHECK(call::bitwise_equal(parts.key.view(), whole.key.view()));
          CHECK(call::bitwise_equal(parts.value.view(), whole.value.view()));
          check_close("dmix", parts.mix, whole.mix, 1e-5);
        }
      },
      2);
}

#ifdef MHLA_FULL_PRODUCT  // fused_gradients and fused_quadratic have others of these
TEST_CASE("paths: gradients left out, and added to", "[cuda]") {
  for_each_call([]<class V, class T>(const char* name, const V& attention, const Operands<T>& x) {
    for (const CudaPath path : {CudaPath::summaries, CudaPath::quadratic}) {
      const CudaDevice device = device_on(path);
      const auto all = call::backward(attention, x, device);
      for (const int subset : {0, 1 + 4, 2 + 8}) {
        CAPTURE(name, cuda::name_of(path), subset);
        const call::Gradients<T> before(x);
        call::Gradients<T> after(x);
        auto views = after.views();
        views.query.wanted = (subset & 1) != 0;
        views.key.wanted = (subset & 2) != 0;
        views.value.wanted = (subset & 4) != 0;
        views.mix.wanted = (subset & 8) != 0;
        call::backward_to(views, Update::overwrite, attention, x, device);
        const auto& query = views.query.wanted ? all.query : before.query;
        const auto& key = views.key.wanted ? all.key : before.key;
        const auto& value = views.value.wanted ? all.value : before.value;
        const auto& mix = views.mix.wanted ? all.mix : before.mix;
        CHECK(call::bitwise_equal(after.query.view(), query.view()));
        CHECK(call::bitwise_equal(after.key.view(), key.view()));
        CHECK(call::bitwise_equal(after.value.view(), value.view()));
        CHECK(call::bitwise_equal(after.mix.view(), mix.view()));
      }
      // What is added is rounded to 16 bits with the sum.
      call::Gradients<T> sums(x);
      call::backward_to(sums.views(), Update::accumulate, attention, x, device);
      const auto check_sum = [&](const char* what, auto& sum, const auto& from, const auto& added) {
        auto expected =
            call::HostTensor<double, 4>(sum.extent(0), sum.extent(1), sum.extent(2), sum.extent(3));
        mhla::testing::for_each_element(
            [](double& to, const T& a, const T& b) {
              to = static_cast<double>(load(a)) + static_cast<double>(load(b));
            },
            expected.view(), from.view(), added.view());
        check_close(what, sum, expected, bounds<T>.value);
      };
      check_sum("dq", sums.query, x.q, all.query);
      check_sum("dk", sums.key, x.k, all.key);
      check_sum("dv", sums.value, x.v, all.value);
    }
  });
}
#endif

namespace {

/// How often a whole call through summaries reads and writes each tensor.
template <class T, class V>
void check_traffic(const char* name, const V& attention, const Shape& shape) {
  CAPTURE(name);
  const CudaDevice device = device_on(CudaPath::summaries);
  const auto x = operands_of<T>(attention, shape);
  call::Gradients<T> gradients(x);
  auto y = x.dy;
  const Workspace workspace(std::max(forward_workspace_size<T>(attention, x.shape(), device),
                                     backward_workspace_size<T>(attention, x.shape(), device)));
  traffic::Watch watch;
  watch("q", x.q);
  watch("k", x.k);
  watch("v", x.v);
  watch("dy", x.dy);
  watch("y", y);
  watch("dq", gradients.query);
  watch("dk", gradients.key);
  watch("dv", gradients.value);
  const Index q = x.q.view().size(), k = x.k.view().size(), v = x.v.view().size();
  const Index of_y = x.dy.view().size();
  // All values of these head dimensions are in one slice.
  REQUIRE(cuda::fused::summary_slice(static_cast<int>(shape.value_dim)) == shape.value_dim);
  forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(), workspace);
  watch.check("q", q, 0);  // readout
  watch.check("k", k, 0);  // summaries
  watch.check("v", v, 0);
  watch.check("y", 0, of_y);
  watch.check_rest(0.99);
  backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                Update::overwrite, workspace);
  watch.check("q", 2 * q, 0);  // dq, dS~
  watch.check("k", 3 * k, 0);  // summaries, dv, dk
  watch.check("v", 2 * v, 0);  // summaries, dk
  watch.check("dy", 2 * of_y, 0);
  watch.check("dq", 0, q);
  watch.check("dk", 0, k);
  watch.check("dv", 0, v);
  watch.check_rest(0.99);
}

}  // namespace

TEST_CASE("paths: what a call through summaries reads and writes", "[cuda]") {
  check_traffic<BFloat16>("image", image, {1, 2, 1, 63, 63, 72, 72, 2});
  Image cross = image;
  cross.key_blocks = {.grid = {5, 11}, .block = {2, 5}};
  check_traffic<BFloat16>("cross", cross, {1, 2, 1, 63, 55, 72, 72, 2});
  const Video video{.blocks = {.grid = {3, 5, 6}, .block = {2, 3, 4}}, .scale = 0.5};
  check_traffic<BFloat16>("video", video, {1, 1, 1, 90, 90, 64, 64});

  // The mixing kernels share their work out part by part.
  const Affordable one_item(0);
  check_traffic<BFloat16>("parts", small_image, {3, 1, 1, 20, 20, 72, 72});
}

namespace {

/// Memory of a forward state: exactly as much as a call needs, full of NaN, between guards.
class StateMemory {
 public:
  explicit StateMemory(Index count)
      : memory_((count + 2 * guard) * Index{sizeof(float)}), count_(count) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
  }
  Span<float> span() const { return {reinterpret_cast<float*>(memory_.data()) + guard, count_}; }
  /// Whether as many 16-bit elements are filled, and nothing else. They are finite.
  bool exact(Index filled) const {
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(memory_.data());
    for (Index i = 0; i < 2 * (count_ + 2 * guard); ++i) {
      const bool inside = i >= 2 * guard && i < 2 * guard + filled;
      if ((halves[i] == 0xffff) == inside) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes() const { return {memory_.data(), memory_.data() + memory_.size()}; }

 private:
  static constexpr Index guard = 16;
  Workspace memory_;
  Index count_;
};

template <class T, class V>
HostTensor<T, 4> forward_saving(const V& attention, const Operands<T>& x, const CudaDevice& device,
                                CudaForwardState<float>& state) {
  HostTensor<T, 4> y = x.dy;
  const Workspace workspace(
      forward_workspace_size<T>(attention, x.shape(), device, StateUse::given));
  machine::context().under_way = stand_in::UnderWay::anything;
  forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(), workspace, &state);
  return y;
}
template <class T, class V>
call::Gradients<T> backward_from(const V& attention, const Operands<T>& x, const CudaDevice& device,
                                 const CudaForwardState<float>& state) {
  call::Gradients<T> gradients(x);
  const Workspace workspace(
      backward_workspace_size<T>(attention, x.shape(), device, StateUse::given));
  machine::context().under_way = stand_in::UnderWay::anything;
  backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                Update::overwrite, workspace, &state);
  return gradients;
}

}  // namespace

TEST_CASE("paths: a forward state changes no bit, and spares the summaries", "[cuda]") {
  const auto check = []<class V, class T>(const char* name, const V& attention,
                                          const Operands<T>& x) {
    CAPTURE(name);
    const CudaDevice device = device_on(CudaPath::summaries);
    const StateMemory memory(forward_state_size(attention, x.shape(), device));
    CudaForwardState<float> state(memory.span());
    const auto plain = call::forward(attention, x, device);
    const auto saving = forward_saving(attention, x, device, state);
    CHECK(call::bitwise_equal(plain.view(), saving.view()));
    // The memory is for either path: one plane of summaries, without key sums, takes half of it.
    CHECK(memory.exact((normalizes<V> ? 2 : 1) * memory.span().size));
    const auto saved = memory.bytes();

    const cublasContext& context = machine::context();
    auto read = context.kernel_bytes_read;
    auto recomputed = call::backward(attention, x, device);
    const auto recomputing = context.kernel_bytes_read - read;
    read = context.kernel_bytes_read;
    auto from_saved = backward_from(attention, x, device, state);
    CHECK(context.kernel_bytes_read - read < recomputing);
    check_same_bits(recomputed, from_saved);
    CHECK(memory.bytes() == saved);

    // It is used, not computed again.
    std::memset(memory.span().data, 0, static_cast<std::size_t>(memory.span().size) * 4);
    auto from_nothing = backward_from(attention, x, device, state);
    CHECK_FALSE(call::bitwise_equal(recomputed.query.view(), from_nothing.query.view()));
  };
  for_each_call(check);
  const Affordable one_item(0);
  check("parts", normalized, operands_of<BFloat16>(normalized, {2, 2, 1, 27, 27, 64, 64}));
}

TEST_CASE("paths: a forward state is for the path and the type that kept it", "[cuda]") {
  const auto x = operands_of<BFloat16>(normalized, {1, 2, 1, 50, 50, 64, 64});
  const CudaDevice automatic = device_on(CudaPath::automatic);
  const CudaDevice fused = device_on(CudaPath::summaries);
  const CudaDevice cublas = device_on(CudaPath::cublas);
  const StateMemory memory(forward_state_size(normalized, x.shape(), automatic));
  CudaForwardState<float> state(memory.span());
  const auto refused = [&](const CudaDevice& device) {
    return error_message<StateError>([&] { backward_from(normalized, x, device, state); });
  };
  forward_saving(normalized, x, cublas, state);
  CHECK(says(refused(fused), "saved(state)", "another CudaPath"));
  auto on_cublas = backward_from(normalized, x, cublas, state);
  forward_saving(normalized, x, fused, state);
  CHECK(says(refused(cublas), "saved(state)", "another CudaPath"));

  // Planes of 16 bits are not those of the other type.
  using cuda::summary_format;
  const auto same = [](CudaPath path) {
    return summary_format<Half>(path, FloatProducts::exact) ==
           summary_format<BFloat16>(path, FloatProducts::exact);
  };
  CHECK_FALSE(same(CudaPath::summaries));
  CHECK(same(CudaPath::cublas));

  // Fused kernels move 16 bytes at once.
  CudaForwardState<float> unaligned(
      {memory.span().data + 1, forward_state_size(normalized, x.shape(), automatic)});
  CHECK(
      says(error_message<WorkspaceError>([&] { forward_saving(normalized, x, fused, unaligned); }),
           "save(state)", "16 bytes"));
}

TEST_CASE("paths: with a forward state both passes take one path that has summaries", "[cuda]") {
  const CudaDevice automatic = device_on(CudaPath::automatic);
  const auto path_of = [&](const Shape& shape, cuda::Direction direction, StateUse state,
                           const CudaDevice& device) {
    const CudaPlan of_call = mhla::plan<BFloat16>(normalized, shape, device, state);
    return direction == cuda::Direction::forward ? of_call.forward_path() : of_call.backward_path();
  };
  for (const Index tokens : {20, 50, 400, 2000}) {
    const Index blocks = (tokens + 19) / 20;
    const Shape shape{1, 2, 1, tokens, tokens, 64, 64, 1, blocks, blocks};
    const CudaPath forward = path_of(shape, cuda::Direction::forward, StateUse::given, automatic);
    CHECK(forward == path_of(shape, cuda::Direction::backward, StateUse::given, automatic));
    CHECK(forward != CudaPath::quadratic);
  }
  const Shape shape{1, 2, 1, 50, 50, 64, 64, 1, 3, 3};
  CHECK(path_of(shape, cuda::Direction::forward, StateUse::none, automatic) == CudaPath::quadratic);
  CHECK(says(error_message<ShapeError>([&] {
               path_of(shape, cuda::Direction::forward, StateUse::given,
                       device_on(CudaPath::quadratic));
             }),
             "CudaPath::quadratic", "no summaries for a forward state"));
}

TEST_CASE("paths: what fused kernels cannot run runs on cuBLAS", "[cuda]") {
  const auto path_of = [&](const Shape& shape, const CudaDevice& device) {
    return mhla::plan<BFloat16>(normalized, shape, device).forward_path();
  };
  const CudaDevice automatic = device_on(CudaPath::automatic);
  Shape shape{1, 2, 1, 50, 50, 64, 64, 1, 3, 3};
  CHECK(path_of(shape, automatic) != CudaPath::cublas);
  shape.key_dim = 40;
  CHECK(path_of(shape, automatic) == CudaPath::cublas);
  CHECK(says(error_message<ShapeError>([&] { path_of(shape, device_on(CudaPath::summaries)); }),
             "CudaPath::summaries", "head dimensions"));
}
