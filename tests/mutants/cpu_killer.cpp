// SPDX-License-Identifier: MIT
// The bidirectional CPU backend against the oracle: forward and backward pass of every normalizer,
// on shapes whose extents are pairwise distinct.
#include <type_traits>

#include "cpu_call.hpp"

namespace {

using killer::Call;
using killer::check;
using mhla::Index;
using mhla::Shape;

template <class Normalizer>
using Image =
    mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, Normalizer, mhla::AxialRotary>;
template <class Normalizer>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;

/// Blocks of one size, which every normalizer takes.
template <class Normalizer>
void check_even(const std::string& name, const Normalizer& normalizer) {
  const Image<Normalizer> image{
      .blocks = {.grid = {8, 18}, .block = {2, 2}}, .normalizer = normalizer, .scale = 0.7};
  // 36 blocks: two groups of rows of the mixing matrix.
  check(name + ", image, grouped heads, a matrix per head", image,
        Shape{2, 6, 3, 144, 144, 4, 5, 6, 36, 36});

  Sequence<Normalizer> sequence{.blocks = {.block = 133}, .normalizer = normalizer};
  check(name + ", two tiles per block, a matrix larger than needed", sequence,
        Shape{1, 1, 1, 266, 266, 4, 3, 1, 4, 3});
  sequence.blocks.block = 2;
  check(name + ", more sequences than partial sums", sequence,
        Shape{67, 2, 1, 6, 6, 3, 4, 1, 3, 3});
  check(name + ", one head more than there are slots", sequence,
        Shape{1, 8, 8, 6, 6, 3, 4, 8, 3, 3});
  check(name + ", value columns for every slot", sequence,
        Shape{1, 1, 1, 12, 12, 16, 7 * 32, 1, 6, 6});
  if constexpr (!std::is_same_v<Normalizer, mhla::Unnormalized>) {
    sequence.blocks.block = 4;
    sequence.feature_map.epsilon = 0;
    sequence.normalizer.epsilon = 0;
    check(name + ", zero denominators", sequence, Shape{1, 1, 1, 16, 16, 6, 5, 1, 4, 4},
          [](Call& call) {
            for (Index b = 0; b < 4; ++b) call.mix(0, 1, b) = 0;
            for (Index d = 0; d < 6; ++d) call.q.view()(0, 0, 7, d) = -1;
          });
  }
}

/// Blocks of different sizes, and keys of another geometry than the queries.
template <class Normalizer>
void check_uneven(const std::string& name, const Normalizer& normalizer) {
  check(name + ", ragged image",
        Image<Normalizer>{
            .blocks = {.grid = {7, 5}, .block = {3, 2}}, .normalizer = normalizer, .scale = 0.5},
        Shape{2, 3, 3, 35, 35, 4, 3, 3, 9, 9});
  // Sums that the products cut: over many blocks, long rows of v, and summaries in one row.
  check(name + ", blocks of one token",
        Sequence<Normalizer>{.blocks = {.block = 1}, .normalizer = normalizer},
        Shape{1, 1, 1, 259, 259, 9, 8, 1, 259, 259});
  check(name + ", long rows",
        Sequence<Normalizer>{.blocks = {.block = 8}, .normalizer = normalizer},
        Shape{1, 1, 1, 17, 17, 7, 151, 1, 3, 3});
}

void check_cross_attention() {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional,
                                    mhla::MixedKeySum, mhla::AxialRotary>;
  check("ragged videos, cross-attention",
        Attention{.blocks = {.grid = {3, 4, 5}, .block = {1, 2, 2}},
                  .key_blocks = {.grid = {2, 5, 3}, .block = {1, 1, 2}}},
        Shape{1, 2, 2, 60, 30, 12, 11, 1, 18, 20});
}

void check_half_split_rotary() {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional,
                                    mhla::Unnormalized, mhla::HalfSplitRotary>;
  const Attention attention{.blocks = {.block = 5}, .scale = 0.5};
  check("rotated sequence", attention, Shape{1, 1, 1, 17, 17, 6, 5, 1, 4, 4});
  check("rotated sequence of wide rows", attention, Shape{1, 1, 1, 17, 17, 38, 5, 1, 4, 4});
}

void check_errors() {
  using mhla::ShapeError, mhla::WorkspaceError;
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
  const Attention attention{.blocks = {.grid = {2, 3}, .block = {1, 3}}};
  const mhla::SerialExecutor serial;
  const Shape shape{1, 2, 1, 6, 6, 3, 3, 1, 2, 2};
  Call call(shape);
  const Index bytes = mhla::forward_workspace_size<double>(attention, shape, serial);
  const mhla::Workspace workspace(bytes);
  const auto run = [&](const Attention& variant, const auto& k, const auto& y,
                       mhla::WorkspaceView memory) {
    mhla::forward_into(variant, serial, call.q.view(), k, call.v.view(), call.mix.view(), y,
                       memory);
  };
  run(attention, call.k.view(), call.y.view(), workspace);
  killer::expect_throw<WorkspaceError>(
      [&] {
        run(attention, call.k.view(), call.y.view(), {workspace.data(), bytes - 1});
      },
      "a workspace that is a byte short");
  killer::expect_throw<ShapeError>([&] { run(attention, call.k.view(), call.q.view(), workspace); },
                                   "a result that overlaps an operand");
  auto narrow = call.k.view();
  narrow.extent[3] = 2;
  killer::expect_throw<ShapeError>([&] { run(attention, narrow, call.y.view(), workspace); },
                                   "keys of another dim");
  const Attention other_grid{.blocks = {.grid = {2, 2}, .block = {1, 2}}};
  killer::expect_throw<ShapeError>(
      [&] { run(other_grid, call.k.view(), call.y.view(), workspace); }, "a grid of another size");
}

}  // namespace

int main() {
  killer::run([] {
    check_even("MixedKeySum", mhla::MixedKeySum{});
    check_even("MixedKeySum, large epsilon", mhla::MixedKeySum{.epsilon = 0.25});
    check_even("MixedProduct", mhla::MixedProduct{});
    check_even("MixedProduct, large epsilon", mhla::MixedProduct{.epsilon = 0.25});
    check_even("Unnormalized", mhla::Unnormalized{});
    check_uneven("MixedKeySum", mhla::MixedKeySum{});
    check_uneven("Unnormalized", mhla::Unnormalized{});
    check_cross_attention();
    check_half_split_rotary();
    check_errors();
  });
}
