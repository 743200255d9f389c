// SPDX-License-Identifier: MIT
// The own block of causal queries, tile by tile, against the sum over all pairs of tokens j <= t,
// and its adjoint by <J x, y> == <x, J^T y>. Exactly: all is made of small integers.
#include <limits>
#include <mhla/cpu/intra_block.hpp>
#include <vector>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Span;
using mhla::cpu::Orientation;
using mhla::cpu::Panel;
using panels::IntegerPanel;

constexpr Index tokens = 23;
constexpr Index feature_dim = 5;
constexpr Index value_dim = 3;
constexpr double own_weight = 3;

// Where the tiles of a block begin, and its end.
using Cuts = std::vector<Index>;
const std::vector<Cuts> all_cuts = {
    {0, 23}, {0, 1, 23}, {0, 8, 16, 23}, {0, 22, 23}, {0, 7, 8, 9, 23}};

IntegerPanel scaled(const IntegerPanel& a, Index rows, Index cols, double factor) {
  IntegerPanel result = a;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) result(r, c) *= factor;
  return result;
}

// The tokens of a block: their features rotated and not, and values; and what earlier blocks left.
struct Block {
  IntegerPanel queries{tokens, feature_dim, 1};
  IntegerPanel keys{tokens, feature_dim, 2};
  IntegerPanel plain_keys{tokens, feature_dim, 3};
  IntegerPanel values{tokens, value_dim, 4};
  IntegerPanel mixed_summary{feature_dim, value_dim, 5};
  IntegerPanel mixed_key_sum{1, feature_dim, 6};
};

// The numerators, one tile after the other with a running summary.
IntegerPanel numerators(const Block& block, const Cuts& cuts) {
  const IntegerPanel values = scaled(block.values, tokens, value_dim, own_weight);
  IntegerPanel running = block.mixed_summary;
  IntegerPanel transposed(value_dim, feature_dim);
  for (Index d = 0; d < feature_dim; ++d)
    for (Index e = 0; e < value_dim; ++e) transposed(e, d) = running(d, e);
  IntegerPanel result(tokens, value_dim);
  std::vector<double> scores(static_cast<std::size_t>(tokens * tokens));
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Index first = cuts[i];
    const Index rows = cuts[i + 1] - first;
    const auto of = [&](const IntegerPanel& x) { return x.panel().row_range(first, rows); };
    const Panel<double> out = result.panel().row_range(first, rows);
    mhla::cpu::multiply(out, of(block.queries), running.panel());
    mhla::cpu::read_out_own_tile<double>(of(block.queries), of(block.keys), of(values),
                                         mhla::cpu::panel(scores.data(), rows, rows), out);
    mhla::cpu::absorb_own_tile<double>(of(block.keys), of(values), Orientation::straight,
                                       running.panel());
    mhla::cpu::absorb_own_tile<double>(of(block.keys), of(values), Orientation::transposed,
                                       transposed.panel());
    for (Index d = 0; d < feature_dim; ++d)
      for (Index e = 0; e < value_dim; ++e) CHECK(transposed(e, d) == running(d, e));
  }
  return result;
}

}  // namespace

TEST_CASE("intra block: a query reads its own block up to itself, however it is tiled", "[cpu]") {
  const Block block;
  IntegerPanel expected(tokens, value_dim);
  for (Index t = 0; t < tokens; ++t)
    for (Index e = 0; e < value_dim; ++e) {
      for (Index d = 0; d < feature_dim; ++d)
        expected(t, e) += block.queries(t, d) * block.mixed_summary(d, e);
      for (Index j = 0; j <= t; ++j) {
        double score = 0;
        for (Index d = 0; d < feature_dim; ++d) score += block.queries(t, d) * block.keys(j, d);
        expected(t, e) += own_weight * score * block.values(j, e);
      }
    }
  for (const Cuts& cuts : all_cuts) CHECK(numerators(block, cuts) == expected);
}

