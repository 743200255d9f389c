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

template <class Dims>
constexpr mhla::Index workspace_of(mhla::CudaPath path, mhla::cuda::Direction direction) {
  return 1024 * Dims::key_dim + 64 * Dims::value_dim +
         (path == mhla::CudaPath::quadratic    ? 1 << 20
          : path == mhla::CudaPath::resident   ? 1 << 22
          : path == mhla::CudaPath::persistent ? 1 << 23
                                               : 0) +
         (direction == mhla::cuda::Direction::backward ? 1 << 21 : 0);
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
namespace cuda::fused {

#define MHLA_TEST_PASSES(Variant, Scalar, Dims)                                                    \
  template <>                                                                                      \
  CallMemory memory_of<Variant, Scalar, Dims>(CudaPath path, const Variant&, const Problem&,       \
                                              Direction direction) {                               \
    return {path_test::workspace_of<Dims>(path, direction), 2};                                    \
  }                                                                                                \
  template <>                                                                                      \
  void run_forward<Variant, Scalar, Dims>(CudaPath path, const CudaDevice&, const Variant&,        \
                                          const Problem&, const OperandViews<Scalar>&,             \
                                          const TensorView<Scalar, 4>& y, WorkspaceView workspace, \
                                          Span<float> state) {                                     \
    path_test::asked.push_back({"forward", path, Dims::key_dim, Dims::value_dim, workspace.size,   \
                                Update::overwrite, state.size});                                   \
    path_test::fill(y, 42);                                                                        \
  }                                                                                                \
  template <>                                                                                      \
  void run_backward<Variant, Scalar, Dims>(CudaPath path, const CudaDevice&, const Variant&,       \
                                           const Problem&, const OperandViews<Scalar>&,            \
                                           const TensorView<const Scalar, 4>&,                     \
                                           const GradientViews<Scalar>& gradients, Update update,  \
                                           WorkspaceView workspace, Span<float> state) {           \
    path_test::asked.push_back(                                                                    \
        {"backward", path, Dims::key_dim, Dims::value_dim, workspace.size, update, state.size});   \
    path_test::fill(gradients.query.view, 43);                                                     \
  }
using Small = HeadDims<32, 32>;
using Wide = HeadDims<128, 256>;
MHLA_TEST_PASSES(path_test::Fused, BFloat16, Small)
MHLA_TEST_PASSES(path_test::Fused, BFloat16, Wide)
MHLA_TEST_PASSES(path_test::PaddedFused, Half, Small)

}  // namespace cuda::fused
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
using mhla::cuda::HeadDimsList;
using mhla::cuda::HeadDimsPair;
using mhla::cuda::KernelCost;
using mhla::cuda::name_of;
using mhla::cuda::NominalGpu;
using mhla::cuda::PathChoice;
using mhla::cuda::PathCost;

using mhla::cuda::fused_head_dims;
constexpr HeadDimsList every{fused_head_dims, std::size(fused_head_dims)};

template <class T, class V>
PathChoice choice_of(const V& attention, const Shape& shape, Direction direction,
                     CudaPath path = CudaPath::automatic, StateUse state = StateUse::none,
                     const HeadDimsList& compiled = every) {
  return mhla::cuda::choose_path<T>(attention, checked_problem(attention, shape), direction, path,
                                    state, compiled);
}

template <class T, class Map, class Causality, class Normalizer, class Rotation>
std::string refused() {
  using V = mhla::Attention<Map, Blocks1D, Causality, Normalizer, Rotation>;
  return to_string(mhla::cuda::refusal_of_types<V, T>(), Shape{});
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
}

TEST_CASE("cuda path: what the fused paths refuse by size, and why", "[cuda]") {
  using mhla::cuda::refusal_of;
  const Shape shape{2, 4, 2, 40, 50, 64, 64, 1, 3, 3};
  constexpr HeadDimsPair pair[] = {{64, 64}};
  const auto said = [&](const Shape& s) { return to_string(refusal_of(s, {pair, 1}), s); };
  CHECK(said(shape) == "");
  const auto said_of = [&](CudaPath path, StateUse state) {
    const PathChoice choice =
        choice_of<Half>(mhla::Attention<Relu, Blocks1D>{.blocks = {.block = 20}}, shape,
                        Direction::forward, CudaPath::automatic, state);
    return to_string(choice.refusal_of(path), shape);
  };
  for (const CudaPath path : {CudaPath::quadratic, CudaPath::resident}) {
    CHECK(said_of(path, StateUse::given) == "it has no summaries for a forward state");
    CHECK(said_of(path, StateUse::none) == "");
  }
  CHECK(said_of(CudaPath::persistent, StateUse::given) ==
        "it has no summaries for a forward state");
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
  CHECK(to_string(refusal_of(shape, {}), shape) ==
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
    const mhla::Problem problem = checked_problem(attention, shape);
    const PathChoice choice =
        mhla::cuda::choose_path<Half>(attention, problem, direction, CudaPath::automatic,
                                      StateUse::none, every, mhla::FloatProducts::exact, gpu);
    CHECK(choice.can(CudaPath::summaries));
    CHECK(choice.can(CudaPath::quadratic));
    CHECK(choice.can(CudaPath::resident) == (choice.resident.count > 0));
    CHECK(choice.can(CudaPath::resident) ==
          (choice.refusal_of(CudaPath::resident) == mhla::cuda::Refusal::none));
    return to_string(choice.refusal_of(CudaPath::resident), shape);
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
  CHECK(choice_of<Half>(other, odd, Direction::forward).refusal_of(CudaPath::resident) ==
        mhla::cuda::Refusal::head_dims);

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

TEST_CASE("cuda path: what the persistent path refuses besides, and why", "[cuda]") {
  const auto said = [](const auto& attention, const Shape& shape, Direction direction) {
    const PathChoice choice = choice_of<Half>(attention, shape, direction);
    CHECK(choice.can(CudaPath::persistent) == (choice.persistent.count > 0));
    // It takes its times in the model, but nobody has measured it.
    CHECK(choice.path != CudaPath::persistent);
    return to_string(choice.refusal_of(CudaPath::persistent), shape);
  };
  const auto line = [](Index block, Index key_block) {
    return mhla::Attention<Relu, Blocks1D>{.blocks = {.block = block},
                                           .key_blocks = {.block = key_block}};
  };
  const Shape shape{2, 4, 2, 128, 128, 64, 64, 1, 128, 128};
  CHECK(said(line(1, 1), shape, Direction::forward) == "");
  CHECK(said(line(1, 1), shape, Direction::backward) == "it has no backward pass");
  Shape other = shape;
  other.query_tokens = other.key_tokens = other.mix_query_blocks = other.mix_key_blocks = 129;
  const char* const blocks = "more than 128 blocks, or not as many of queries as of keys";
  CHECK(said(line(1, 1), other, Direction::forward) == blocks);
  other = shape;
  other.mix_query_blocks = 64;
  CHECK(said(line(2, 1), other, Direction::forward) == blocks);
  other = shape;
  other.mix_heads = 4;
  CHECK(said(line(1, 1), other, Direction::forward) ==
        "query heads that share keys have mixing matrices of their own");
  other.kv_heads = 4;
  CHECK(said(line(1, 1), other, Direction::forward) == "");
  other = shape;
  other.batch = Index{1} << 23;
  CHECK(said(line(1, 1), other, Direction::forward) ==
        "more heads of the batch than one launch can have");
  const std::vector<std::int32_t> offsets = {0, 60, 128};
  CHECK(said(mhla::packed(mhla::Attention<Relu, Blocks1D>{.blocks = {.block = 4}}, offsets),
             {1, 4, 2, 128, 128, 64, 64, 1, 17, 17}, Direction::forward) == "packed sequences");
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
        CHECK(choice.reason() == "the fastest by the cost model");
        const NominalGpu gpu;
        for (const CudaPath path : {CudaPath::cublas, t, q, r})
          if (choice.can(path))
            CHECK(choice.cost().seconds(gpu) <= choice.cost_of(path).seconds(gpu));
        // With a state it is one path for both passes.
        const auto with_state = [&](Direction of) {
          return choice_of<BFloat16>(attention, shape, of, CudaPath::automatic, StateUse::given);
        };
        const PathChoice one = with_state(Direction::forward);
        const PathChoice other = with_state(Direction::backward);
        CHECK(one.path == other.path);
        for (const CudaPath path : {CudaPath::cublas, t})
          CHECK(one.cost().seconds(gpu) + other.cost().seconds(gpu) <=
                one.cost_of(path).seconds(gpu) + other.cost_of(path).seconds(gpu));
        CHECK(!one.can(q));
        CHECK(!one.can(r));
        CHECK(one.can(t));
        // Without kernels for it, and with another wish.
        CHECK(choice_of<BFloat16>(attention, shape, direction, CudaPath::automatic, StateUse::none,
                                  {})
                  .path == CudaPath::cublas);
        CHECK(choice_of<float>(attention, shape, direction).path == CudaPath::cublas);
        for (const CudaPath path : {CudaPath::cublas, t, q, r}) {
          if (!choice.can(path)) continue;
          const PathChoice forced = choice_of<BFloat16>(attention, shape, direction, path);
          CHECK(forced.path == path);
          CHECK(forced.reason() == "as the CudaDevice asks for");
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
            (side <= 16   ? CudaPath::quadratic
             : side == 24 ? CudaPath::resident
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
  CHECK(kernel(choice_with(33).resident, "readout").busy == 1);
  CHECK(kernel(choice_with(1).resident, "readout").busy == 4.0 / 132);
  CHECK(kernel(choice_with(34).resident, "readout").busy == 136.0 / 264);
  CHECK(choice_with(1).path != CudaPath::resident);
}

TEST_CASE("cuda path: bytes and operations of DiT-512 on the chip, by hand", "[cuda]") {
  // 64 x 16 heads of 72 in one slice, 32 x 32 tokens in 4 x 4 blocks of 64.
  const auto shape = bench::gpu_shapes()[4];
  REQUIRE(shape.name == "DiT-XL/2_512_B64");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathCost cost = choice_of<BFloat16>(attention, shape.call(), Direction::forward).resident;
    const double two_tensors = 1024.0 * 1024 * 144 * 2;
    const double places = 1024.0 * 1024 * 16;
    REQUIRE(cost.count == 4);
    for (const auto* const name : {"summaries", "readout"}) {
      const KernelCost& k = kernel(cost, name);
      CHECK(k.tensor_bytes == two_tensors);
      CHECK(k.summary_bytes == 0);
      CHECK(k.repeated_bytes == places);
      // Looked up for every 8 columns of either tensor, and by the 8 lanes of a row.
      CHECK(static_cast<double>(k.moved.total()) == two_tensors + places * (9 + 9 + 8));
    }
    CHECK(kernel(cost, "summaries").moved.written == 0);
    CHECK(static_cast<double>(kernel(cost, "readout").moved.written) == two_tensors / 2);
    CHECK(kernel(cost, "summaries").flops == 2 * 1024.0 * 1024 * 80 * 72);
    CHECK(kernel(cost, "readout").flops == 2 * 1024.0 * 1024 * 72 * 72);
    const KernelCost& mixing = kernel(cost, "mixing");
    // The matrix for its two parts, and for every four of 72 key sums.
    CHECK(mixing.bytes() == 1024.0 * 256 * 4 * (1 + 18));
    CHECK(mixing.launches + kernel(cost, "readout").launches == 0);
    CHECK(kernel(cost, "summaries").launches == 1);
    CHECK(kernel(cost, "readout").busy == 1024.0 / (8 * 132));
    CHECK(cost.bytes() == static_cast<double>(cost.moved().total()));
  });
}

TEST_CASE("cuda path: bytes and operations of Wan in one launch, by hand", "[cuda]") {
  const auto shape = bench::gpu_shapes()[0];
  REQUIRE(shape.name == "Wan_B1");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathChoice choice = choice_of<BFloat16>(attention, shape.call(), Direction::forward);
    const PathCost& cost = choice.persistent;
    REQUIRE(cost.count == 2);
    CHECK(cost.kernel[0].launches == choice.summaries.kernel[0].launches + 1);
    const KernelCost& all = cost.kernel[1];
    CHECK(all.launches == 1);
    // A head has 105 summaries, 16 stretches and 4 slices of key sums to mix, and 105 blocks to
    // read out: two heads give 264 thread blocks work, four times as many have summaries at
    // once.
    CHECK(cost.summaries_in_cache);
    mhla::cuda::NominalGpu gpu;
    gpu.cache_bytes = 8 * 105 * 32768 - 1;
    const mhla::Problem problem = checked_problem(attention, shape.call());
    const auto size = mhla::cuda::call_size(attention, problem);
    const auto stays = [&] {
      return mhla::cuda::fused::persistent_cost(attention, problem, size, gpu).summaries_in_cache;
    };
    CHECK(!stays());
    gpu.cache_bytes += 1;
    CHECK(stays());

    CHECK(all.tensor_bytes == 4 * 12 * 31500.0 * 128 * 2);
    CHECK(all.summary_bytes == 4 * 12 * 105 * 32768.0);
    const KernelCost& mixing = kernel(choice.summaries, "mixing");
    CHECK(all.flops == kernel(choice.summaries, "summaries").flops + mixing.flops +
                           kernel(choice.summaries, "readout").flops);
    // The matrix for each stretch.
    const double matrix = 105.0 * 105 * 4;
    CHECK(static_cast<double>(all.moved.total()) ==
          static_cast<double>(kernel(choice.summaries, "summaries").moved.total() +
                              kernel(choice.summaries, "readout").moved.total()) +
              12 * (2 * 105 * 32768.0 + matrix * 16));
    CHECK(cost.bytes() == static_cast<double>(cost.moved().total()));
    CHECK(cost.seconds(gpu) < 0.85 * choice.summaries.seconds(gpu));
  });
}

TEST_CASE("cuda path: key sums in one launch, by hand", "[cuda]") {
  // 16 blocks of a unit, key sums of 72 floats in 3 slices of 24.
  const auto shape = bench::gpu_shapes()[4];
  REQUIRE(shape.name == "DiT-XL/2_512_B64");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathChoice choice = choice_of<BFloat16>(attention, shape.call(), Direction::forward);
    const KernelCost& all = kernel(choice.persistent, "summaries, mixing and readout");
    const double summary = 72 * 72 * 2, sum = 72 * 4;
    CHECK(all.summary_bytes == 4 * 1024 * 16 * (summary + sum));
    // The matrix for each of 2 stretches, by four warps side by side, and for every four columns of
    // key sums.
    CHECK(static_cast<double>(all.moved.total()) ==
          static_cast<double>(kernel(choice.summaries, "summaries").moved.total() +
                              kernel(choice.summaries, "readout").moved.total()) +
              1024 * (2 * 16 * (summary + sum) + 16 * 16 * 4 * (2 * 4 + 18)));
  });
}

