// SPDX-License-Identifier: MIT
// Which path runs a call: what the fused ones refuse and in which words, what the cost model counts
// and chooses at the shapes of known models, and that calls go where the choice says. The fused
// passes of a map of this file's own stand in for the library's, and write down what they are
// asked.
#include <mhla/cuda/instantiate.cuh>
// After it, so that the stand-ins were found first.
#include <cmath>
#include <cstdint>
#include <mhla/cuda/explain.hpp>
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
    path_test::note<Dims>("forward", id, call, Update::overwrite);                      \
    path_test::fill(call.y, 42);                                                        \
  }
#define MHLA_TEST_PASSES(Path, Variant, Scalar, Dims)                                     \
  MHLA_TEST_FORWARD(Path, Variant, Scalar, Dims)                                          \
  template <>                                                                             \
  void Path::backward<Dims, Variant, Scalar>(const BackwardCall<Variant, Scalar>& call) { \
    path_test::note<Dims>("backward", id, call, call.update);                             \
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

const KernelCost& kernel(const PathCost& path, const std::string& name) {
  for (int i = 0; i < path.count; ++i)
    if (path.kernel[i].name == name) return path.kernel[i];
  FAIL("no kernel " << name);
  return path.kernel[0];
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
    CHECK(choice.can(CudaPath::summaries));
    CHECK(choice.can(CudaPath::quadratic));
    CHECK(choice.can(CudaPath::resident) == (cost_of(choice, CudaPath::resident).count > 0));
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
  CHECK(resident_slice_of(128, 128, 32, false, true, 227 * 1024) == 16);
  CHECK(resident_slice_of(96, 96, 16, true, false, 227 * 1024) == 48);
  // To the byte: S, z and z~ of a block, behind tiles of 64 rows of 9 chunks of 16 bytes, twice.
  const Index bytes = 8 * 72 * 4 + 4 * 64 * 144 + 16 * (72 * 72 * 2 + 16 + 2 * 72 * 4);
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
          if (choice.can(path))
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
        CHECK(!one.can(q));
        CHECK(!one.can(r));
        CHECK(one.can(t));
        // Without kernels for it, and with another wish.
        CHECK(choice_of<BFloat16>(attention, shape, direction, CudaPath::automatic, StateUse::none,
                                  HeadDimsList{})
                  .path == CudaPath::cublas);
        CHECK(choice_of<float>(attention, shape, direction).path == CudaPath::cublas);
        for (const CudaPath path : {CudaPath::cublas, t, q, r}) {
          if (!choice.can(path)) continue;
          const PathChoice forced = choice_of<BFloat16>(attention, shape, direction, path);
          CHECK(forced.path == path);
          CHECK(std::string(forced.reason) == "as the CudaDevice asks for");
        }
      }
    });
  }
}

TEST_CASE("cuda path: short sequences over pairs, long ones by summaries, on the chip in between",
          "[cuda]") {
  for (const Index dim : {64, 72, 128})
    for (const Index side : {8, 16, 24, 64, 128}) {
      const mhla::Attention<Relu, Blocks2D> attention{
          .blocks = {.grid = {side, side}, .block = {side / 4, side / 4}}};
      const Shape shape{64, 16, 16, side * side, side * side, dim, dim, 1, 16, 16};
      CAPTURE(dim, side);
      CHECK(choice_of<BFloat16>(attention, shape, Direction::forward).path ==
            (side <= 16                ? CudaPath::quadratic
             : side == 24 && dim < 128 ? CudaPath::resident
                                       : CudaPath::summaries));
    }
}

TEST_CASE("cuda path: of VLT's stages the one of fewer blocks stays on the chip", "[cuda]") {
  const auto chosen = [](Index heads, Index side, Index window) {
    const mhla::Attention<Relu, Blocks2D> attention{
        .blocks = {.grid = {side, side}, .block = {window, window}}};
    const Index blocks = side / window * (side / window);
    const Shape shape{128, heads, heads, side * side, side * side, 64, 64, 1, blocks, blocks};
    return choice_of<BFloat16>(attention, shape, Direction::forward).path;
  };
  CHECK(chosen(1, 56, 8) == CudaPath::summaries);  // 49 blocks, in four slices
  CHECK(chosen(2, 28, 7) == CudaPath::resident);   // 16
}