TEST_CASE("intra block: every token has a key sum of its own", "[cpu]") {
  const Block block;
  for (const Cuts& cuts : all_cuts) {
    IntegerPanel running = block.mixed_key_sum;
    IntegerPanel sums(tokens, feature_dim, 7);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      mhla::cpu::running_key_sums<double>(
          block.plain_keys.panel().row_range(cuts[i], cuts[i + 1] - cuts[i]), own_weight,
          {running.row()}, sums.panel().row_range(cuts[i], cuts[i + 1] - cuts[i]));
    IntegerPanel expected = block.mixed_key_sum;
    for (Index t = 0; t < tokens; ++t)
      for (Index d = 0; d < feature_dim; ++d) {
        expected(0, d) += own_weight * block.plain_keys(t, d);
        CHECK(sums(t, d) == expected(0, d));
      }
    CHECK(running == expected);
  }
}

TEST_CASE("intra block: adjoints in the queries, keys and values of a tile", "[cpu]") {
  // num = m tril(Q K^T) V is linear in each of Q, K and V.
  const Block block;
  const IntegerPanel grad(tokens, value_dim, 8);
  const IntegerPanel values = scaled(block.values, tokens, value_dim, own_weight);
  std::vector<double> memory(static_cast<std::size_t>(tokens * tokens));
  const Panel<double> scores = mhla::cpu::panel(memory.data(), tokens, tokens);
  const auto read_out = [&](const IntegerPanel& q, const IntegerPanel& k, const IntegerPanel& v) {
    IntegerPanel out(tokens, value_dim);
    mhla::cpu::read_out_own_tile<double>(q.panel(), k.panel(), v.panel(), scores, out.panel());
    return out;
  };
  const IntegerPanel change_q(tokens, feature_dim, 9);
  const IntegerPanel change_v(tokens, value_dim, 10);

  IntegerPanel grad_queries(tokens, feature_dim);
  mhla::cpu::read_out_own_tile_query_gradient<double>(grad.panel(), block.keys.panel(),
                                                      values.panel(), scores, grad_queries.panel());
  CHECK(inner_product(read_out(change_q, block.keys, values), grad) ==
        inner_product(change_q, grad_queries));

  // Those of keys and values are divided by m.
  IntegerPanel grad_keys(tokens, feature_dim);
  mhla::cpu::read_out_own_tile_key_gradient<double>(
      grad.panel(), block.queries.panel(), block.values.panel(), scores, grad_keys.panel());
  CHECK(inner_product(read_out(block.queries, change_q, values), grad) ==
        own_weight * inner_product(change_q, grad_keys));
  IntegerPanel grad_values(tokens, value_dim);
  mhla::cpu::read_out_own_tile_value_gradient<double>(
      grad.panel(), block.queries.panel(), block.keys.panel(), scores, grad_values.panel());
  CHECK(inner_product(read_out(block.queries, block.keys, change_v), grad) ==
        inner_product(change_v, grad_values));

  // Added to what is there.
  IntegerPanel sum = block.keys;
  mhla::cpu::read_out_own_tile_key_gradient<double>(grad.panel(), block.queries.panel(),
                                                    block.values.panel(), scores, sum.panel());
  for (Index t = 0; t < tokens; ++t)
    for (Index d = 0; d < feature_dim; ++d) CHECK(sum(t, d) == block.keys(t, d) + grad_keys(t, d));
}

TEST_CASE("intra block: what later queries send back is summed from the end", "[cpu]") {
  const IntegerPanel sent(tokens, feature_dim, 1);
  for (const Cuts& cuts : all_cuts) {
    IntegerPanel rows = sent;
    IntegerPanel running(1, feature_dim, 2);
    IntegerPanel expected = running;
    for (std::size_t i = cuts.size() - 1; i > 0; --i)
      mhla::cpu::accumulate_backwards<double>(
          rows.panel().row_range(cuts[i - 1], cuts[i] - cuts[i - 1]), running.row());
    for (Index t = tokens - 1; t >= 0; --t)
      for (Index d = 0; d < feature_dim; ++d) {
        expected(0, d) += sent(t, d);
        CHECK(rows(t, d) == expected(0, d));
      }
    CHECK(running == expected);
  }
}