TEST_CASE("cuda path: bytes and operations of Wan by way of summaries, by hand", "[cuda]") {
  // 12 heads of 128, 21 x 30 x 50 tokens in 7 x 3 x 5 blocks of 300: 5 tiles of 64.
  const auto shape = bench::gpu_shapes()[0];
  REQUIRE(shape.name == "Wan_B1");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathCost cost =
        choice_of<BFloat16>(attention, shape.call(), Direction::forward).summaries;
    const double two_tensors = 12.0 * 31500 * 256 * 2;
    const double summaries = 12.0 * 105 * 128 * 128 * 2;
    const double rows = 12.0 * 105 * 320;
    const double tables = 12.0 * 31500 * 16;  // places; cosines and sines stay near
    CHECK(cost.count == 4);
    for (const auto* const name : {"summaries", "readout"}) {
      const KernelCost& k = kernel(cost, name);
      CHECK(k.tensor_bytes == two_tensors);
      CHECK(k.summary_bytes == summaries);
      CHECK(k.repeated_bytes == tables);
      CHECK(k.flops == 2 * rows * 128 * 128);
      // Places are looked up for every 8 columns of either tensor, and by the 16 lanes of a row.
      CHECK(static_cast<double>(k.moved.total()) ==
            two_tensors + summaries + 12.0 * 31500 * (3 * 16 * 16 + 4 * 128));
    }
    const KernelCost& mixing = kernel(cost, "mixing");
    CHECK(mixing.tensor_bytes == 0);
    CHECK(mixing.summary_bytes == 2 * summaries);
    CHECK(mixing.repeated_bytes == 4.0 * 264 * 105 * 105);        // thread blocks that stay
    CHECK(mixing.flops == 2 * 2.0 * 12 * 112 * 112 * 128 * 128);  // both planes of M
    const KernelCost& first = kernel(cost, "tables");
    CHECK(first.bytes() == 2 * 31500.0 * 16 + 8 * 105 * 105);
    CHECK(first.launches == 6);
    CHECK(cost.bytes() ==
          2 * (two_tensors + summaries + 12.0 * 31500 * (3 * 16 * 16 + 4 * 128)) + mixing.bytes());
    CHECK(cost.bytes() == static_cast<double>(cost.moved().total()));
    CHECK(cost.bytes_beside() == first.bytes());
    CHECK(!cost.summaries_in_cache);  // 41 MB
  });
}

