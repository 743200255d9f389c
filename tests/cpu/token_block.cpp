// SPDX-License-Identifier: MIT
// Tiles of tokens on their way into panels and back: gathered and scattered whatever the strides,
// through feature map, scale and rotation, and the adjoint of all three.
#include <cstddef>
#include <mhla/cpu/token_block.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>
#include <vector>

#include "tests/cpu/scattered_tensor.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using call::ScatteredTensor;
using namespace mhla;
using namespace mhla::cpu;
using namespace mhla::testing;

// Of a ragged grid [2, 5, 7] cut into boxes [2, 3, 4], the block in the last corner: rows 3 and 4,
// columns 4 to 6 of both frames.
const Grid grid{{2, 5, 7}, {2, 3, 4}};
constexpr Index tokens = 12;
constexpr Index token_of_row[tokens] = {25, 26, 27, 32, 33, 34, 60, 61, 62, 67, 68, 69};
constexpr Index coordinates[tokens][3] = {{0, 3, 4}, {0, 3, 5}, {0, 3, 6}, {0, 4, 4},
                                          {0, 4, 5}, {0, 4, 6}, {1, 3, 4}, {1, 3, 5},
                                          {1, 3, 6}, {1, 4, 4}, {1, 4, 5}, {1, 4, 6}};
// Of a tensor [2, 3, 70, dim], one head.
constexpr Index batch = 1;
constexpr Index head = 2;

struct Tables {
  Workspace workspace;
  BlockTable blocks;
  RotationTable<double> rotation;

  template <class Rotation>
  Tables(const Rotation& turning, Index feature_dim) {
    const auto build = [&](Arena arena) {
      blocks = mhla::cpu::uniform_block_table(arena, grid, 2);
      rotation = mhla::cpu::rotation_table<double>(arena, turning, 3, feature_dim, grid.grid_box(),
                                                   mhla::SerialExecutor{});
      return arena.used();
    };
    workspace = Workspace(build(Arena()));
    build(Arena(workspace));
  }
  const TokenTile& tile() const { return blocks.tiles[blocks.blocks[3].first_tile]; }
};

template <class T>
HostTensor<T, 4> random_tokens(Index dim, std::uint64_t seed) {
  return random_tensor<T>(AwayFromKink{}, seed, 2, 3, grid.num_tokens(), dim);
}

// Room for the rows of a tile.
struct Buffers {
  std::vector<double> input;
  std::vector<double> gradient;

  explicit Buffers(Index dim)
      : input(static_cast<std::size_t>(tokens * dim)), gradient(input.size()) {}
  mhla::cpu::RowBuffers<double> rows() {
    const auto size = static_cast<Index>(input.size());
    return {{input.data(), size}, {gradient.data(), size}};
  }
};

template <class T>
HostTensor<T, 4> values_of(ScatteredTensor<T, 4>& tensor) {
  return mhla::testing::converted<T>(tensor.view());
}

// Relu and Hedgehog stand for the maps that work element by element and row by row.
template <class Map>
HostTensor<double, 2> features_by_hand(const Map& map, double scale, const HostTensor<double, 4>& x,
                                       Index feature_dim) {
  HostTensor<double, 2> features(tokens, feature_dim);
  const Index dim = x.extent(3);
  for (Index r = 0; r < tokens; ++r) {
    const double* in = &x(batch, head, token_of_row[r], 0);
    if constexpr (mhla::ElementwiseFeatureMap<Map>) {
      for (Index c = 0; c < dim; ++c) features(r, c) = scale * map.value(in[c]);
    } else {
      map.value(Span<const double>{in, dim}, Span<double>{&features(r, 0), feature_dim});
      for (Index c = 0; c < feature_dim; ++c) features(r, c) *= scale;
    }
  }
  return features;
}

