// SPDX-License-Identifier: MIT
// The MHLA oracle's numbers: a case small enough for paper and pencil, and the block form over the
// geometries, causalities, normalizers and rotations.
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "tests/reference/block_form.hpp"
#include "tests/reference/oracle_call.hpp"

using namespace mhla;

namespace {

// elu(x) + 1
double feature(double x) { return x > 0 ? x + 1 : std::exp(x); }

block_form::Rows rows_of(const HostTensor<double, 4>& tensor, Index batch, Index head,
                         bool features) {
  block_form::Rows rows;
  for (Index t = 0; t < tensor.extent(2); ++t) {
    rows.emplace_back();
    for (Index c = 0; c < tensor.extent(3); ++c) {
      const double x = tensor(batch, head, t, c);
      rows.back().push_back(features ? feature(x) : x);
    }
  }
  return rows;
}

template <class R>
constexpr block_form::Turn turn_of =
    std::is_same_v<R, NoRotation>        ? block_form::Turn::none
    : std::is_same_v<R, HalfSplitRotary> ? block_form::Turn::half_split
                                         : block_form::Turn::axial;
template <class C>
constexpr block_form::Visible visible_of =
    std::is_same_v<C, Bidirectional> ? block_form::Visible::every_block
    : std::is_same_v<C, Causal>      ? block_form::Visible::earlier_blocks_and_own_up_to_token
                                     : block_form::Visible::earlier_and_own_block;
template <class N>
constexpr block_form::Denominator denominator_of =
    std::is_same_v<N, MixedKeySum>    ? block_form::Denominator::mixed_key_sum
    : std::is_same_v<N, MixedProduct> ? block_form::Denominator::mixed_product
                                      : block_form::Denominator::one;

// Demands that the oracle gives what the block form gives, for heads in groups of two and a mix per
// head that is larger than the layout by `spare` rows and columns, full above the diagonal too.
template <class C, class N, class R, class Geometry>
void check_block_form(const Attention<EluPlusOne, Geometry, C, N, R>& attention,
                      const block_form::Side& query_side, const block_form::Side& key_side,
                      Index spare = 0) {
  const auto query_blocks = static_cast<Index>(query_side.blocks().size());
  const auto key_blocks = static_cast<Index>(key_side.blocks().size());
  const Shape shape{.batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .query_tokens = static_cast<Index>(query_side.tokens()),
                    .key_tokens = static_cast<Index>(key_side.tokens()),
                    .key_dim = 10,  // five pairs: no axis has as many as another in 2-D
                    .value_dim = 3,
                    .mix_heads = 4,
                    .mix_query_blocks = query_blocks + spare,
                    .mix_key_blocks = key_blocks + spare};
  const Operands<double> operands(shape, 31, mhla::testing::Normal{});
  const auto y = forward(attention, operands);
  auto expected = HostTensor<double, 4>::like(y.view());
  for (Index n = 0; n < shape.batch; ++n)
    for (Index h = 0; h < shape.heads; ++h) {
      block_form::Call call{Geometry::rank,
                            query_side,
                            key_side,
                            rows_of(operands.q, n, h, true),
                            rows_of(operands.k, n, h / 2, true),
                            rows_of(operands.v, n, h / 2, false),
                            {},
                            visible_of<C>,
                            denominator_of<N>,
                            0,
                            turn_of<R>,
                            0,
                            attention.scale};
      if constexpr (!std::is_same_v<N, Unnormalized>) call.epsilon = attention.normalizer.epsilon;
      if constexpr (!std::is_same_v<R, NoRotation>) call.theta = attention.rotation.theta;
      for (Index i = 0; i < query_blocks; ++i) {
        call.mix.emplace_back();
        for (Index b = 0; b < key_blocks; ++b) call.mix.back().push_back(operands.mix(h, i, b));
      }
      const block_form::Rows rows = block_form::output(call);
      for (Index t = 0; t < shape.query_tokens; ++t)
        for (Index c = 0; c < shape.value_dim; ++c)
          expected(n, h, t, c) = rows[static_cast<std::size_t>(t)][static_cast<std::size_t>(c)];
    }
  check_close("y", y, expected, tolerance::oracle_rms<double>);
}

template <class Geometry, class C = Bidirectional, class N = MixedKeySum, class R = NoRotation>
using Elu = Attention<EluPlusOne, Geometry, C, N, R>;

}  // namespace

