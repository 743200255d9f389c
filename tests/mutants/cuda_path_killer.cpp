// SPDX-License-Identifier: MIT
// Which path runs a call on a CudaDevice: what is refused, what is chosen, and which fused pass,
// written here in place of the library's, gets the call.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/policy/batch_layout.hpp>
#include <vector>

#include "killer.hpp"

namespace path_killer {

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
using Fused = mhla::Padded<mhla::Attention<Cube, mhla::Blocks1D>>;

mhla::Index last_value_dim = 0;

}  // namespace path_killer

MHLA_NAMESPACE_BEGIN
namespace cuda::fused {

#define MHLA_KILLER_PASSES(Dims)                                                               \
  template <>                                                                                  \
  CallMemory memory_of<path_killer::Fused, Half, Dims>(CudaPath, const path_killer::Fused&,    \
                                                       const Problem&, Direction) {            \
    return {Dims::value_dim, 1};                                                               \
  }                                                                                            \
  template <>                                                                                  \
  void run_forward<path_killer::Fused, Half, Dims>(                                            \
      CudaPath, const CudaDevice&, const path_killer::Fused&, const Problem&,                  \
      const OperandViews<Half>&, const TensorView<Half, 4>& y, WorkspaceView, Span<float>) {   \
    path_killer::last_value_dim = Dims::value_dim;                                             \
    for (Index i = 0; i < y.size(); ++i) y.data[i].bits = 1;                                   \
  }                                                                                            \
  template <>                                                                                  \
  void run_backward<path_killer::Fused, Half, Dims>(                                           \
      CudaPath, const CudaDevice&, const path_killer::Fused&, const Problem&,                  \
      const OperandViews<Half>&, const TensorView<const Half, 4>&, const GradientViews<Half>&, \
      Update, WorkspaceView, Span<float>) {}
using Square = HeadDims<128, 128>;
using Wide = HeadDims<128, 256>;
MHLA_KILLER_PASSES(Square)
MHLA_KILLER_PASSES(Wide)

}  // namespace cuda::fused
MHLA_NAMESPACE_END

using Fused = path_killer::Fused;
MHLA_INSTANTIATE_CUDA(Fused, mhla::Half, mhla::HeadDims<128, 128>, mhla::HeadDims<128, 256>);