// Packs, against phi row by row and the rotation table's own rotate().
template <class Map, class Rotation>
void check_packing(const Map& map, const Rotation& rotation, Index dim, std::uint64_t seed) {
  constexpr double scale = 0.75;
  const Index feature_dim = mhla::feature_dim(map, dim);
  const Tables tables(rotation, feature_dim);
  const bool rotates = tables.rotation.rotates();
  const auto x = random_tokens<double>(dim, seed);
  ScatteredTensor<double, 4> scattered(x, seed);
  HostTensor<double, 2> features(tokens, feature_dim);
  HostTensor<double, 2> rotated(tokens, feature_dim);
  Buffers buffers(dim);
  // Seed 0: rows that can be read where they lie.
  const mhla::TensorView<const double, 4> view = seed == 0 ? x.view() : scattered.view();
  const TokenRows<const double> rows(view, batch, head);
  const auto features_panel = panel(features.view().data, tokens, feature_dim);
  mhla::cpu::pack_features(
      map, tables.rotation, scale, tables.blocks, tables.tile(), rows, features_panel,
      rotates ? panel(rotated.view().data, tokens, feature_dim) : features_panel, buffers.rows());

  auto expected = features_by_hand(map, scale, x, feature_dim);
  CHECK(mhla::testing::bitwise_equal(features.view(), expected.view()));
  if (!rotates) return;
  for (Index r = 0; r < tokens; ++r)
    tables.rotation.turn(panel(&expected(r, 0), 1, feature_dim), coordinates[r],
                         mhla::Turn::forward);
  CHECK(mhla::testing::bitwise_equal(rotated.view(), expected.view()));

  // Without a normalizer nobody asks for the features before the rotation: one panel is enough.
  mhla::cpu::pack_features(map, tables.rotation, scale, tables.blocks, tables.tile(), rows,
                           features_panel, features_panel, buffers.rows());
  CHECK(mhla::testing::bitwise_equal(features.view(), expected.view()));

  mhla::cpu::rotate_rows(tables.rotation, tables.blocks, tables.tile(), features_panel,
                         mhla::Turn::back);
  for (Index r = 0; r < tokens; ++r)
    tables.rotation.turn(panel(&expected(r, 0), 1, feature_dim), coordinates[r], mhla::Turn::back);
  CHECK(mhla::testing::bitwise_equal(features.view(), expected.view()));
}

// The gradients that the normalizer sends back: none, a row for every token, or one row times the
// weight of each token, or without any.
enum class Normalized { no, rows, weighted_row, one_row };

// The adjoint against differences of <grad_rotated, rotated> + <grad_unrotated, features>, the
// latter where there is a normalizer.
template <class Map, class Rotation>
void check_adjoint(const Map& map, const Rotation& rotation, Index dim, Normalized normalized) {
  constexpr double scale = 0.75;
  const Index feature_dim = mhla::feature_dim(map, dim);
  const Tables tables(rotation, feature_dim);
  const bool rotates = tables.rotation.rotates();
  auto x = random_tokens<double>(dim, 3);
  const auto grad_rotated = random_tensor<double>(Normal{}, 4, tokens, feature_dim);
  auto unrotated_rows = random_tensor<double>(Normal{}, 5, tokens, feature_dim);
  auto weights = random_tensor<double>(Normal{}, 6, tokens);
  Buffers buffers(dim);
  const TokenRows<const double> rows(x, batch, head);
  const auto grad_unrotated = [&](Index r, Index c) {
    if (normalized == Normalized::no) return 0.0;
    if (normalized == Normalized::rows) return unrotated_rows(r, c);
    return (normalized == Normalized::weighted_row ? weights(r) : 1.0) * unrotated_rows(0, c);
  };

  const auto loss = [&] {
    HostTensor<double, 2> features(tokens, feature_dim);
    HostTensor<double, 2> rotated(tokens, feature_dim);
    const auto features_panel = panel(features.view().data, tokens, feature_dim);
    mhla::cpu::pack_features(
        map, tables.rotation, scale, tables.blocks, tables.tile(), rows, features_panel,
        rotates ? panel(rotated.view().data, tokens, feature_dim) : features_panel, buffers.rows());
    const auto& seen = rotates ? rotated : features;
    double sum = 0;
    for (Index r = 0; r < tokens; ++r)
      for (Index c = 0; c < feature_dim; ++c)
        sum += grad_rotated(r, c) * seen(r, c) + grad_unrotated(r, c) * features(r, c);
    return sum;
  };

  const auto unpack = [&](const mhla::TensorView<double, 4>& destination, Update update) {
    auto used_up = grad_rotated;
    mhla::cpu::FeatureGradients<double> gradients{panel(used_up.view().data, tokens, feature_dim)};
    const Span<double> one_row{unrotated_rows.view().data, feature_dim};
    if (normalized == Normalized::rows) {
      gradients.unrotated = {one_row.data, feature_dim};
    } else if (normalized != Normalized::no) {
      gradients.unrotated = mhla::cpu::every_row(one_row);
    }
    if (normalized == Normalized::weighted_row) gradients.weights = {weights.view().data, tokens};
    mhla::cpu::unpack_feature_gradient(map, tables.rotation, scale, tables.blocks, tables.tile(),
                                       rows, gradients, TokenRows<double>(destination, batch, head),
                                       update, buffers.rows());
  };

  auto grad = random_tokens<double>(dim, 7);  // tokens of other blocks and heads must keep it
  const auto before = grad;
  ScatteredTensor<double, 4> scattered(grad, 8);
  unpack(scattered, Update::overwrite);
  CHECK(scattered.guards_intact());
  grad = values_of(scattered);
  auto in_place = before;  // where rows can be written as they are
  unpack(in_place, Update::overwrite);
  CHECK(mhla::testing::bitwise_equal(in_place.view(), grad.view()));

  // Added to what is there, the same gradient: old + new, exactly.
  ScatteredTensor<double, 4> sum(before, 9);
  unpack(sum, Update::accumulate);
  in_place = before;
  unpack(in_place, Update::accumulate);
  auto expected_sum = before;
  HostTensor<double, 4> gradient_alone(2, 3, grid.num_tokens(), dim);
  for (const Index token : token_of_row)
    for (Index c = 0; c < dim; ++c) {
      gradient_alone(batch, head, token, c) = grad(batch, head, token, c);
      expected_sum(batch, head, token, c) += grad(batch, head, token, c);
    }
  CHECK(mhla::testing::bitwise_equal(sum.view(), expected_sum.view()));
  CHECK(mhla::testing::bitwise_equal(in_place.view(), expected_sum.view()));

  auto others = before;
  for (const Index token : token_of_row)
    for (Index c = 0; c < dim; ++c) others(batch, head, token, c) = grad(batch, head, token, c);
  CHECK(mhla::testing::bitwise_equal(grad.view(), others.view()));

  const auto check =
      mhla::testing::check_gradient(loss, 10, 3, mhla::testing::differentiate(x, gradient_alone));
  INFO(check.report());
  CHECK(check.error <= ::tolerance::gradient_check);
}

}  // namespace

