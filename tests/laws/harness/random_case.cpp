// SPDX-License-Identifier: MIT
// How cases are drawn.
#include "tests/laws/harness/random_case.hpp"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace laws {

namespace {

using namespace mhla::testing;

bool all_distinct(std::vector<Index> sizes) {
  std::sort(sizes.begin(), sizes.end());
  return std::adjacent_find(sizes.begin(), sizes.end()) == sizes.end();
}

/// Where the library cuts its work: more blocks than it mixes at once, blocks of several tiles.
enum class Regime { ordinary, many_blocks, long_blocks };

struct Range {
  Index low;
  Index high;
};
struct GridRange {
  Range block[3];
  Range layout[3];
};

/// What the axes of a grid of `rank` axes are drawn from.
GridRange grid_range(int rank, Regime regime) {
  constexpr Range one{1, 1};
  if (regime == Regime::many_blocks) {
    if (rank == 1) return {{one, one, {2, 4}}, {one, one, {33, 41}}};
    if (rank == 2) return {{one, {1, 2}, {1, 3}}, {one, {5, 7}, {7, 9}}};
    return {{one, one, {1, 2}}, {{3, 3}, {4, 4}, {3, 5}}};
  }
  if (regime == Regime::long_blocks) {
    if (rank == 1) return {{one, one, {129, 140}}, {one, one, {2, 3}}};
    if (rank == 2) return {{one, {10, 12}, {13, 15}}, {one, {1, 2}, {2, 2}}};
    return {{{3, 4}, {5, 6}, {9, 10}}, {{1, 1}, {1, 2}, {2, 2}}};
  }
  if (rank == 1) return {{one, one, {2, 11}}, {one, one, {2, 7}}};
  if (rank == 2) return {{one, {1, 4}, {1, 5}}, {one, {1, 3}, {1, 4}}};
  return {{{1, 3}, {1, 4}, {1, 3}}, {{1, 3}, {1, 2}, {1, 3}}};
}

Grid random_grid(int rank, Regime regime, bool ragged, Draw& draw) {
  const GridRange range = grid_range(rank, regime);
  Grid grid;
  for (int axis = 0; axis < 3; ++axis) {
    grid.block[axis] = draw.between(range.block[axis].low, range.block[axis].high);
    grid.extent[axis] =
        grid.block[axis] * draw.between(range.layout[axis].low, range.layout[axis].high);
    if (ragged && grid.block[axis] > 1) grid.extent[axis] -= draw.between(0, grid.block[axis] - 1);
  }
  return grid;
}

/// At least two blocks, axes that cannot be taken for each other (but where small blocks make many
/// of them), and a size the oracle can bear.
bool useful(const Grid& grid, int rank, Regime regime) {
  if (grid.num_blocks() < 2 || grid.num_tokens() > 400) return false;
  std::vector<Index> extents;
  std::vector<Index> blocks;
  for (int axis = 3 - rank; axis < 3; ++axis) {
    extents.push_back(grid.extent[axis]);
    blocks.push_back(grid.block[axis]);
  }
  return all_distinct(extents) && (regime == Regime::many_blocks || all_distinct(blocks));
}

/// How long phi makes a row, or 0 where it leaves the length as it is.
Index new_dimension(const Case& c, Map map) {
  switch (map) {
    case Map::hedgehog:
      return 2 * c.shape.key_dim;
    case Map::dpfp:
      return 2 * c.setting.nu * c.shape.key_dim;
    case Map::favor:
      return c.setting.projection.extent(0);
    default:
      return 0;
  }
}

/// Whether features of phi may be 0, or as small as an epsilon.
bool has_zeros(Map map) { return variants::is_rectified(map) || map == Map::dpfp; }

/// Draws once; the sizes may not fit together.
Case draw_sizes(const Policies& policies, const Wishes& wishes, Regime regime, Draw& draw) {
  Case c;
  const bool equal_sides =
      policies.mixes_products() || wishes.self_attention || !policies.bidirectional();
  const bool even_only = policies.mixes_products() || wishes.equal_blocks;
  const bool narrow = wishes.small || regime == Regime::long_blocks;
  const Index longest = narrow ? 6 : policies.map == Map::dpfp ? 7 : 13;
  const bool large = regime != Regime::ordinary;
  c.setting.cross = !equal_sides && draw.once_in(3);
  const bool ragged = !even_only && draw.once_in(2);
  c.setting.queries = random_grid(policies.rank, regime, ragged, draw);
  c.setting.keys =
      c.setting.cross ? random_grid(policies.rank, regime, ragged, draw) : c.setting.queries;
  c.setting.feature_epsilon = draw.once_in(2) ? 1e-6 : 0.0625;
  c.setting.normalizer_epsilon = wishes.no_epsilon ? 0 : draw.once_in(2) ? 1e-6 : 0.125;
  // A causal token may see no key that shares a feature with it: then epsilon alone is between its
  // denominator and 0.
  const bool no_shared_feature = !policies.bidirectional() && has_zeros(policies.map);
  if (wishes.smooth && no_shared_feature) c.setting.normalizer_epsilon = 0.125;
  c.setting.scale = draw.once_in(3) ? 1 : static_cast<double>(draw.between(3, 15)) / 8;
  c.setting.theta = draw.once_in(2) ? 10000 : 100;
  c.setting.nu = draw.between(1, narrow ? 2 : 3);

  Shape& s = c.shape;
  s.batch = draw.between(1, large || wishes.small ? 2 : 4);
  s.kv_heads = draw.between(1, wishes.small ? 2 : 3);
  s.heads = s.kv_heads * draw.between(wishes.grouped ? 2 : 1, large ? 2 : 3);
  s.query_tokens = c.setting.queries.num_tokens();
  s.key_tokens = c.setting.keys.num_tokens();
  s.key_dim = draw.between(2, longest);
  s.value_dim = draw.between(2, longest + 1);
  const bool own_mixing = draw.once_in(2);
  const bool larger_mix = policies.rank == 1 && !wishes.exact_mix && draw.once_in(4);
  c.setting.leading_corner = larger_mix;
  s.mix_heads = own_mixing ? s.heads : 1;
  s.mix_query_blocks = c.setting.queries.num_blocks() + (larger_mix ? draw.between(1, 3) : 0);
  s.mix_key_blocks = c.setting.keys.num_blocks() + (larger_mix ? draw.between(1, 4) : 0);
  if (policies.map == Map::favor)
    c.setting.projection = HostTensor<double, 2>(2 * draw.between(2, narrow ? 4 : 6), s.key_dim);
  if (policies.rotates() && new_dimension(c, policies.map) == 0) s.key_dim += s.key_dim % 2;
  return c;
}

bool sizes_fit(const Case& c, const Policies& policies, Regime regime) {
  const Shape& s = c.shape;
  const Setting& setting = c.setting;
  std::vector<Index> sizes{s.batch,   s.heads,     s.query_tokens,
                           s.key_dim, s.value_dim, setting.queries.num_blocks()};
  if (s.kv_heads != s.heads) sizes.push_back(s.kv_heads);
  if (new_dimension(c, policies.map) != 0) sizes.push_back(new_dimension(c, policies.map));
  if (setting.cross) {
    sizes.push_back(s.key_tokens);
    sizes.push_back(setting.keys.num_blocks());
  }
  const Index pairs = s.batch * s.heads * s.query_tokens * s.key_tokens;
  return useful(setting.queries, policies.rank, regime) &&
         useful(setting.keys, policies.rank, regime) && all_distinct(sizes) &&
         pairs <= (regime == Regime::long_blocks ? 320000 : 50000);
}

}  // namespace