TEST_CASE("cuda path: bytes and operations of DiT-512 by way of summaries, by hand", "[cuda]") {
  // 64 x 16 heads of 72, 32 x 32 tokens in 4 x 4 blocks of 64; key sums in float.
  const auto shape = bench::gpu_shapes()[4];
  REQUIRE(shape.name == "DiT-XL/2_512_B64");
  bench::with_gpu_variant(shape, [&](const auto& attention) {
    const PathCost cost =
        choice_of<BFloat16>(attention, shape.call(), Direction::forward).summaries;
    const double two_tensors = 1024.0 * 1024 * 144 * 2;
    const double summaries = 1024.0 * 16 * 72 * 72 * 2;
    const double key_sums = 1024.0 * 16 * 72 * 4;
    const double rows = 1024.0 * 16 * 64;
    CHECK(cost.count == 5);
    for (const auto* const name : {"summaries", "readout"}) {
      const KernelCost& k = kernel(cost, name);
      CHECK(k.tensor_bytes == two_tensors);
      CHECK(k.summary_bytes == summaries + key_sums);
      CHECK(k.repeated_bytes == rows * 16);
    }
    CHECK(kernel(cost, "summaries").flops == 2 * rows * 80 * 72);  // 72 rows in parts of 16
    CHECK(kernel(cost, "readout").flops == 2 * rows * 72 * 72);
    CHECK(kernel(cost, "mixing").summary_bytes == 2 * summaries);
    CHECK(kernel(cost, "mixing").repeated_bytes ==
          4.0 * 264 * 4 * 16 * 16);  // 4 warps side by side
    CHECK(kernel(cost, "mixing").flops == 2 * 2.0 * 1024 * 16 * 16 * (21 * 256));  // 5184 columns
    CHECK(kernel(cost, "mixing of key sums").summary_bytes == 2 * key_sums);
    CHECK(kernel(cost, "mixing of key sums").beside);
    const double places = rows * 16 * (9 + 8 + 9);  // of both tensors, and of a row's lanes
    CHECK(cost.bytes() ==
          2 * (two_tensors + summaries + key_sums + places) + kernel(cost, "mixing").bytes());
    CHECK(cost.bytes_beside() ==
          2 * key_sums + 1024 * 4.0 * 16 * 16 + 2 * 1024.0 * 16 + 8 * 16 * 16);
    CHECK(cost.launches() == 3 + 4);
  });
}