TEST_CASE("oracle: four tokens in two blocks, by hand", "[reference]") {
  // One feature, q = k = 1, 2, 3, 4 in blocks {1, 2} and {3, 4}; v = 1, 0, 0, 1; mix = [1 2; 0 5].
  // S = 1 * 1 + 2 * 0 = 1 and 3 * 0 + 4 * 1 = 4; z = 3 and 7. S~ = 1 + 2 * 4 = 9 and 5 * 4 = 20.
  Operands<double> operands({.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .query_tokens = 4,
                             .key_tokens = 4,
                             .key_dim = 1,
                             .value_dim = 1,
                             .mix_heads = 1,
                             .mix_query_blocks = 2,
                             .mix_key_blocks = 2},
                            1, mhla::testing::Normal{});
  operands.q.elements() = operands.k.elements() = {1, 2, 3, 4};
  operands.v.elements() = {1, 0, 0, 1};
  operands.mix.elements() = {1, 2, 0, 5};
  using Elements = std::vector<double>;
  const Blocks1D blocks{.block = 2};
  SECTION("unnormalized: q S~, and the scale multiplies it") {
    const Attention<Identity, Blocks1D, Bidirectional, Unnormalized> attention{.blocks = blocks};
    CHECK(forward(attention, operands).elements() == Elements{9, 18, 60, 80});
    auto scaled = attention;
    scaled.scale = 0.5;
    CHECK(forward(scaled, operands).elements() == Elements{4.5, 9, 30, 40});
  }
  SECTION("mixed key sum: z~ = 3 + 2 * 7 = 17 and 35") {
    const Attention<Identity, Blocks1D> attention{.blocks = blocks, .normalizer = {.epsilon = 1}};
    CHECK(forward(attention, operands).elements() ==
          Elements{9 / 18.0, 18 / 35.0, 60 / 106.0, 80 / 141.0});
    auto scaled = attention;  // the scale reaches the denominator, epsilon stays
    scaled.scale = 2;
    CHECK(forward(scaled, operands).elements() ==
          Elements{18 / 35.0, 36 / 69.0, 120 / 211.0, 160 / 281.0});
  }
  SECTION("mixed product: r = (1, 2) * 3 and (3, 4) * 7, mixed by offset") {
    const Attention<Identity, Blocks1D, Bidirectional, MixedProduct> attention{
        .blocks = blocks, .normalizer = {.epsilon = 1}};
    // den = 3 + 2 * 21 + 1, 6 + 2 * 28 + 1, 5 * 21 + 1, 5 * 28 + 1
    CHECK(forward(attention, operands).elements() ==
          Elements{9 / 46.0, 18 / 63.0, 60 / 106.0, 80 / 141.0});
  }
  SECTION("causal: the entry above the diagonal is ignored") {
    operands.mix.elements() = {1, 1000, 3, 5};
    // token by token: 1; 2 * 1; 3 * 3 * 1; 4 (3 * 1 + 5 * 4)
    const Attention<Identity, Blocks1D, Causal, Unnormalized> attention{.blocks = blocks};
    CHECK(forward(attention, operands).elements() == Elements{1, 2, 9, 92});
    // den: 1; 2 * 3; 3 (3 * 3 + 5 * 3); 4 (3 * 3 + 5 * 7), and 1 more
    const Attention<Identity, Blocks1D, Causal> normalized{.blocks = blocks,
                                                           .normalizer = {.epsilon = 1}};
    CHECK(forward(normalized, operands).elements() ==
          Elements{1 / 2.0, 2 / 7.0, 9 / 73.0, 92 / 177.0});
    const Attention<Identity, Blocks1D, BlockCausal, Unnormalized> by_block{.blocks = blocks};
    CHECK(forward(by_block, operands).elements() == Elements{1, 2, 69, 92});
  }
}

TEST_CASE("oracle: equals the block form on sequences", "[reference]") {
  const block_form::Side thirteen{{1, 1, 13}, {1, 1, 5}};
  const block_form::Side eight{{1, 1, 8}, {1, 1, 3}};
  const Blocks1D blocks{.block = 5};
  check_block_form(
      Elu<Blocks1D>{.blocks = blocks, .mixing = {.leading_corner = true}, .scale = 0.3}, thirteen,
      thirteen, 2);
  check_block_form(
      Elu<Blocks1D>{
          .blocks = blocks, .key_blocks = {.block = 3}, .mixing = {.leading_corner = true}},
      thirteen, eight, 1);
  check_block_form(Elu<Blocks1D, Bidirectional, Unnormalized, HalfSplitRotary>{.blocks = blocks},
                   thirteen, thirteen);
  check_block_form(
      Elu<Blocks1D, Bidirectional, MixedKeySum, AxialRotary>{
          .blocks = blocks, .key_blocks = {.block = 3}, .rotation = {.theta = 50}},
      thirteen, eight);
  const block_form::Side twelve{{1, 1, 12}, {1, 1, 3}};
  check_block_form(
      Elu<Blocks1D, Bidirectional, MixedProduct, HalfSplitRotary>{
          .blocks = {.block = 3},
          .normalizer = {.epsilon = 0.1},
          .mixing = {.leading_corner = true},
          .scale = 0.3},
      twelve, twelve, 1);
}

