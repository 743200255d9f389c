// SPDX-License-Identifier: MIT
// Which path runs a call: what the fused ones refuse and in which words, what the cost model counts
// and chooses at the shapes of known models, and that calls go where the choice says. The fused
// passes of a map of this file's own stand in for the library's, and write down what they are
// asked.
#include <mhla/cuda/instantiate.cuh>
// After it, so that the stand-ins were found first.
#include <cmath>
#include <cstdint>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/packed.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <string>
#include <vector>

#include "bench/gpu_shapes.hpp"
#include "tests/cpu/call.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/error_message.hpp"

namespace path_test {

struct Cube {
  template <class T>
  T value(T x) const {
    return x * x * x;
  }
  template <class T>
  T derivative(T x) const {
    return T(3) * x * x;
  }
};

using Fused = mhla::Attention<Cube, mhla::Blocks1D>;
using PaddedFused = mhla::Padded<Fused>;

/// What a fused pass was asked for last.
struct Asked {
  std::string what;
  mhla::CudaPath path;
  mhla::Index key_dim;
  mhla::Index value_dim;
  mhla::Index workspace;
  mhla::Update update;
  mhla::Index state;
};
inline std::vector<Asked> asked;

template <class Dims, class Call>
void note(const char* what, mhla::CudaPath path, const Call& call, mhla::Update update) {
  asked.push_back(
      {what, path, Dims::key_dim, Dims::value_dim, call.workspace.size, update, call.state.size});
}

template <class T>
void fill(const mhla::TensorView<T, 4>& tensor, double value) {
  for (mhla::Index n = 0; n < tensor.extent[0]; ++n)
    for (mhla::Index h = 0; h < tensor.extent[1]; ++h)
      for (mhla::Index t = 0; t < tensor.extent[2]; ++t)
        for (mhla::Index c = 0; c < tensor.extent[3]; ++c)
          mhla::store(tensor(n, h, t, c), static_cast<float>(value));
}

}  // namespace path_test

MHLA_NAMESPACE_BEGIN
namespace cuda {

#define MHLA_TEST_FORWARD(Path, Variant, Scalar, Dims)                                  \
  template <>                                                                           \
  void Path::forward<Dims, Variant, Scalar>(const ForwardCall<Variant, Scalar>& call) { \
    path_test::note<Dims>("forward", traits.id, call, Update::overwrite);               \
    path_test::fill(call.y, 42);                                                        \
  }
#define MHLA_TEST_PASSES(Path, Variant, Scalar, Dims)                                     \
  MHLA_TEST_FORWARD(Path, Variant, Scalar, Dims)                                          \
  template <>                                                                             \
  void Path::backward<Dims, Variant, Scalar>(const BackwardCall<Variant, Scalar>& call) { \
    path_test::note<Dims>("backward", traits.id, call, call.update);                      \
    path_test::fill(call.gradients.query.view, 43);                                       \
  }
#define MHLA_TEST_PATHS(Variant, Scalar, Dims)           \
  MHLA_TEST_PASSES(SummariesPath, Variant, Scalar, Dims) \
  MHLA_TEST_PASSES(QuadraticPath, Variant, Scalar, Dims) \
  MHLA_TEST_FORWARD(ResidentPath, Variant, Scalar, Dims)
using Small = HeadDims<32, 32>;
using Wide = HeadDims<128, 256>;
MHLA_TEST_PATHS(path_test::Fused, BFloat16, Small)
MHLA_TEST_PATHS(path_test::Fused, BFloat16, Wide)
MHLA_TEST_PATHS(path_test::PaddedFused, Half, Small)

}  // namespace cuda
MHLA_NAMESPACE_END

// Names that the library has as well.
using Attention = path_test::Fused;
using Padded = path_test::PaddedFused;
using Plan = mhla::HeadDims<128, 256>;
MHLA_INSTANTIATE_CUDA(Attention, mhla::BFloat16, mhla::HeadDims<32, 32>, Plan);
MHLA_INSTANTIATE_CUDA(Padded, mhla::Half, mhla::HeadDims<32, 32>);
MHLA_INSTANTIATE_CUDA(Attention, mhla::Half);
MHLA_INSTANTIATE_CUDA(Attention, float);