TEST_CASE("cuda path: bytes and operations of a causal model, by hand", "[cuda]") {
  // 4 heads on 2 kv heads, a matrix for each, 150 tokens in blocks of 100: 2 tiles each, of which
  // the causal mask leaves 3 pairs. Values in two parts of 128.
  const mhla::Attention<Relu, Blocks1D, Causal, Unnormalized> attention{.blocks = {.block = 100}};
  const Shape shape{1, 4, 2, 150, 150, 128, 256, 4, 2, 2};
  const PathChoice forward = choice_of<Half>(attention, shape, Direction::forward);
  const double row = (128 + 256) * 2, summary = 128 * 256 * 2;
  const double place = 16;
  const KernelCost& summaries = kernel(forward.summaries, "summaries");
  CHECK(summaries.tensor_bytes == 2 * 150 * row);
  CHECK(summaries.summary_bytes == 2 * 2 * summary);
  CHECK(summaries.repeated_bytes == 2 * 150 * 128 * 2 + 2 * (2 * 2 * 100) * place);
  const KernelCost& mixing = kernel(forward.summaries, "mixing");
  // Of each matrix one element counts: the second block sees the first, and the second's summary is
  // not read. 264 thread blocks take it, 4 warps side by side.
  CHECK(mixing.bytes() == 4 * 3 * summary + 264 * 4 * 4);
  CHECK(mixing.flops == 2 * 2 * 4 * (16 * 16) * 128 * 256);
  const KernelCost& readout = kernel(forward.summaries, "readout");
  CHECK(readout.tensor_bytes == 4 * 150 * row + 2 * 150 * row);
  CHECK(readout.summary_bytes == 4 * 2 * summary);
  const double pairs = 4 * 2 * 3;
  // Tiles of 64 and 36 keys, and of 50 and none, the first of which two tiles of queries see.
  const double seen = 4 * (64 + 64 + 36 + 50 + 50);
  CHECK(readout.repeated_bytes == 4 * 2 * summary  // a second time for the second tile
                                      + 4 * 150 * 128 * 2 + 2 * (4 * 2 * 100) * place +
                                      seen * (2 * 128 + 256) * 2 - 2 * 150 * row +
                                      2 * 4 * 2 * (64 + 100) * place);
  CHECK(readout.flops == 2 * (4 * 2 * 128) * 128.0 * 256 + 2 * pairs * 64 * 64 * (2 * 128 + 256));

  // Over pairs of tokens the two blocks are 200 places: 7 tiles of 32, of which 28 pairs are left.
  const double all = 4 * 28;
  const KernelCost& y = kernel(forward.quadratic, "y");
  CHECK(y.tensor_bytes == 6 * 150 * row);
  const double tokens = 32 + 64 + 96 + 128 + 150 + 150 + 150;
  const double places = 32 + 64 + 96 + 128 + 160 + 192 + 200;
  CHECK(y.repeated_bytes ==
        4 * (tokens * row + (places + 200) * place + 7 * 4 * 4) - 2 * 150 * row);  // and mix
  CHECK(y.flops == 2 * all * 32 * 32 * (128 + 256));
  const PathCost backward = choice_of<Half>(attention, shape, Direction::backward).quadratic;
  CHECK(backward.count == 5);
  CHECK(kernel(backward, "dq").flops == y.flops);
  CHECK(kernel(backward, "dk, dv").flops == 2 * y.flops);
  CHECK(kernel(backward, "dq").tensor_bytes == y.tensor_bytes + 4 * 150 * 128 * 2);
  CHECK(kernel(backward, "dk, dv").tensor_bytes == y.tensor_bytes + 2 * 150 * row);
  // Blocks of 100 are 4 tiles each: the pairs of a causal block, all of another, and the parts.
  CHECK(kernel(backward, "dm").flops == 2 * 4 * (10 + 16 + 10) * 32 * 32 * (128 + 256));
  CHECK(kernel(backward, "dm").tensor_bytes == y.tensor_bytes + 4 * 4 * 3);
}