TEMPLATE_TEST_CASE("token block: gather packs the tokens of a block, whatever the strides", "[cpu]",
                   float, mhla::BFloat16, mhla::Half) {
  using T = TestType;
  const Tables tables(NoRotation{}, 1);
  for (const Index dim : {1, 2, 3, 4, 5, 7, 8, 9, 17}) {
    const auto x = random_tokens<T>(dim, 1);
    for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
      ScatteredTensor<T, 4> scattered(x, seed);
      HostTensor<float, 2> packed(tokens, dim);
      mhla::cpu::gather<T, float>(tables.blocks, tables.tile(),
                                  TokenRows<const T>(scattered, batch, head), {},
                                  panel(packed.view().data, tokens, dim));
      for (Index r = 0; r < tokens; ++r)
        for (Index c = 0; c < dim; ++c)
          CHECK(packed(r, c) == mhla::load(x(batch, head, token_of_row[r], c)));
    }
  }
}

TEMPLATE_TEST_CASE("token block: scatter writes or adds to the tokens of a block and no others",
                   "[cpu]", float, mhla::BFloat16, mhla::Half) {
  using T = TestType;
  const Tables tables(NoRotation{}, 1);
  const auto update = GENERATE(Update::overwrite, Update::accumulate);
  for (const Index dim : {1, 3, 8, 17}) {
    const auto packed = random_tensor<float>(Normal{}, 1, tokens, dim);
    const auto before = random_tokens<T>(dim, 2);
    // Powers of 2, so that only the sum rounds.
    HostTensor<float, 1> weights(tokens);
    for (Index r = 0; r < tokens; ++r) weights(r) = r % 2 == 0 ? 0.5f : -4.0f;
    auto expected = before;
    auto expected_weighted = before;
    for (Index r = 0; r < tokens; ++r)
      for (Index c = 0; c < dim; ++c) {
        T& element = expected(batch, head, token_of_row[r], c);
        const float old = update == Update::accumulate ? mhla::load(element) : 0.0f;
        mhla::store(element, packed(r, c) + old);
        mhla::store(expected_weighted(batch, head, token_of_row[r], c),
                    weights(r) * packed(r, c) + old);
      }
    for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
      ScatteredTensor<T, 4> scattered(before, seed);
      mhla::cpu::scatter<T, float>(tables.blocks, tables.tile(),
                                   panel(packed.view().data, tokens, dim), {},
                                   TokenRows<T>(scattered, batch, head), update);
      CHECK(scattered.guards_intact());
      CHECK(mhla::testing::bitwise_equal(scattered.view(), expected.view()));
      ScatteredTensor<T, 4> scattered_too(before, seed);
      mhla::cpu::scatter<T, float>(
          tables.blocks, tables.tile(), panel(packed.view().data, tokens, dim),
          {weights.view().data, tokens}, TokenRows<T>(scattered_too, batch, head), update);
      CHECK(scattered_too.guards_intact());
      CHECK(mhla::testing::bitwise_equal(scattered_too.view(), expected_weighted.view()));
    }
  }
}