namespace {

using mhla::BFloat16;
using mhla::Bidirectional;
using mhla::BlockCausal;
using mhla::Blocks1D;
using mhla::Blocks2D;
using mhla::Causal;
using mhla::CudaDevice;
using mhla::CudaPath;
using mhla::EluPlusOne;
using mhla::Half;
using mhla::HalfSplitRotary;
using mhla::Index;
using mhla::MixedKeySum;
using mhla::MixedProduct;
using mhla::NoRotation;
using mhla::Relu;
using mhla::Shape;
using mhla::ShapeError;
using mhla::StateUse;
using mhla::Unnormalized;
using mhla::cuda::Direction;
using mhla::cuda::fused_head_dims;
using mhla::cuda::HeadDimsList;
using mhla::cuda::HeadDimsPair;
using mhla::cuda::KernelCost;
using mhla::cuda::name_of;
using mhla::cuda::NominalGpu;
using mhla::cuda::PathChoice;
using mhla::cuda::PathCost;

constexpr HeadDimsList every{fused_head_dims, std::size(fused_head_dims)};

constexpr CudaPath fused_paths[] = {CudaPath::summaries, CudaPath::quadratic, CudaPath::resident};

template <class T, class V>
PathChoice choice_of(const V& attention, const Shape& shape, Direction direction,
                     CudaPath path = CudaPath::automatic, StateUse state = StateUse::none,
                     const HeadDimsList& compiled = every, const NominalGpu& gpu = NominalGpu()) {
  const mhla::Problem problem = checked_problem(attention, shape);
  const mhla::cuda::Call<V, T> call{attention, problem, direction, state, compiled};
  return choose_path(call, CudaDevice(nullptr, nullptr, {}, mhla::FloatProducts::exact, path), gpu);
}

template <class T, class Map, class Causality, class Normalizer, class Rotation>
std::string refused() {
  using V = mhla::Attention<Map, Blocks1D, Causality, Normalizer, Rotation>;
  return std::string(mhla::cuda::refusal_of_types<V, T>());
}

const PathCost& cost_of(const PathChoice& choice, CudaPath path) {
  return choice.option(path).cost;
}
std::string why_not(const PathChoice& choice, CudaPath path) {
  return choice.option(path).refusal.text();
}

}  // namespace

TEST_CASE("cuda path: what the fused paths refuse by type, and why", "[cuda]") {
  CHECK(refused<BFloat16, Relu, Bidirectional, MixedKeySum, NoRotation>() == "");
  CHECK(refused<Half, path_test::Cube, Causal, Unnormalized, HalfSplitRotary>() == "");
  CHECK(refused<Half, EluPlusOne, BlockCausal, MixedKeySum, HalfSplitRotary>() == "");
  CHECK(refused<Half, EluPlusOne, Bidirectional, MixedKeySum, mhla::AxialRotary>() == "");
  CHECK(refused<Half, EluPlusOne, Causal, MixedKeySum, NoRotation>() == "");
  CHECK(refused<float, Relu, Bidirectional, MixedKeySum, NoRotation>() == "float tensors");
  CHECK(refused<double, Relu, Bidirectional, MixedKeySum, NoRotation>() == "double tensors");
  CHECK(refused<Half, mhla::Softmax, Causal, Unnormalized, NoRotation>() ==
        "the feature map sees whole rows");
  CHECK(refused<Half, mhla::Hedgehog, Bidirectional, Unnormalized, NoRotation>() ==
        "the feature map sees whole rows");
  CHECK(refused<BFloat16, Relu, Bidirectional, MixedProduct, NoRotation>() == "MixedProduct");
  CHECK(refused<BFloat16, Relu, Causal, MixedKeySum, HalfSplitRotary>() ==
        "Causal with MixedKeySum and a rotation");
  using Recurrent =
      mhla::Attention<Relu, Blocks1D, Causal, Unnormalized, NoRotation, mhla::RecurrentMixing>;
  CHECK(mhla::cuda::refusal_of_types<Recurrent, Half>() == "structured mixing");
}

