// SPDX-License-Identifier: MIT
// Law 5: a block's summary is a sum over its tokens. Blocks may be summarized in any pieces, and
// cut into smaller ones that share a row or a column of mix, without a change.
#include <cmath>
#include <cstddef>
#include <limits>
#include <mhla/cpu/readout.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <utility>
#include <vector>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;
using mhla::Into;
using mhla::cpu::Panel;
using mhla::cpu::panel;

// ---- The stage ---------------------------------------------------------------------------------

/// S and z of one block, in one row: [feature_dim * value_dim], then [feature_dim].
template <class T>
using Summary = HostTensor<T, 1>;

/// The tokens of one block: phi(k), the same rotated, and v.
template <class T>
struct BlockTokens {
  Index tokens = 29;
  Index feature_dim = 7;
  Index value_dim = 5;
  HostTensor<T, 2> features = mhla::testing::random_tensor<T>(mhla::testing::Normal{}, 1, 29, 7);
  HostTensor<T, 2> rotated = mhla::testing::random_tensor<T>(mhla::testing::Normal{}, 2, 29, 7);
  HostTensor<T, 2> values = mhla::testing::random_tensor<T>(mhla::testing::Normal{}, 3, 29, 5);

  /// Adds tokens [begin, end) to a summary, or writes them to it.
  void summarize(Index begin, Index end, Into into, Summary<T>& summary) const {
    const auto rows = [&](const HostTensor<T, 2>& x) {
      return panel(x.elements().data() + begin * x.extent(1), end - begin, x.extent(1));
    };
    T* data = summary.elements().data();
    mhla::cpu::summarize<T>(rows(features), rows(rotated), rows(values).placed(),
                            mhla::cpu::Orientation::not_transposed,
                            panel(data, feature_dim, value_dim),
                            {Span<T>{data + feature_dim * value_dim, feature_dim}}, into, nullptr);
  }
  Summary<T> empty() const { return Summary<T>(feature_dim * (value_dim + 1)); }

  /// Of consecutive tiles that end at `cuts`, in the order given.
  Summary<T> in_pieces(const std::vector<std::pair<Index, Index>>& tiles) const {
    Summary<T> summary = empty();
    for (T& x : summary.elements()) x = std::numeric_limits<T>::quiet_NaN();  // to be overwritten
    Into into = Into::overwrite;
    for (const auto& [begin, end] : tiles) {
      summarize(begin, end, into, summary);
      into = Into::add;
    }
    return summary;
  }
  /// The sum of |terms|, element by element.
  HostTensor<double, 1> magnitude() const {
    HostTensor<double, 1> sum(feature_dim * (value_dim + 1));
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < feature_dim; ++c) {
        for (Index e = 0; e < value_dim; ++e)
          sum(c * value_dim + e) += std::abs(static_cast<double>(rotated(t, c) * values(t, e)));
        sum(feature_dim * value_dim + c) += std::abs(static_cast<double>(features(t, c)));
      }
    return sum;
  }
};

template <class T>
void check_pieces() {
  const BlockTokens<T> block;
  const Index n = block.tokens;
  const Summary<T> whole = block.in_pieces({{0, n}});
  const HostTensor<double, 1> magnitude = block.magnitude();
  for (Index cut = 0; cut <= n; ++cut) {
    INFO("cut at " << cut);
    require_near("in order", block.in_pieces({{0, cut}, {cut, n}}), whole, magnitude, 2);
    require_near("turned round", block.in_pieces({{cut, n}, {0, cut}}), whole, magnitude, 2);
    for (Index second = cut; second <= n; second += 5)
      require_near("three pieces", block.in_pieces({{cut, second}, {second, n}, {0, cut}}), whole,
                   magnitude, 2);
  }
}

// ---- The whole ---------------------------------------------------------------------------------

/// The same grid in blocks that are smaller on one axis; nothing may be cut across: every new block
/// lies inside an old one.
Grid refined(const Grid& grid, Draw& draw) {
  Grid fine = grid;
  Index axis = draw.between(0, 2);
  while (grid.block[axis] == 1) axis = (axis + 1) % 3;
  Index size = draw.between(1, grid.block[axis] - 1);
  while (grid.block[axis] % size != 0) --size;
  fine.block[axis] = size;
  return fine;
}