TEST_CASE("cuda path: matrices of mix that do not fit one tile are read tile by tile", "[cuda]") {
  const mhla::Attention<Relu, Blocks1D, BlockCausal, Unnormalized> attention{
      .blocks = {.block = 8}};
  const Shape shape{1, 2, 2, 8 * 130, 8 * 130, 64, 64, 1, 130, 130};
  const PathCost cost = choice_of<Half>(attention, shape, Direction::forward).summaries;
  const KernelCost& mixing = kernel(cost, "mixing");
  const double summary = 64 * 64 * 2;
  CHECK(mixing.summary_bytes == 2 * 2 * 130 * summary);
  // The second tile of 128 rows takes the first one's summaries again. Every panel of 64 columns
  // takes the matrix, below and on the diagonal.
  CHECK(mixing.repeated_bytes == 2 * 128 * summary + 2 * 64 * (130 * 131 / 2) * 4.0);
  CHECK(mixing.flops == 2 * 2 * 2 * (36 + 9) * 16 * 16 * 64.0 * 64);  // parts of 16 x 16
  CHECK(cost.summaries_in_cache);                                     // 2 MB
}

namespace {

/// What tiles of 64 entries go through, found entry by entry.
template <class Causality>
void check_walks(Index tokens, Index block) {
  CAPTURE(tokens, block);
  const mhla::Attention<Relu, Blocks1D, Causality, Unnormalized> attention{
      .blocks = {.block = block}};
  const Index blocks = mhla::ceil_div(tokens, block);
  const Shape shape{1, 1, 1, tokens, tokens, 64, 64, 1, blocks, blocks};
  const mhla::cuda::fused::PairBytes bytes(attention, checked_problem(attention, shape));
  const Index of_block = std::min(block, tokens), entries = blocks * of_block;
  const auto sees = [&](Index t, Index s) {
    if (std::is_same_v<Causality, Causal>) return s <= t;
    return std::is_same_v<Causality, Bidirectional> || s / of_block <= t / of_block;
  };
  mhla::cuda::fused::Walked keys, queries;
  for (Index begin = 0; begin < entries; begin += 64) {
    mhla::cuda::fused::Walked of_keys, of_queries;
    for (Index other = 0; other < entries; ++other) {
      bool seen = false, seeing = false;
      for (Index own = begin; own < std::min(begin + 64, entries); ++own) {
        seen = seen || sees(own, other);
        seeing = seeing || sees(other, own);
      }
      const Index b = other / of_block;
      const Index present = other % of_block < std::min(block, tokens - b * block) ? 1 : 0;
      if (seen) of_keys += {0, 1, present};
      if (seeing) of_queries += {0, 1, present};
    }
    of_keys.tiles = mhla::ceil_div(of_keys.entries, Index{64});
    of_queries.tiles = mhla::ceil_div(of_queries.entries, Index{64});
    keys += of_keys;
    queries += of_queries;
  }
  const auto check = [](const mhla::cuda::fused::Walked& a, const mhla::cuda::fused::Walked& b) {
    CHECK(a.tiles == b.tiles);
    CHECK(a.entries == b.entries);
    CHECK(a.tokens == b.tokens);
  };
  check(bytes.keys_seen().seen, keys);
  check(bytes.queries_that_see().seen, queries);
}

}  // namespace