TEST_CASE("cuda path: what the fused paths refuse by size, and why", "[cuda]") {
  const Shape shape{2, 4, 2, 40, 50, 64, 64, 1, 2, 3};
  constexpr HeadDimsPair pair[] = {{64, 64}};
  const auto said_with = [&](const Shape& s, const HeadDimsList& compiled) {
    mhla::Problem problem;
    problem.shape = s;
    const mhla::Attention<Relu, Blocks1D> attention;
    return fused_refusal(mhla::cuda::Call<mhla::Attention<Relu, Blocks1D>, Half>{
                             attention, problem, Direction::forward, StateUse::none, compiled})
        .text();
  };
  const auto said = [&](const Shape& s) { return said_with(s, {pair, 1}); };
  CHECK(said(shape) == "");
  const auto said_of = [&](CudaPath path, StateUse state) {
    return why_not(choice_of<Half>(mhla::Attention<Relu, Blocks1D>{.blocks = {.block = 20}}, shape,
                                   Direction::forward, CudaPath::automatic, state),
                   path);
  };
  for (const CudaPath path : {CudaPath::quadratic, CudaPath::resident}) {
    CHECK(said_of(path, StateUse::given) == "it has no summaries for a forward state");
    CHECK(said_of(path, StateUse::none) == "");
  }
  for (const CudaPath path : {CudaPath::cublas, CudaPath::summaries})
    CHECK(said_of(path, StateUse::given) == "");
  Shape other = shape;
  other.value_dim = 128;
  CHECK(said(other) == std::string("no kernels for head dimensions 64/128: they exist for ") +
                           mhla::cuda::fused_head_dims_said);
  CHECK(said(other).find(" 32/32, ") != std::string::npos);
  CHECK(said(other).find(" 128/256, and no others") != std::string::npos);
  other.key_dim = 128;
  CHECK(said(other) ==
        "no kernels for head dimensions 128/128: add mhla::HeadDims<128, 128> to "
        "MHLA_INSTANTIATE_CUDA");
  CHECK(said_with(shape, {}) ==
        "no kernels for head dimensions 64/64: add mhla::HeadDims<64, 64> to "
        "MHLA_INSTANTIATE_CUDA");
  for (const auto extent :
       {&Shape::batch, &Shape::heads, &Shape::query_tokens, &Shape::key_tokens}) {
    Shape empty = shape;
    empty.*extent = 0;
    CHECK(said(empty) == "a tensor is empty");
  }
}

TEST_CASE("cuda path: what the resident path refuses besides, and why", "[cuda]") {
  const auto said = [](const Shape& shape, Index block, Direction direction,
                       const NominalGpu& gpu = NominalGpu()) {
    const mhla::Attention<Relu, Blocks1D> attention{.blocks = {.block = block}};
    const PathChoice choice = choice_of<Half>(attention, shape, direction, CudaPath::automatic,
                                              StateUse::none, every, gpu);
    CHECK(choice.option(CudaPath::summaries).refusal.none());
    CHECK(choice.option(CudaPath::quadratic).refusal.none());
    CHECK(choice.option(CudaPath::resident).refusal.none() ==
          (cost_of(choice, CudaPath::resident).count > 0));
    return why_not(choice, CudaPath::resident);
  };
  const auto of = [](Index tokens, Index blocks, Index dim) {
    return Shape{2, 4, 2, tokens, tokens, dim, dim, 1, blocks, blocks};
  };
  CHECK(said(of(64, 4, 64), 16, Direction::forward) == "");
  CHECK(said(of(64, 4, 64), 16, Direction::backward) == "it has no backward pass");
  CHECK(said(of(64, 4, 256), 16, Direction::forward) == "head dimensions over 128");
  CHECK(said(of(64, 64, 64), 1, Direction::forward) == "");
  CHECK(said(of(65, 65, 64), 1, Direction::forward) == "more than 64 blocks");
  const char* const too_large = "the block summaries do not fit into the chip's shared memory";
  CHECK(said(of(64, 64, 96), 1, Direction::forward) == too_large);

  const mhla::Attention<Relu, Blocks1D, Causal> causal{.blocks = {.block = 16}};
  CHECK(why_not(choice_of<Half>(causal, of(64, 4, 64), Direction::forward), CudaPath::resident) ==
        "Causal, with tokens that see a part of their block");

  // What no fused path runs is said of all of them.
  const mhla::Attention<Relu, Blocks1D> other{.blocks = {.block = 16}};
  const Shape odd{2, 4, 2, 64, 64, 12, 10, 1, 4, 4};
  CHECK(says(why_not(choice_of<Half>(other, odd, Direction::forward), CudaPath::resident),
             "no kernels for head dimensions 12/10"));

  // sm_80 to sm_120. A slice of 16 columns of 128 x 128, with z and z~, for each of 16 blocks.
  const Index record = 128 * 16 * 2 + 16 + 2 * 128 * 4;
  const Index tiles = 8 * 128 * 4 + 2 * 64 * (272 + 48);  // key sums of warps, K and V twice
  for (const Index kilobytes : {227, 163, 99}) {
    CAPTURE(kilobytes);
    NominalGpu gpu;
    gpu.shared_bytes = kilobytes * 1024;
    CHECK(said(of(64, 16, 64), 4, Direction::forward, gpu) == "");
    CHECK(said(of(64, 16, 128), 4, Direction::forward, gpu) ==
          (tiles + 16 * record <= gpu.shared_bytes ? "" : too_large));
  }
}