/// The old block that each new block lies in.
std::vector<Index> parents(const Grid& fine, const Grid& coarse) {
  std::vector<Index> parent(static_cast<std::size_t>(fine.num_blocks()));
  for (Index t = 0; t < fine.num_tokens(); ++t)
    parent[static_cast<std::size_t>(fine.block_of(t))] = coarse.block_of(t);
  return parent;
}

bool has_blocks_of_many(const Grid& grid) {
  return grid.block[0] * grid.block[1] * grid.block[2] > 1;
}

}  // namespace

TEST_CASE("law 5: a block's summary does not depend on how, and in what order, it is cut",
          "[laws][summary]") {
  check_pieces<float>();
  check_pieces<double>();
  check_pieces<long double>();
}

TEST_CASE("law 5: summaries add up like numbers", "[laws][summary]") {
  const BlockTokens<double> block;
  const Index n = block.tokens;
  const auto sum = [](Summary<double> a, const Summary<double>& b) {
    for (std::size_t i = 0; i < a.elements().size(); ++i) a.elements()[i] += b.elements()[i];
    return a;
  };
  const HostTensor<double, 1> magnitude = block.magnitude();
  const Summary<double> whole = block.in_pieces({{0, n}});
  const auto a = block.in_pieces({{0, 8}});
  const auto b = block.in_pieces({{8, 11}});
  const auto c = block.in_pieces({{11, n}});
  require_near("(a + b) + c", sum(sum(a, b), c), whole, magnitude, 2);
  require_near("a + (b + c)", sum(a, sum(b, c)), whole, magnitude, 2);
  require_near("c + (b + a)", sum(c, sum(b, a)), whole, magnitude, 2);
  REQUIRE(sum(a, b).elements() == sum(b, a).elements());
}

TEST_CASE("law 5: blocks cut in two that share rows and columns of mix change nothing",
          "[laws][summary]") {
  // MixedProduct ties a query to its offset in the block, which a cut changes; a block-causal query
  // sees its own block to its end, which a cut brings nearer.
  const auto cuts = [](const Policies& policies) {
    return !policies.mixes_products() && policies.causality != Causality::block_causal;
  };
  for_each_case({.exact_mix = true}, 1, cuts, [](const Variant& variant, const Case& random) {
    Draw draw(random.seed);
    Case fine = random;
    const Grid& queries = random.setting.queries;
    const Grid& keys = random.setting.keys;
    REQUIRE((has_blocks_of_many(queries) && has_blocks_of_many(keys)));
    fine.setting.queries = refined(queries, draw);
    fine.setting.cross = variant.policies().bidirectional();
    fine.setting.keys = fine.setting.cross ? refined(keys, draw) : fine.setting.queries;
    const std::vector<Index> row = parents(fine.setting.queries, queries);
    const std::vector<Index> column = parents(fine.setting.keys, keys);
    const auto rows = static_cast<Index>(row.size());
    const auto columns = static_cast<Index>(column.size());
    fine.mix = HostTensor<double, 3>(random.shape.mix_heads, rows, columns);
    const auto for_each = [&](auto&& f) {
      for (Index h = 0; h < random.shape.mix_heads; ++h)
        for (Index i = 0; i < rows; ++i)
          for (Index b = 0; b < columns; ++b)
            f(h, i, b, row[static_cast<std::size_t>(i)], column[static_cast<std::size_t>(b)]);
    };
    for_each([&](Index h, Index i, Index b, Index of_row, Index of_column) {
      fine.mix(h, i, b) = random.mix(h, of_row, of_column);
    });
    Outcome<double> found = run(variant, fine);
    auto collected = HostTensor<double, 3>::like(random.mix.view());
    for_each([&](Index h, Index i, Index b, Index of_row, Index of_column) {
      collected(h, of_row, of_column) += found.gradients.mix(h, i, b);
    });
    found.gradients.mix = collected;
    const Outcome<double> wanted = run(variant, random);
    require_near(found, wanted, magnitudes(variant, random, wanted.y), 2);
  });
}