TEST_CASE("cuda path: few heads leave a chip idle", "[cuda]") {
  const auto choice_with = [](Index batch) {
    const mhla::Attention<Relu, Blocks2D> attention{.blocks = {.grid = {32, 32}, .block = {8, 8}}};
    return choice_of<BFloat16>(attention, Shape{batch, 4, 4, 1024, 1024, 72, 72, 1, 16, 16},
                               Direction::forward);
  };
  CHECK(choice_with(33).path == CudaPath::resident);  // 132 thread blocks
  const auto busy = [&](Index batch) {
    return kernel(cost_of(choice_with(batch), CudaPath::resident), "summaries, mixing and readout")
        .busy;
  };
  CHECK(busy(33) == 1);
  CHECK(busy(1) == 4.0 / 132);
  CHECK(busy(34) == 136.0 / 264);
  CHECK(choice_with(1).path != CudaPath::resident);
}

TEST_CASE("cuda path: summaries of few blocks leave room for a second thread block", "[cuda]") {
  const auto alone = [](Index batch, Index side) {
    const mhla::Attention<Relu, Blocks2D> attention{
        .blocks = {.grid = {32, 32}, .block = {32 / side, 32 / side}}};
    const Index blocks = side * side;
    const PathChoice choice = choice_of<BFloat16>(
        attention, Shape{batch, 4, 4, 1024, 1024, 72, 72, 1, blocks, blocks}, Direction::forward);
    return kernel(cost_of(choice, CudaPath::resident), "summaries, mixing and readout").alone;
  };
  CHECK_FALSE(alone(34, 2));
  CHECK(alone(33, 2));  // a thread block for every SM
  CHECK(alone(34, 4));  // 214 KB each
}

TEST_CASE("cuda path: what DiT-512 takes on the chip, by hand", "[cuda]") {
  // 64 x 16 heads of 72 in one slice, 32 x 32 tokens in 4 x 4 blocks of 64.
  const auto shape = bench::gpu_shapes()[4];
  REQUIRE(shape.name == "DiT-XL/2_512_B64");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathChoice choice = choice_of<BFloat16>(attention, shape.call(), Direction::forward);
    const PathCost& cost = cost_of(choice, CudaPath::resident);
    const double tokens = 1024.0 * 1024;
    REQUIRE(cost.count == 2);
    const KernelCost& all = kernel(cost, "summaries, mixing and readout");
    CHECK(all.tensor_bytes == 4 * tokens * 72 * 2);
    CHECK(all.summary_bytes == 0);
    CHECK(all.cached_bytes == 2 * tokens * 16);
    const double mixing = 2 * 2.0 * 1024 * 16 * 16 * (21 * 256);  // 5184 columns, both parts of m
    CHECK(all.flops == 2 * 2 * tokens * 72 * 72 + mixing);
    CHECK(all.launches == 1);
    CHECK(all.busy == 1024.0 / (8 * 132));
    // Of eight warps, for 2 x 16 tiles of a head.
    const double tile = 1.6 * 144 + 4.7 * 64 * 72 * 72 / (8 * 2048);
    CHECK(all.instructions == Approx(1024 * 32 * 8 * tile + 3 * mixing / 4096));
  });
}

TEST_CASE("cuda path: what Wan takes by way of summaries, by hand", "[cuda]") {
  // 12 heads of 128, 21 x 30 x 50 tokens in 7 x 3 x 5 blocks of 300: 5 tiles of 64.
  const auto shape = bench::gpu_shapes()[0];
  REQUIRE(shape.name == "Wan_B1");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathChoice choice = choice_of<BFloat16>(attention, shape.call(), Direction::forward);
    const PathCost& cost = cost_of(choice, CudaPath::summaries);
    const double two_tensors = 12.0 * 31500 * 256 * 2;
    const double summaries = 12.0 * 105 * 128 * 128 * 2;
    const double tiles = 12.0 * 105 * 5;
    CHECK(cost.count == 4);
    for (const auto* const name : {"summaries", "readout"}) {
      const KernelCost& k = kernel(cost, name);
      CHECK(k.tensor_bytes == two_tensors);
      CHECK(k.summary_bytes == summaries);
      CHECK(k.cached_bytes == 12.0 * 105 * 300 * 16);
      CHECK(k.flops == 2 * tiles * 64 * 128 * 128);
      CHECK(k.instructions == Approx(tiles * 8 * 710).epsilon(1e-3));
      CHECK(k.launches == 1);
    }
    const KernelCost& mixing = kernel(cost, "mixing");
    CHECK(mixing.tensor_bytes == 0);
    CHECK(mixing.summary_bytes == 2 * summaries);
    CHECK(mixing.cached_bytes == 4.0 * 12 * 105 * 105);
    CHECK(mixing.flops == 2 * 2.0 * 12 * 112 * 112 * 128 * 128);  // both parts of M
    CHECK(mixing.instructions == 3 * mixing.flops / 4096);
    const KernelCost& first = kernel(cost, "tables");
    CHECK(first.bytes() == 31500.0 * 16 + 8 * 105 * 105);  // one table for both sides
    CHECK(cost.bytes() ==
          2 * (two_tensors + summaries + 12.0 * 31500 * 16) + first.bytes() + mixing.bytes());
    CHECK(cost.launches() == 4);
    CHECK(!cost.summaries_in_cache);  // 41 MB
    // The aim: memory binds, or nearly.
    for (const NominalGpu& gpu : {mhla::cuda::h100, mhla::cuda::h200})
      CHECK(cost.seconds(gpu) < 1.4 * cost.times(gpu).bytes);
  });
}