TEST_CASE("cuda path: values are cut into as few slices as fit", "[cuda]") {
  using mhla::cuda::fused::resident_slice_of;
  // 72 columns in one slice: DiT on an H200; in three on an A100.
  CHECK(resident_slice_of(72, 72, 16, true, false, 227 * 1024) == 72);
  CHECK(resident_slice_of(72, 72, 16, true, false, 163 * 1024) == 24);
  CHECK(resident_slice_of(128, 128, 4, true, false, 227 * 1024) == 64);
  CHECK(resident_slice_of(128, 128, 32, false, false, 227 * 1024) == 16);
  CHECK(resident_slice_of(96, 96, 16, true, false, 227 * 1024) == 48);
  // To the byte: S, z and z~ of a block, after two denominators of a row and three times two tiles
  // of 64 rows of 9 chunks of 16 bytes.
  const Index bytes = 2 * 64 * 4 + 6 * 64 * 144 + 16 * (72 * 72 * 2 + 16 + 2 * 72 * 4);
  CHECK(resident_slice_of(72, 72, 16, true, false, bytes) == 72);
  CHECK(resident_slice_of(72, 72, 16, true, false, bytes - 1) == 24);
  CHECK(resident_slice_of(128, 256, 1, false, false, 227 * 1024) == 0);
  CHECK(resident_slice_of(32, 32, 65, false, false, 227 * 1024) == 0);
  CHECK(resident_slice_of(12, 10, 4, false, false, 227 * 1024) == 0);
}

TEST_CASE("cuda path: what is chosen for known models", "[cuda]") {
  struct Pinned {
    const char* name;
    CudaPath forward;
    CudaPath backward;
  };
  constexpr CudaPath t = CudaPath::summaries, q = CudaPath::quadratic, r = CudaPath::resident;
  const std::vector<Pinned> pinned{{"Wan_B1", t, t},
                                   {"Wan_B2", t, t},
                                   {"DiT-XL/2_256_B64", q, q},
                                   {"DiT-XL/2_256_B256", q, q},
                                   {"DiT-XL/2_512_B64", r, t},
                                   {"DeiT-S_B256", q, q},
                                   {"NLP_128x128_N2048_B8", t, t},
                                   {"NLP_128x128_N8192_B4", t, t},
                                   {"NLP_128x128_N32768_B1", t, t},
                                   {"NLP_128x256_N2048_B8", t, t},
                                   {"NLP_256x256_N2048_B8", t, t},
                                   {"NLP_256x256_N32768_B1", t, t}};
  const auto shapes = bench::gpu_shapes();
  REQUIRE(shapes.size() == pinned.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(shapes[i].name);
    REQUIRE(shapes[i].name == pinned[i].name);
    bench::with_gpu_variant(shapes[i], [&](const auto& attention) {
      const Shape shape = shapes[i].call();
      for (const auto direction : {Direction::forward, Direction::backward}) {
        const PathChoice choice = choice_of<BFloat16>(attention, shape, direction);
        CAPTURE(name_of(choice.path));
        CHECK(choice.path ==
              (direction == Direction::forward ? pinned[i].forward : pinned[i].backward));
        CHECK(std::string(choice.reason) == "the fastest by the cost model");
        const NominalGpu gpu;
        for (const CudaPath path : {CudaPath::cublas, t, q, r})
          if (choice.option(path).refusal.none())
            CHECK(choice.cost().seconds(gpu) <= cost_of(choice, path).seconds(gpu));
        // With a state it is one path for both passes.
        const auto with_state = [&](Direction of) {
          return choice_of<BFloat16>(attention, shape, of, CudaPath::automatic, StateUse::given);
        };
        const PathChoice one = with_state(Direction::forward);
        const PathChoice other = with_state(Direction::backward);
        CHECK(one.path == other.path);
        for (const CudaPath path : {CudaPath::cublas, t})
          CHECK(one.cost().seconds(gpu) + other.cost().seconds(gpu) <=
                cost_of(one, path).seconds(gpu) + cost_of(other, path).seconds(gpu));
        CHECK(!one.option(q).refusal.none());
        CHECK(!one.option(r).refusal.none());
        CHECK(one.option(t).refusal.none());
        // Without kernels for it, and with another wish.
        CHECK(choice_of<BFloat16>(attention, shape, direction, CudaPath::automatic, StateUse::none,
                                  HeadDimsList{})
                  .path == CudaPath::cublas);
        CHECK(choice_of<float>(attention, shape, direction).path == CudaPath::cublas);
        for (const CudaPath path : {CudaPath::cublas, t, q, r}) {
          if (!choice.option(path).refusal.none()) continue;
          const PathChoice forced = choice_of<BFloat16>(attention, shape, direction, path);
          CHECK(forced.path == path);
          CHECK(std::string(forced.reason) == "as the CudaDevice asks for");
        }
      }
    });
  }
}