TEST_CASE("oracle: equals the block form on causal sequences", "[reference]") {
  const block_form::Side thirteen{{1, 1, 13}, {1, 1, 5}};
  const Blocks1D blocks{.block = 5};
  check_block_form(Elu<Blocks1D, Causal>{.blocks = blocks, .scale = 0.3}, thirteen, thirteen, 1);
  check_block_form(Elu<Blocks1D, Causal, Unnormalized, HalfSplitRotary>{.blocks = blocks}, thirteen,
                   thirteen);
  check_block_form(Elu<Blocks1D, BlockCausal, MixedKeySum, AxialRotary>{.blocks = blocks}, thirteen,
                   thirteen, 2);
  check_block_form(Elu<Blocks1D, BlockCausal, Unnormalized>{.blocks = blocks}, thirteen, thirteen);
}

TEST_CASE("oracle: equals the block form on images", "[reference]") {
  const block_form::Side ragged{{1, 5, 7}, {1, 3, 4}};
  const block_form::Side other{{1, 4, 3}, {1, 2, 2}};
  const block_form::Side even{{1, 4, 6}, {1, 2, 3}};
  const Blocks2D blocks{.grid = {5, 7}, .block = {3, 4}};
  check_block_form(Elu<Blocks2D>{.blocks = blocks}, ragged, ragged);
  check_block_form(
      Elu<Blocks2D, Bidirectional, MixedKeySum, AxialRotary>{
          .blocks = blocks, .key_blocks = {.grid = {4, 3}, .block = {2, 2}}, .scale = 2},
      ragged, other);
  check_block_form(
      Elu<Blocks2D, Bidirectional, MixedProduct, AxialRotary>{
          .blocks = {.grid = {4, 6}, .block = {2, 3}}},
      even, even);
}

TEST_CASE("oracle: equals the block form on video", "[reference]") {
  const block_form::Side ragged{{3, 4, 5}, {2, 3, 2}};
  const block_form::Side other{{2, 2, 3}, {1, 2, 2}};
  const block_form::Side even{{2, 4, 3}, {1, 2, 3}};
  const Blocks3D blocks{.grid = {3, 4, 5}, .block = {2, 3, 2}};
  check_block_form(Elu<Blocks3D, Bidirectional, Unnormalized, AxialRotary>{.blocks = blocks},
                   ragged, ragged);
  check_block_form(
      Elu<Blocks3D>{.blocks = blocks, .key_blocks = {.grid = {2, 2, 3}, .block = {1, 2, 2}}},
      ragged, other);
  check_block_form(
      Elu<Blocks3D, Bidirectional, MixedProduct, AxialRotary>{
          .blocks = {.grid = {2, 4, 3}, .block = {1, 2, 3}}},
      even, even);
}

TEST_CASE("oracle: rotation angles are exact at position 31,499", "[reference]") {
  // One key at position 0, one query at the far end: y = (R_t q) . k v.
  const Index tokens = 31500;
  HostTensor<float, 4> q(1, 1, tokens, 4);
  HostTensor<float, 4> k(1, 1, 1, 4);
  HostTensor<float, 4> v(1, 1, 1, 1);
  HostTensor<float, 4> y(1, 1, tokens, 1);
  HostTensor<float, 3> mix(1, 1, 1);
  q(0, 0, tokens - 1, 1) = 1;  // pair (1, 3), frequency 10000^(-1/2)
  k(0, 0, 0, 3) = 1;
  v(0, 0, 0, 0) = 1;
  mix(0, 0, 0) = 1;
  const Attention<Identity, Blocks1D, Bidirectional, Unnormalized, HalfSplitRotary> attention{
      .blocks = {.block = tokens}, .key_blocks = {.block = 1}};
  reference::mhla_forward(attention, q.view(), k.view(), v.view(), mix.view(), y.view());
  CHECK(y(0, 0, tokens - 1, 0) == static_cast<float>(std::sin(314.99)));
}