// What instruction_budget.py counts in the kernels' hot loops, for each of eight warps: summaries
// and readout take 703 and 715 at 128 dimensions, rotated, 220 and 340 at 64; pairs 449.
TEST_CASE("cuda path: instructions of a tile are those that kernels issue", "[cuda]") {
  using namespace mhla::cuda;
  CHECK(tile_instructions(64, 128 + 128, 128 * 128) == Approx(710).epsilon(1e-3));
  CHECK(tile_instructions(64, 64 + 64, 64 * 64) == Approx(280).epsilon(1e-3));
  CHECK(pair_instructions(64, 64, 72 + 72) == Approx(450));
}

TEST_CASE("cuda path: what a causal model takes, by hand", "[cuda]") {
  // 4 heads on 2 kv heads, a matrix for each, 150 tokens in blocks of 100: 2 tiles each, of which
  // the causal mask leaves 3 pairs. Values in two parts of 128.
  const mhla::Attention<Relu, Blocks1D, Causal, Unnormalized> attention{.blocks = {.block = 100}};
  const Shape shape{1, 4, 2, 150, 150, 128, 256, 4, 2, 2};
  const PathChoice forward = choice_of<Half>(attention, shape, Direction::forward);
  const double row = (128 + 256) * 2, summary = 128 * 256 * 2;
  const PathCost& by_summaries = cost_of(forward, CudaPath::summaries);
  const KernelCost& summaries = kernel(by_summaries, "summaries");
  CHECK(summaries.tensor_bytes == 2 * 150 * row);
  CHECK(summaries.summary_bytes == 2 * 2 * summary);
  CHECK(summaries.cached_bytes == 2 * 150 * 128 * 2 + 2 * (2 * 2 * 100) * 16);
  const KernelCost& mixing = kernel(by_summaries, "mixing");
  CHECK(mixing.summary_bytes == (2 * 2 * 2 + 4 * 2) * summary);
  CHECK(mixing.cached_bytes == 4 * 4);  // the second block sees the first
  CHECK(mixing.flops == 2 * 2 * 4 * (16 * 16) * 128 * 256);
  const KernelCost& readout = kernel(by_summaries, "readout");
  CHECK(readout.tensor_bytes == 4 * 150 * row + 2 * 150 * row);
  CHECK(readout.summary_bytes == 4 * 2 * summary);
  const double pairs = 4 * 2 * 3;
  CHECK(readout.cached_bytes == 4 * 2 * summary  // a second time for the second tile
                                    + 4 * 150 * 128 * 2 + 2 * (4 * 2 * 100) * 16 +
                                    pairs * 64 * (2 * 128 + 256) * 2 - 2 * 150 * row);
  CHECK(readout.flops == 2 * (4 * 2 * 128) * 128.0 * 256 + 2 * pairs * 64 * 64 * (2 * 128 + 256));

  // Over pairs of tokens the two blocks are 200 places: 4 tiles of 64 queries, which see 4, 8, 12
  // and 13 tiles of 16 keys.
  const double all = 4 * (4 + 8 + 12 + 13);
  const KernelCost& y = kernel(cost_of(forward, CudaPath::quadratic), "y");
  CHECK(y.tensor_bytes == 6 * 150 * row);
  CHECK(y.cached_bytes == all * 16 * (row + 16));
  CHECK(y.flops == 2 * all * 64 * 16 * (128 + 256));
  CHECK(y.instructions == Approx(8 * all * 450 * (128 + 256) / 144 / 4));
  const PathChoice other = choice_of<Half>(attention, shape, Direction::backward);
  const PathCost& backward = cost_of(other, CudaPath::quadratic);
  CHECK(backward.count == 4);
  CHECK(kernel(backward, "dq").flops == y.flops);
  // Tiles of 32 keys, and for dm 7 tiles of 32, of which 28 pairs are left.
  CHECK(kernel(backward, "dk, dv").flops ==
        4 * 4 * (2 + 4 + 6 + 8 + 10 + 12 + 13) * 32.0 * 16 * (128 + 256));
  CHECK(kernel(backward, "dm").flops == 2 * 4 * 28 * 32.0 * 32 * (128 + 256));
  CHECK(kernel(backward, "dq").tensor_bytes == y.tensor_bytes + 4 * 150 * 128 * 2);
  CHECK(kernel(backward, "dk, dv").tensor_bytes == y.tensor_bytes + 2 * 150 * row);
}