namespace {}  // namespace

TEST_CASE("cuda path: a kernel's time is that of what binds it", "[cuda]") {
  NominalGpu gpu{.memory_bandwidth = 1e12, .cache_bandwidth = 2e12, .launch_seconds = 1e-6};
  gpu.clock = 1e15 / (4 * 132 * mhla::cuda::issue_share) / 1000;  // 1e12 instructions a second
  const auto microseconds = [&](const KernelCost& cost, bool in_cache) {
    return std::round(1e6 * cost.times(gpu, 1e14, in_cache).all() * 1000) / 1000;
  };
  KernelCost cost{10e6, 20e6, 30e6, 1e9, 0, 2};
  CHECK(cost.bytes() == 60e6);
  CHECK(microseconds(cost, false) == 2 + 30);  // 30 MB of memory, as 60 MB of L2
  CHECK(microseconds(cost, true) == 2 + 30);
  CHECK(microseconds({10e6, 50e6, 0, 1e9}, false) == 1 + 60);          // memory
  CHECK(microseconds({10e6, 50e6, 0, 1e9}, true) == 1 + 30);           // L2
  CHECK(microseconds({10e6, 20e6, 30e6, 5e9}, true) == 1 + 50);        // products
  CHECK(microseconds({10e6, 20e6, 30e6, 5e9, 70e6}, true) == 1 + 70);  // instructions
  cost.busy = 0.5;
  CHECK(microseconds(cost, true) == 2 + 60);
  KernelCost alone{10e6, 0, 0, 0, 36e6};
  alone.alone = true;
  CHECK(microseconds(alone, true) == 1 + 50);
  cost.memory_share = 0.75;
  CHECK(microseconds(cost, true) == 2 + 80);

  PathCost path;
  path.flops_per_second = 1e14;
  const auto bound = [&] { return std::string(path.bound(gpu)); };
  path.add({10e6});
  CHECK(bound() == "bytes");
  path.add({0, 0, 0, 2e9});
  CHECK(bound() == "products");
  path.add({0, 0, 0, 0, 30e6});
  CHECK(bound() == "instructions");
  path.add({0, 0, 0, 0, 0, 50});
  CHECK(bound() == "launches");
  CHECK(path.seconds(gpu) == Approx(1e-6 * (10 + 20 + 30 + 53)));
  CHECK(path.times(gpu).all() == Approx(1e-6 * (30 + 53)));
}