TEMPLATE_TEST_CASE("token block: rows are read where they lie, or gathered", "[cpu]", float,
                   mhla::BFloat16) {
  using T = TestType;
  const Tables tables(NoRotation{}, 1);
  constexpr Index dim = 5;
  const auto x = random_tokens<T>(dim, 1);
  std::vector<float> weights;
  for (Index r = 0; r < tokens; ++r) weights.push_back(static_cast<float>(r - 3));
  std::vector<float> buffer(static_cast<std::size_t>(tokens * dim));
  for (const std::uint64_t seed : {0u, 1u, 2u, 3u, 4u}) {
    ScatteredTensor<T, 4> scattered(x, seed);
    const mhla::TensorView<const T, 4> view = seed == 0 ? x.view() : scattered.view();
    const TokenRows<const T> rows(view, batch, head);
    CHECK((seed > 0 || rows.stride == 1));
    CHECK(mhla::cpu::is_in_place<float>(rows) == (rows.stride == 1));
    // Products read floats only.
    const bool in_place = std::is_same_v<T, float> && rows.stride == 1;
    CHECK(mhla::cpu::is_in_place_of_products<float>(rows) == in_place);
    const mhla::cpu::Rows<const float> read = mhla::cpu::readable_rows<T, float>(
        tables.blocks, tables.tile(), rows, {buffer.data(), tokens * dim});
    const void* const data = in_place ? static_cast<const void*>(rows.data) : buffer.data();
    CHECK(read.data == data);
    std::vector<float> weighted(buffer.size());
    mhla::cpu::gather<T, float>(tables.blocks, tables.tile(), rows, {weights.data(), tokens},
                                panel(weighted.data(), tokens, dim));
    for (Index r = 0; r < tokens; ++r)
      for (Index c = 0; c < dim; ++c) {
        const float element = mhla::load(x(batch, head, token_of_row[r], c));
        const auto at = static_cast<std::size_t>(r * dim + c);
        CHECK(read[r][c] == element);
        CHECK(weighted[at] == weights[static_cast<std::size_t>(r)] * element);
      }
  }
}

TEST_CASE("token block: features are s phi(x), rotated ones s R phi(x)", "[cpu]") {
  for (const Index dim : {2, 6, 8, 14})
    for (const std::uint64_t seed : {0u, 1u, 2u, 3u}) {
      check_packing(mhla::Relu{.epsilon = 0.125}, AxialRotary{.theta = 10}, dim, seed);
      check_packing(mhla::Hedgehog{}, AxialRotary{.theta = 10}, dim, seed);
    }
  // Where features are whole vectors, pairs of an axis are turned in whole vectors too.
  for (const Index dim : {16, 32, 48}) {
    check_packing(mhla::Relu{.epsilon = 0.125}, AxialRotary{.theta = 10}, dim, 0);
    check_packing(mhla::Relu{.epsilon = 0.125}, AxialRotary{.theta = 10}, dim, 1);
  }
  for (const Index dim : {1, 3, 9}) {
    check_packing(mhla::Relu{.epsilon = 0.125}, NoRotation{}, dim, 0);
    check_packing(mhla::Relu{.epsilon = 0.125}, NoRotation{}, dim, 1);
    check_packing(mhla::Hedgehog{}, NoRotation{}, dim, 1);
  }
}

TEST_CASE("token block: the adjoint carries both gradients through rotation, scale and phi",
          "[cpu]") {
  const auto normalized =
      GENERATE(Normalized::no, Normalized::rows, Normalized::weighted_row, Normalized::one_row);
  CAPTURE(static_cast<int>(normalized));
  check_adjoint(mhla::EluPlusOne{}, AxialRotary{.theta = 10}, 6, normalized);
  check_adjoint(mhla::Relu{}, NoRotation{}, 5, normalized);
  check_adjoint(mhla::Hedgehog{}, AxialRotary{.theta = 10}, 5, normalized);
  check_adjoint(mhla::Hedgehog{}, NoRotation{}, 3, normalized);
}

TEST_CASE("token block: nothing is counted from the address of an empty tensor", "[cpu]") {
  const mhla::TensorView<const float, 4> without_tokens{nullptr, {2, 3, 0, 5}, {100, 30, 10, 2}};
  const mhla::TensorView<const float, 4> without_columns{nullptr, {2, 3, 4, 0}, {100, 30, 10, 2}};
  for (const auto& tensor : {without_tokens, without_columns}) {
    const TokenRows<const float> rows(tensor, batch, head);
    CHECK(rows.data == nullptr);
    CHECK(rows.token_stride == 0);
  }
}