namespace {

/// Pairs of tiles of 128 queries and 64 keys of which some see each other, found entry by entry.
template <class Causality>
void check_tile_pairs(Index tokens, Index block) {
  CAPTURE(tokens, block);
  using V = mhla::Attention<Relu, Blocks1D, Causality, Unnormalized>;
  const V attention{.blocks = {.block = block}};
  const Index blocks = mhla::ceil_div(tokens, block);
  const Shape shape{1, 1, 1, tokens, tokens, 64, 64, 1, blocks, blocks};
  const mhla::Problem problem = checked_problem(attention, shape);
  const Index of_block = std::min(block, tokens), entries = blocks * of_block;
  const auto sees = [&](Index t, Index s) {
    if (std::is_same_v<Causality, Causal>) return s <= t;
    return std::is_same_v<Causality, Bidirectional> || s / of_block <= t / of_block;
  };
  double pairs = 0;
  for (Index row = 0; row < entries; row += 128)
    for (Index col = 0; col < entries; col += 64)
      pairs += sees(std::min(row + 128, entries) - 1, col);
  const mhla::cuda::Call<V, Half> call{attention, problem, Direction::forward};
  CHECK(mhla::cuda::PairsCost<V, Half>{call}.tile_pairs(128, 64) == pairs);
}

}  // namespace

TEST_CASE("cuda path: pairs of tiles that see each other", "[cuda]") {
  for (const Index tokens : {1, 63, 64, 65, 200}) {
    for (const Index block : {1, 3, 16, 70}) {
      check_tile_pairs<Bidirectional>(tokens, block);
      check_tile_pairs<BlockCausal>(tokens, block);
      check_tile_pairs<Causal>(tokens, block);
    }
  }
}

TEST_CASE("cuda path: a kernel's time is that of what binds it", "[cuda]") {
  NominalGpu gpu{.memory_bandwidth = 1e12, .cache_bandwidth = 2e12, .launch_seconds = 1e-6};
  gpu.clock = 1e15 / (4 * 132 * mhla::cuda::issue_share) / 1000;  // 1e12 instructions a second
  const auto microseconds = [&](const KernelCost& cost, bool in_cache) {
    return std::round(1e6 * cost.times(gpu, 1e14, in_cache).all() * 1000) / 1000;
  };
  KernelCost cost{"", 10e6, 20e6, 30e6, 1e9, 0, 2};
  CHECK(cost.bytes() == 60e6);
  CHECK(microseconds(cost, false) == 2 + 30);  // 30 MB of memory, as 60 MB of L2
  CHECK(microseconds(cost, true) == 2 + 30);
  CHECK(microseconds({"", 10e6, 50e6, 0, 1e9}, false) == 1 + 60);          // memory
  CHECK(microseconds({"", 10e6, 50e6, 0, 1e9}, true) == 1 + 30);           // L2
  CHECK(microseconds({"", 10e6, 20e6, 30e6, 5e9}, true) == 1 + 50);        // products
  CHECK(microseconds({"", 10e6, 20e6, 30e6, 5e9, 70e6}, true) == 1 + 70);  // instructions
  cost.busy = 0.5;
  CHECK(microseconds(cost, true) == 2 + 60);
  KernelCost alone{"", 10e6, 0, 0, 0, 50e6};
  alone.alone = true;
  CHECK(microseconds(alone, true) == 1 + 70);

  PathCost path;
  path.flops_per_second = 1e14;
  const auto bound = [&] { return std::string(path.bound(gpu)); };
  path.add({"", 10e6});
  CHECK(bound() == "bytes");
  path.add({"", 0, 0, 0, 2e9});
  CHECK(bound() == "products");
  path.add({"", 0, 0, 0, 0, 30e6});
  CHECK(bound() == "instructions");
  path.add({"", 0, 0, 0, 0, 0, 50});
  CHECK(bound() == "launches");
  CHECK(path.seconds(gpu) == Approx(1e-6 * (10 + 20 + 30 + 53)));
  CHECK(path.times(gpu).all() == Approx(1e-6 * (30 + 53)));
}