TEST_CASE("cuda path: a path that cannot run a call is refused, with the reason", "[cuda]") {
  cublasContext machine;
  const auto device = [&](CudaPath path, mhla::WorkspaceView workspace = {}) {
    return CudaDevice(nullptr, &machine, workspace, mhla::FloatProducts::exact, path);
  };
  CHECK(CudaDevice(nullptr, nullptr).path() == CudaPath::automatic);
  CHECK(device(CudaPath::quadratic).path() == CudaPath::quadratic);
  const Attention attention{.blocks = {.block = 4}};
  const auto x = call::operands<float>(attention, {2, 2, 1, 9, 9, 32, 32});
  for (const CudaPath path : fused_paths) {
    const std::string asks = std::string("mhla: the CudaDevice was given CudaPath::") +
                             name_of(path) + ", which cannot run this call: float tensors";
    const auto refuses = [&](const auto& run) {
      CHECK(says(error_message<ShapeError>(run), asks));
    };
    refuses([&] { call::forward(attention, x, device(path)); });
    refuses([&] { call::backward(attention, x, device(path)); });
    refuses([&] { mhla::forward_workspace_size<float>(attention, x.shape(), device(path)); });
    refuses([&] { mhla::backward_workspace_size<float>(attention, x.shape(), device(path)); });
    refuses([&] { mhla::explain<float>(attention, x.shape(), device(path)); });
  }
  CHECK(machine.launches == 0);
  CHECK(machine.products == 0);
  Shape shape = x.shape();
  shape.key_dim = shape.value_dim = 64;
  CHECK(says(error_message<ShapeError>([&] {
               mhla::forward_workspace_size<BFloat16>(attention, shape,
                                                      device(CudaPath::summaries));
             }),
             "head dimensions 64/64: add mhla::HeadDims<64, 64> to MHLA_INSTANTIATE_CUDA"));
  shape.key_dim = shape.value_dim = 32;
  CHECK(mhla::forward_workspace_size<BFloat16>(attention, shape, device(CudaPath::resident)) > 0);
  CHECK(says(error_message<ShapeError>([&] {
               mhla::backward_workspace_size<BFloat16>(attention, shape,
                                                       device(CudaPath::resident));
             }),
             "the CudaDevice was given CudaPath::resident, which cannot run this call: it has no "
             "backward pass; CudaPath::automatic takes a path that can"));
  call::forward(attention, x, device(CudaPath::cublas));
  CHECK(machine.products > 0);
}