TEST_CASE("cuda path: what tiles of tokens go through over pairs", "[cuda]") {
  for (const Index block : {1, 3, 16, 70})
    for (const Index tokens : {1, 63, 64, 65, 200}) {
      check_walks<Bidirectional>(tokens, block);
      check_walks<BlockCausal>(tokens, block);
      check_walks<Causal>(tokens, block);
    }
}

TEST_CASE("cuda path: a kernel's time is that of what binds it", "[cuda]") {
  const NominalGpu gpu{.memory_bandwidth = 1e12, .cache_bandwidth = 2e12, .launch_seconds = 1e-6};
  const auto microseconds = [&](const KernelCost& cost, bool in_cache) {
    return std::round(1e6 * cost.seconds(gpu, 1e14, in_cache) * 1000) / 1000;
  };
  const KernelCost cost{"", 10e6, 20e6, 30e6, 1e9, 2};
  CHECK(cost.bytes() == 60e6);
  KernelCost counted = cost;
  counted.count({50000000, 40000000});  // 30 MB more, out of L1
  CHECK(counted.bytes() == 90e6);
  CHECK(microseconds(counted, false) == 2 + 30);
  counted.count({25000000, 0});  // fewer than were thought to come from memory
  CHECK(counted.bytes() == 25e6);
  CHECK(counted.summary_bytes == 15e6);
  CHECK(microseconds(cost, false) == 2 + 30);  // 30 MB of memory, as 60 MB of L2
  CHECK(microseconds(cost, true) == 2 + 30);
  CHECK(microseconds({"", 10e6, 50e6, 0, 1e9}, false) == 1 + 60);    // memory
  CHECK(microseconds({"", 10e6, 50e6, 0, 1e9}, true) == 1 + 30);     // L2
  CHECK(microseconds({"", 10e6, 20e6, 30e6, 5e9}, true) == 1 + 50);  // products
  KernelCost alone{"", 10e6, 20e6, 30e6, 5e9};
  alone.alone = true;
  alone.busy = 0.5;
  CHECK(microseconds(alone, true) == 1 + (30 + 50) * 2);
}