TEST_CASE("cuda path: packed sequences count by themselves", "[cuda]") {
  const std::int32_t offsets[] = {0, 64, 64, 256};
  const Blocks1D blocks{.block = 64};
  using V = mhla::Attention<Relu, Blocks1D, Bidirectional, Unnormalized>;
  const mhla::Packed<V, std::int32_t> packed(V{.blocks = blocks}, {offsets, 4});
  const Shape shape{1, 2, 2, 256, 256, 64, 64, 1, 3, 3};
  const PathChoice choice = choice_of<Half>(packed, shape, Direction::forward);
  const PathCost& quadratic = cost_of(choice, CudaPath::quadratic);
  const PathCost& summaries = cost_of(choice, CudaPath::summaries);
  const PathCost& resident = cost_of(choice, CudaPath::resident);
  CHECK(kernel(quadratic, "y").flops == 2 * 2 * (1 + 2 * 3) * 128 * 64 * 128.0);
  CHECK(kernel(quadratic, "y").launches == 1);
  CHECK(kernel(summaries, "mixing").launches == 2);  // one sequence is empty
  CHECK(kernel(summaries, "mixing").cached_bytes == 2 * (1 + 9) * 4);
  CHECK(kernel(summaries, "summaries").summary_bytes == 2 * 4 * 64 * 64 * 2);
  CHECK(kernel(resident, "summaries, mixing and readout").launches == 2);
  CHECK(kernel(resident, "summaries, mixing and readout").busy == 2.0 / 132);
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

TEST_CASE("cuda path: what fits is what the device at hand has", "[cuda]") {
  const Attention attention{.blocks = {.block = 4}};
  const Shape shape{1, 2, 2, 64, 64, 128, 256, 1, 16, 16};
  const Shape small{1, 2, 2, 64, 64, 32, 32, 1, 16, 16};
  cublasContext machine;
  const CudaDevice device(nullptr, &machine, {}, mhla::FloatProducts::exact, CudaPath::resident);
  stand_in::Runtime& runtime = stand_in::runtime();
  const stand_in::Runtime before = runtime;
  const auto bytes = [&](const Shape& of) {
    return mhla::forward_workspace_size<BFloat16>(attention, of, device);
  };
  CHECK(bytes(small) > 0);
  CHECK(says(error_message<ShapeError>([&] { bytes(shape); }), "head dimensions over 128"));
  runtime.shared_bytes = 32 * 1024;
  CHECK(says(error_message<ShapeError>([&] { bytes(small); }), "shared memory"));
  CHECK(says(mhla::explain<BFloat16>(attention, small, CudaDevice(nullptr, &machine)),
             "\n  not resident: the block summaries do not fit"));
  // Without a device, what an H200 has; the error is taken back.
  runtime.refuse_device_with = cudaErrorNoDevice;
  CHECK(bytes(small) > 0);
  CHECK(runtime.last_error == cudaSuccess);
  CHECK(says(mhla::explain<BFloat16>(attention, small, device),
             "forward: path resident, as the CudaDevice asks for",
             "\nbackward: path resident has none\n"));
  runtime = before;
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

TEST_CASE("cuda path: to choose one allocates nothing", "[cuda]") {
  const Shape shape{1, 2, 1, 128, 128, 64, 64, 1, 32, 32};
  const auto check = [&]<class V>(const V& attention) {
    const mhla::Problem problem = checked_problem(attention, shape);
    for (const Direction direction : {Direction::forward, Direction::backward})
      for (const StateUse state : {StateUse::none, StateUse::given}) {
        const mhla::cuda::Call<V, BFloat16> call{attention, problem, direction, state, every};
        const AllocationCounter counter;
        const PathChoice choice = mhla::cuda::fastest_path(call, NominalGpu());
        Index bytes = 0;
        for (const PathChoice::Option& option : choice.options)
          if (option.refusal.none()) bytes += memory_of(option.path, call).workspace_bytes;
        const long allocations = counter.allocations();
        CHECK(choice.can(CudaPath::quadratic) == (state == StateUse::none));
        CHECK(choice.can(CudaPath::resident) ==
              (state == StateUse::none && direction == Direction::forward));
        CHECK(bytes > 0);
        CHECK(allocations == 0);
      }
  };
  const std::vector<std::int32_t> offsets = {0, 0, 7, 8, 8, 100, 128, 128};
  const auto check_causality = [&](auto causality) {
    const mhla::Attention<Relu, Blocks1D, decltype(causality)> attention{.blocks = {.block = 4}};
    check(attention);
    check(mhla::packed(attention, offsets));
  };
  check_causality(Bidirectional{});
  check_causality(Causal{});
  check_causality(BlockCausal{});
}