TEST_CASE("cuda path: calls go to the passes that were compiled for them", "[cuda]") {
  using mhla::forward_workspace_size;
  cublasContext machine;
  const auto device = [&](CudaPath path) {
    return CudaDevice(nullptr, &machine, {}, mhla::FloatProducts::exact, path);
  };
  const Attention attention{.blocks = {.block = 4}};
  const HeadDimsList compiled = mhla::cuda::CompiledKernels<Attention, BFloat16>::head_dims();
  REQUIRE(compiled.size == 2);
  CHECK(compiled.has(32, 32));
  CHECK(compiled.has(128, 256));
  CHECK(!compiled.has(128, 128));
  CHECK(mhla::cuda::CompiledKernels<Attention, Half>::head_dims().size == 0);
  CHECK(mhla::cuda::CompiledKernels<Padded, Half>::head_dims().size == 1);

  path_test::asked.clear();
  const auto run = [&](const Shape& dims, CudaPath path) {
    const auto x = call::operands<BFloat16>(attention, dims);
    CHECK(static_cast<float>(mhla::load(call::forward(attention, x, device(path))(0, 0, 0, 0))) ==
          42);
    call::Gradients<BFloat16> gradients(x);
    call::backward_to(gradients.views(), mhla::Update::accumulate, attention, x, device(path));
    CHECK(static_cast<float>(mhla::load(gradients.query(0, 0, 0, 0))) == 43);
  };
  run({1, 2, 1, 9, 9, 32, 32}, CudaPath::summaries);
  run({1, 2, 1, 9, 9, 128, 256}, CudaPath::quadratic);
  REQUIRE(path_test::asked.size() == 4);
  const auto bytes = [&](Index key_dim, Index value_dim, CudaPath path, Direction direction) {
    const Shape of{1, 2, 1, 9, 9, key_dim, value_dim, 1, 3, 3};
    return direction == Direction::forward
               ? forward_workspace_size<BFloat16>(attention, of, device(path))
               : mhla::backward_workspace_size<BFloat16>(attention, of, device(path));
  };
  const auto check = [&](std::size_t i, const std::string& what, CudaPath path, Index key_dim,
                         Index value_dim) {
    const path_test::Asked& of = path_test::asked[i];
    CAPTURE(i, of.what);
    CHECK(of.what == what);
    CHECK(of.path == path);
    CHECK(of.key_dim == key_dim);
    CHECK(of.value_dim == value_dim);
    CHECK(of.workspace == bytes(key_dim, value_dim, path,
                                what == "forward" ? Direction::forward : Direction::backward));
    CHECK(of.update == (what == "forward" ? mhla::Update::overwrite : mhla::Update::accumulate));
  };
  check(0, "forward", CudaPath::summaries, 32, 32);
  check(1, "backward", CudaPath::summaries, 32, 32);
  check(2, "forward", CudaPath::quadratic, 128, 256);
  check(3, "backward", CudaPath::quadratic, 128, 256);
  const auto z32 = call::operands<BFloat16>(attention, {1, 2, 1, 9, 9, 32, 32});
  call::forward(attention, z32, device(CudaPath::resident));
  check(4, "forward", CudaPath::resident, 32, 32);
  CHECK(machine.launches == 0);
  CHECK(machine.products == 0);

  // Chosen by the model, and what explain says of it.
  const Shape shape{3, 2, 1, 9, 9, 32, 32, 1, 3, 3};
  const CudaDevice automatic = device(CudaPath::automatic);
  const PathChoice choice =
      choice_of<BFloat16>(attention, shape, Direction::forward, CudaPath::automatic);
  REQUIRE(choice.path != CudaPath::cublas);
  const Index small = bytes(32, 32, CudaPath::summaries, Direction::forward);
  const Index small_back = bytes(32, 32, CudaPath::summaries, Direction::backward);
  CHECK(forward_workspace_size<BFloat16>(attention, shape, automatic) ==
        forward_workspace_size<BFloat16>(attention, shape, device(choice.path)));
  const std::string text = mhla::explain<BFloat16>(attention, shape, automatic);
  const std::string name = name_of(choice.path);
  CHECK(says(
      text, "forward: path " + name + ", the fastest by the cost model; products in 16 bits",
      "\n  by a model of an H200, which measurements are to replace, in us:\n    cublas ",
      "\n    summaries ", ", bound by launches: bytes 0, products 0, instructions 0, launches ",
      "\n    quadratic ", "\n    resident ", "\n  batch in 1 part of 3\n",
      "\n  products " + std::to_string(static_cast<Index>(choice.cost().flops())) + " FLOP",
      "; kernels move about " + std::to_string(std::llround(choice.cost().bytes())) + " bytes\n"));
  CHECK(!says(text, "not summaries"));
  CHECK(!says(text, "cuBLAS"));
  const Shape one{1, 2, 1, 9, 9, 32, 32, 1, 3, 3};
  CHECK(says(mhla::explain<BFloat16>(attention, one, device(CudaPath::summaries)),
             "forward: path summaries, as the CudaDevice asks for; products in 16 bits",
             "\n  workspace " + std::to_string(small) + " bytes\n"));

  // Other head dimensions go to cuBLAS, a state to where it can be kept.
  path_test::asked.clear();
  const auto x = call::operands<BFloat16>(attention, {1, 2, 1, 9, 9, 8, 8});
  call::forward(attention, x, automatic);
  CHECK(machine.products > 0);
  CHECK(path_test::asked.empty());
  const Shape with_state{1, 2, 1, 9, 9, 32, 32, 1, 3, 3};
  CHECK(forward_workspace_size<BFloat16>(attention, with_state, automatic, StateUse::given) ==
        small);
  CHECK(mhla::backward_workspace_size<BFloat16>(attention, with_state, automatic,
                                                StateUse::given) == small_back);
  CHECK(says(error_message<ShapeError>([&] {
               forward_workspace_size<BFloat16>(attention, with_state, device(CudaPath::quadratic),
                                                StateUse::given);
             }),
             "CudaPath::quadratic", "no summaries for a forward state"));
  const auto z = call::operands<BFloat16>(attention, {1, 2, 1, 9, 9, 32, 32});
  const Index state_size = mhla::forward_state_size(attention, z.shape(), automatic);
  const mhla::Workspace memory(state_size * Index{sizeof(float)});
  mhla::CudaForwardState<float> state({reinterpret_cast<float*>(memory.data()), state_size});
  auto y = z.dy;
  const mhla::Workspace workspace(small_back);
  const long before = machine.products;
  forward_into(attention, automatic, z.q.view(), z.k, z.v, z.mix, y.view(), workspace, &state);
  call::Gradients<BFloat16> gradients(z);
  backward_into(attention, automatic, z.q.view(), z.k, z.v, z.mix, z.dy, gradients.views(),
                mhla::Update::overwrite, workspace, &state);
  CHECK(machine.products == before);
  REQUIRE(path_test::asked.size() == 2);
  for (const path_test::Asked& of : path_test::asked) {
    CHECK(of.path == CudaPath::summaries);
    CHECK(of.state == state_size);
  }
}