Case random_case(const Policies& policies, const Wishes& wishes, std::uint64_t seed) {
  Draw draw(seed);
  // Groups of heads multiply what the oracle has to bear.
  const bool many = draw.once_in(5) && !(wishes.grouped && policies.rank == 3);
  const bool large = draw.once_in(12) && !wishes.grouped;
  const Regime regime = wishes.small ? Regime::ordinary
                        : many       ? Regime::many_blocks
                        : large      ? Regime::long_blocks
                                     : Regime::ordinary;
  Case c;
  for (int tries = 0;; ++tries) {
    c = draw_sizes(policies, wishes, regime, draw);
    if (sizes_fit(c, policies, regime)) break;
    if (tries == 1000000) throw std::logic_error("no sizes fit the wishes of a law");
  }
  c.seed = seed;

  const Shape& s = c.shape;
  c.q = HostTensor<double, 4>(s.batch, s.heads, s.query_tokens, s.key_dim);
  c.k = HostTensor<double, 4>(s.batch, s.kv_heads, s.key_tokens, s.key_dim);
  c.v =
      random_tensor<double>(Normal{}, draw.bits(), s.batch, s.kv_heads, s.key_tokens, s.value_dim);
  c.dy =
      random_tensor<double>(Normal{}, draw.bits(), s.batch, s.heads, s.query_tokens, s.value_dim);
  c.mix = HostTensor<double, 3>(s.mix_heads, s.mix_query_blocks, s.mix_key_blocks);
  for (HostTensor<double, 4>* x : {&c.q, &c.k}) {
    if (!wishes.smooth) {
      fill_random(Normal{}, draw.bits(), x->view());
    } else if (policies.map == Map::identity && policies.normalizes()) {
      fill_random(Positive{}, draw.bits(), x->view());
    } else {
      fill_random(AwayFromKink{}, draw.bits(), x->view());
    }
  }
  // Random, so not symmetric: a transposed matrix shows.
  if (policies.normalizes()) {
    fill_random(wishes.smooth ? Uniform{0.5f, 1.5f} : Uniform{0.125f, 1}, draw.bits(),
                c.mix.view());
  } else {
    fill_random(Normal{}, draw.bits(), c.mix.view());
  }
  // Exponents of order 1: an exponential of x has |x| roundings, in any library.
  if (policies.map == Map::favor)
    fill_random(Uniform{-1, 1}, draw.bits(), c.setting.projection.view());
  return c;
}

std::string description_of(const Case& random) {
  const Shape& s = random.shape;
  const auto grid = [](const Grid& g) {
    std::ostringstream out;
    for (int axis = 0; axis < 3; ++axis) out << (axis == 0 ? "" : "x") << g.extent[axis];
    out << " in blocks of ";
    for (int axis = 0; axis < 3; ++axis) out << (axis == 0 ? "" : "x") << g.block[axis];
    return out.str();
  };
  std::ostringstream out;
  out << "batch " << s.batch << ", heads " << s.heads << ", kv_heads " << s.kv_heads << ", queries "
      << grid(random.setting.queries);
  if (random.setting.cross) out << ", keys " << grid(random.setting.keys);
  out << ", key_dim " << s.key_dim << ", value_dim " << s.value_dim << ", mix [" << s.mix_heads
      << ", " << s.mix_query_blocks << ", " << s.mix_key_blocks << "], scale "
      << random.setting.scale << ", epsilons " << random.setting.feature_epsilon << " and "
      << random.setting.normalizer_epsilon << ", theta " << random.setting.theta << ", nu "
      << random.setting.nu << ", path " << static_cast<int>(random.setting.path) << ", features "
      << random.setting.projection.extent(0);
  return out.str();
}

}  // namespace laws