namespace {

using killer::expect;
using killer::expect_throw;
using mhla::CudaDevice;
using mhla::CudaPath;
using mhla::Index;
using mhla::Shape;
using mhla::StateUse;

constexpr Index tokens = 6;

void check_path() {
  cublasContext machine;
  const auto device = [&](CudaPath path) {
    return CudaDevice(nullptr, &machine, {}, mhla::FloatProducts::exact, path);
  };
  const std::uint8_t mask[tokens] = {1, 0, 1, 1, 1, 1};
  const mhla::TensorView<const std::uint8_t, 2> masks{mask, {1, tokens}, {tokens, 1}};
  const Fused attention({.blocks = {.block = 3}}, {masks, masks});
  const Shape shape{1, 1, 1, tokens, tokens, 128, 256, 1, 2, 2};
  const CudaDevice automatic = device(CudaPath::automatic);

  const auto bytes = [&](const Shape& s, CudaPath path, StateUse state = StateUse::none) {
    return mhla::forward_workspace_size<mhla::Half>(attention, s, device(path), state);
  };
  const Index on_cublas = bytes(shape, CudaPath::cublas);
  expect(bytes(shape, CudaPath::automatic) == 256, "workspace of the fused pass");
  expect(bytes(shape, CudaPath::cublas, StateUse::given) == on_cublas, "workspace with a state");
  expect_throw<mhla::ShapeError>([&] { bytes(shape, CudaPath::quadratic, StateUse::given); },
                                 "a state of pairs");
  Shape other = shape;
  other.key_dim = 64;
  expect(bytes(other, CudaPath::automatic) == bytes(other, CudaPath::cublas), "other dimensions");
  expect_throw<mhla::ShapeError>([&] { bytes(other, CudaPath::summaries); }, "a path that cannot");
  expect_throw<mhla::ShapeError>(
      [&] { mhla::forward_workspace_size<float>(attention, shape, device(CudaPath::quadratic)); },
      "float tensors");

  std::vector<mhla::Half> q(tokens * 128), v(tokens * 256), y(tokens * 256);
  std::vector<float> mix(4);
  const mhla::Workspace workspace(256);
  mhla::forward_into(attention, automatic, mhla::make_view(q.data(), 1, 1, tokens, 128),
                     mhla::make_view(q.data(), 1, 1, tokens, 128),
                     mhla::make_view(v.data(), 1, 1, tokens, 256),
                     mhla::make_view(mix.data(), 1, 2, 2),
                     mhla::make_view(y.data(), 1, 1, tokens, 256), workspace);
  expect(path_killer::last_value_dim == 256, "the pass of the call's dimensions");
  expect(y[0].bits == 1 && y[256].bits == 0 && y[512].bits == 1, "masked queries");

  Shape square = shape;
  square.value_dim = 128;
  expect(bytes(square, CudaPath::resident) == 128, "summaries on the chip");
  expect(bytes(square, CudaPath::persistent) == 128, "all in one launch");
  expect_throw<mhla::ShapeError>(
      [&] {
        mhla::backward_workspace_size<mhla::Half>(attention, square, device(CudaPath::resident));
      },
      "gradients on a path that has none");

  // A matrix for each of two heads that share their keys.
  const mhla::Attention<path_killer::Cube, mhla::Blocks1D> line{.blocks = {.block = 3}};
  const Shape shared{1, 2, 1, tokens, tokens, 128, 128, 2, 2, 2};
  expect(
      mhla::cuda::choose_path<mhla::Half>(
          line, checked_problem(line, shared), mhla::cuda::Direction::forward, CudaPath::automatic,
          StateUse::none, mhla::cuda::HeadDimsOf<mhla::HeadDims<128, 128>>::list())
              .refusal_of(CudaPath::persistent) == mhla::cuda::Refusal::persistent_matrices,
      "why not in one launch");

  // Long sequences by way of summaries, short ones over pairs, on the chip in between: if enough
  // heads fill it, and it has enough shared memory.
  const auto chosen = [&](Index length, Index batch = 64, Index kilobytes = 227) {
    mhla::cuda::NominalGpu gpu;
    gpu.shared_bytes = kilobytes * 1024;
    const mhla::Attention<path_killer::Cube, mhla::Blocks1D> of_length{
        .blocks = {.block = length / 16}};
    const Shape s{batch, 16, 16, length, length, 128, 128, 1, 16, 16};
    return mhla::cuda::choose_path<mhla::Half>(
               of_length, checked_problem(of_length, s), mhla::cuda::Direction::forward,
               CudaPath::automatic, StateUse::none,
               mhla::cuda::HeadDimsOf<mhla::HeadDims<128, 128>>::list(), mhla::FloatProducts::exact,
               gpu)
        .path;
  };
  expect(chosen(256) == CudaPath::quadratic, "a short sequence");
  expect(chosen(16384) == CudaPath::summaries, "a long sequence");
  expect(chosen(576) == CudaPath::resident, "a sequence in between");
  expect(chosen(576, 1) != CudaPath::resident, "few heads");
  expect(chosen(576, 64, 99) != CudaPath::resident, "little shared memory");
}

/// What the model says that kernels ask of memory, against numbers by hand.
void check_bytes() {
  // 4 heads on 2 kv heads, 150 tokens in blocks of 100, values in two slices of 128; tiles of 64 in
  // blocks, of 32 over pairs.
  const mhla::Attention<path_killer::Cube, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized> line{
      .blocks = {.block = 100}};
  const Shape shape{1, 4, 2, 150, 150, 128, 256, 1, 2, 2};
  const auto cost_of = [&](mhla::cuda::Direction direction) {
    return mhla::cuda::choose_path<mhla::Half>(
        line, checked_problem(line, shape), direction, CudaPath::automatic, StateUse::none,
        mhla::cuda::HeadDimsOf<mhla::HeadDims<128, 256>>::list());
  };
  const auto read = [](const mhla::cuda::PathCost& path, int kernel) {
    return path.kernel[kernel].moved.read;
  };
  const auto forward = cost_of(mhla::cuda::Direction::forward);
  // A place for every 8 columns and for every lane of a row, 16 bytes each.
  const Index entries = 200, present = 150, k = 128 * 2, v = 256 * 2;
  const auto features = [&](Index of_entries, Index tokens) {
    return of_entries * (16 + 16) * 16 + tokens * k;
  };
  const auto values = [&](Index of_entries, Index tokens) {
    return of_entries * 32 * 16 + tokens * v;
  };
  expect(
      read(forward.summaries, 1) == 2 * (2 * features(entries, present) + values(entries, present)),
      "bytes of summaries");
  expect(forward.summaries.kernel[1].moved.written == 2 * 2 * 128 * 256 * 2, "bytes of S");
  // The first tile of keys goes with both tiles of queries: 164 entries of 100 for each block, and
  // of the second block's 50 tokens all twice. Each of 3 pairs of tiles takes m_ii in every thread.
  const Index pairs = 2 * (2 * 64 + 36), tokens = 2 * 64 + 36 + 2 * 50;
  expect(read(forward.summaries, 3) ==
             4 * (2 * (features(entries, present) + features(pairs, tokens) + 2 * 3 * 256 * 12) +
                  values(pairs, tokens) + entries * 32 * 16 + 2 * 2 * 128 * 256 * 2),
         "bytes of the readout");
  // Over pairs queries see keys up to themselves: 7 tiles of 32 entries, the last of 8.
  const Index seen = 32 + 64 + 96 + 128 + 160 + 192 + 200;
  const Index of_seen = 32 + 64 + 96 + 128 + 150 + 150 + 150;
  expect(read(forward.quadratic, 1) ==
             4 * (features(entries, present) + entries * 16 + present * 8 + 7 * 4 * 4 +
                  features(seen, of_seen) + values(seen, of_seen) + seen * 16 + of_seen * 8 +
                  entries * 32 * 16),
         "bytes over pairs");
  const auto backward = cost_of(mhla::cuda::Direction::backward);
  // Half of a matrix, for each of two kv heads.
  expect(backward.quadratic.kernel[3].moved.written == 2 * 3 * 4, "bytes of dm over pairs");
  expect(backward.cost().bytes() == static_cast<double>(backward.cost().moved().total()),
         "bytes of a path");
}

}  // namespace

int main() {
  killer::run([] {
    check_path();
    check_bytes();
  });
}