TEST_CASE("cuda path: a plan is kept, and is for its own calls", "[cuda]") {
  cublasContext machine;
  const CudaDevice device(nullptr, &machine);
  const Attention attention{.blocks = {.block = 4}};
  const auto x = call::operands<BFloat16>(attention, {1, 2, 1, 9, 9, 32, 32});
  const mhla::CudaPlan plan = mhla::plan<BFloat16>(attention, x.shape(), device);
  const CudaDevice planned = device.with(plan);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const bool forward = direction == Direction::forward;
    const CudaPath path = forward ? plan.forward_path() : plan.backward_path();
    CHECK(path == choice_of<BFloat16>(attention, x.shape(), direction, CudaPath::automatic,
                                      StateUse::none, {fused_head_dims, 1})
                      .path);
    const auto bytes = [&](const CudaDevice& on) {
      return forward ? mhla::forward_workspace_size<BFloat16>(attention, x.shape(), on)
                     : mhla::backward_workspace_size<BFloat16>(attention, x.shape(), on);
    };
    const Index of_plan = forward ? plan.forward_workspace_size() : plan.backward_workspace_size();
    CHECK(of_plan == bytes(planned));
    CHECK(of_plan == bytes(device));
  }
  path_test::asked.clear();
  call::forward(attention, x, planned);
  call::backward(attention, x, planned);
  REQUIRE(path_test::asked.size() == 2);
  CHECK(path_test::asked[0].path == plan.forward_path());
  CHECK(path_test::asked[1].path == plan.backward_path());
  CHECK(says(mhla::explain<BFloat16>(attention, x.shape(), planned), "as planned; products in"));

  // A path that is asked for is planned; where it has no backward pass, only the other.
  const CudaDevice asking(nullptr, &machine, {}, mhla::FloatProducts::exact, CudaPath::resident);
  const mhla::CudaPlan of_one = mhla::plan<BFloat16>(attention, x.shape(), asking);
  CHECK(of_one.forward_path() == CudaPath::resident);
  const auto refuses = [&](const auto& run) {
    CHECK(says(error_message<ShapeError>(run), "the CudaPlan is for another variant"));
  };
  refuses([&] { call::backward(attention, x, device.with(of_one)); });
  const auto longer = call::operands<BFloat16>(attention, {1, 2, 1, 10, 10, 32, 32});
  refuses([&] { call::forward(attention, longer, planned); });
  refuses([&] {
    call::forward(Attention{.blocks = {.block = 5}, .mixing = {.leading_corner = true}}, x,
                  planned);
  });
  refuses([&] {
    call::forward(Attention{.blocks = {.block = 4}},
                  call::operands<float>(attention, {1, 2, 1, 9, 9, 32, 32}), planned);
  });
  refuses([&] {
    mhla::forward_workspace_size<BFloat16>(attention, x.shape(), planned, StateUse::given);
  });
  CHECK(path_test::asked.size() == 2);
}

TEST_CASE("cuda path: what a mask takes out is cleared whichever path runs", "[cuda]") {
  cublasContext machine;
  const CudaDevice device(nullptr, &machine, {}, mhla::FloatProducts::exact, CudaPath::quadratic);
  const Attention unmasked{.blocks = {.block = 4}};
  const auto x = call::operands<Half>(unmasked, {1, 2, 1, 9, 9, 32, 32});
  const std::uint8_t mask[9] = {1, 1, 0, 1, 1, 1, 1, 0, 1};
  const mhla::TensorView<const std::uint8_t, 2> view{mask, {1, 9}, {9, 1}};
  const Padded attention(unmasked, mhla::TokenMasks{view, view});
  const auto y = call::forward(attention, x, device);
  const auto gradients = call::backward(attention, x, device);
  for (Index h = 0; h < 2; ++h)
    for (Index t = 0; t < 9; ++t) {
      CAPTURE(h, t);
      CHECK(static_cast<float>(mhla::load(y(0, h, t, 31))) == (mask[t] == 0 ? 0 : 42));
      CHECK(static_cast<float>(mhla::load(gradients.query(0, h, t, 0))) == (mask[t] == 0 ? 0 : 43));
    }
}