TEST_CASE("cuda path: packed sequences count by themselves", "[cuda]") {
  const std::int32_t offsets[] = {0, 64, 64, 256};
  const Blocks1D blocks{.block = 64};
  using V = mhla::Attention<Relu, Blocks1D, Bidirectional, Unnormalized>;
  const mhla::Packed<V, std::int32_t> packed(V{.blocks = blocks}, {offsets, 4});
  const Shape shape{1, 2, 2, 256, 256, 64, 64, 1, 3, 3};
  const PathChoice choice = choice_of<Half>(packed, shape, Direction::forward);
  CHECK(kernel(choice.quadratic, "y").flops == 2 * 2 * (1 + 9) * 64 * 64 * 128.0);
  CHECK(kernel(choice.quadratic, "y").launches == 1);
  CHECK(kernel(choice.summaries, "mixing").launches == 2);  // one sequence is empty
  CHECK(kernel(choice.summaries, "summaries").summary_bytes == 2 * 4 * 64 * 64 * 2);
  CHECK(kernel(choice.resident, "summaries").launches == 2);
  CHECK(kernel(choice.resident, "summaries").busy == 2.0 / 132);
  CHECK(kernel(choice.resident, "mixing").moved.read == 2 * (1 + 9) * 4);
}

TEST_CASE("cuda path: tiles of packed sequences are those of the block table", "[cuda]") {
  cublasContext machine;
  const CudaDevice device(nullptr, &machine);
  const std::int32_t offsets[] = {0, 70, 70, 300, 301};
  using V = mhla::Attention<Relu, Blocks1D, Bidirectional, Unnormalized>;
  const mhla::Packed<V, std::int32_t> packed(V{.blocks = {.block = 150}}, {offsets, 5});
  const mhla::Problem problem = checked_problem(packed, Shape{1, 1, 1, 301, 301, 64, 64, 1, 2, 2});
  mhla::Arena size;
  static_cast<void>(mhla::cuda::Extents(size, packed, problem, 1));
  const mhla::Workspace workspace(size.used());
  mhla::Arena arena(workspace);
  const mhla::cuda::Extents extents(arena, packed, problem, 1);
  const mhla::cuda::BlockTable& table = extents.keys.table;
  mhla::cuda::fill(device, packed, table);
  using mhla::cuda::fused::TileTokens;
  const TileTokens found(packed, problem.key_grid, 3, 64);
  const TileTokens expected(table, 3, 64);
  CHECK(found.blocks == 3 * 4);
  CHECK(found.blocks == expected.blocks);
  CHECK(found.tiles_of_block == expected.tiles_of_block);
  CHECK(found.all.entries == expected.all.entries);
  CHECK(found.all.present == 3 * 301);
  CHECK(found.all.present == expected.all.present);
  CHECK(found.numbered.entries == expected.numbered.entries);
  CHECK(found.numbered.present == expected.numbered.present);
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
  for (const CudaPath path : mhla::cuda::fused_paths) {
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
  const HeadDimsList compiled = mhla::cuda::compiled_head_dims<Attention, BFloat16>();
  REQUIRE(compiled.size == 2);
  CHECK(compiled.has(32, 32));
  CHECK(compiled.has(128, 256));
  CHECK(!compiled.has(128, 128));
  CHECK(mhla::cuda::compiled_head_dims<Attention, Half>().size == 0);
  CHECK(mhla::cuda::compiled_head_dims<Padded, Half>().size == 1);

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
  const auto check = [&](std::size_t i, const std::string& what, CudaPath path, Index key_dim,
                         Index value_dim, Index workspace) {
    const path_test::Asked& of = path_test::asked[i];
    CAPTURE(i, of.what);
    CHECK(of.what == what);
    CHECK(of.path == path);
    CHECK(of.key_dim == key_dim);
    CHECK(of.value_dim == value_dim);
    CHECK(of.workspace == workspace);
    CHECK(of.update == (what == "forward" ? mhla::Update::overwrite : mhla::Update::accumulate));
  };
  constexpr Index small = 1024 * 32 + 64 * 32, wide = 1024 * 128 + 64 * 256;
  check(0, "forward", CudaPath::summaries, 32, 32, small);
  check(1, "backward", CudaPath::summaries, 32, 32, small + (1 << 21));
  check(2, "forward", CudaPath::quadratic, 128, 256, wide + (1 << 20));
  check(3, "backward", CudaPath::quadratic, 128, 256, wide + (1 << 20) + (1 << 21));
  const auto z32 = call::operands<BFloat16>(attention, {1, 2, 1, 9, 9, 32, 32});
  call::forward(attention, z32, device(CudaPath::resident));
  check(4, "forward", CudaPath::resident, 32, 32, small + (1 << 22));
  CHECK(machine.launches == 0);
  CHECK(machine.products == 0);

  // Chosen by the model, and what explain says of it.
  const Shape shape{3, 2, 1, 9, 9, 32, 32, 1, 3, 3};
  const CudaDevice automatic = device(CudaPath::automatic);
  const PathChoice choice =
      choice_of<BFloat16>(attention, shape, Direction::forward, CudaPath::automatic);
  REQUIRE(choice.path != CudaPath::cublas);
  CHECK(forward_workspace_size<BFloat16>(attention, shape, automatic) ==
        path_test::workspace_of<mhla::HeadDims<32, 32>>(choice.path, Direction::forward));
  CHECK(mhla::backward_workspace_size<BFloat16>(attention, shape, device(CudaPath::quadratic)) ==
        small + (1 << 20) + (1 << 21));
  const std::string text = mhla::explain<BFloat16>(attention, shape, automatic);
  const std::string name = name_of(choice.path);
  CHECK(says(text, "forward: path " + name + ", the fastest by the cost model; products in 16 bits",
             "\n  by a model of an H200, which measurements are to replace: cublas ",
             " us, summaries ", " us, quadratic ", " us, resident ",
             "\n  batch in 2 parts of up to 2\n",
             "\n  products " + std::to_string(static_cast<Index>(choice.cost().flops())) + " FLOP",
             "; kernels move " + std::to_string(choice.cost().moved().total()) +
                 " bytes, tables and sums about " +
                 std::to_string(static_cast<Index>(choice.cost().bytes_beside())) + "\n"));
  CHECK(!says(text, "not summaries"));
  CHECK(!says(text, "cuBLAS"));
  CHECK(says(mhla::explain<BFloat16>(attention, shape, device(CudaPath::summaries)),
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
                                                StateUse::given) == small + (1 << 21));
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
  const mhla::Workspace workspace(small + (1 << 21));
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
  const auto check = [&](const auto& attention) {
    const mhla::Problem problem = checked_problem(attention, shape);
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const AllocationCounter counter;
      const PathChoice choice = mhla::cuda::choose_path<BFloat16>(
          attention, problem, direction, CudaPath::automatic, StateUse::none, every);
      const long allocations = counter.allocations();
      CHECK(choice.can(CudaPath::quadratic));
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
