// SPDX-License-Identifier: MIT
// Law 4: without a rotation, bidirectional attention knows of a token its block and nothing else.
// (MixedProduct, which ties a token to its offset, has laws of its own: mixed_product.cpp.)
#include "tests/laws/harness/blocks.hpp"
#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

bool knows_blocks_only(const Policies& policies) {
  return !policies.rotates() && !policies.mixes_products() && policies.bidirectional();
}

/// The call with its tokens moved, and mix with them, gives what the call itself gives, moved.
void require_moved_alike(const Variant& variant, const Case& random, const Order& queries,
                         const Order& keys, const Order& rows, const Order& columns) {
  Case other = random;
  other.q = moved(random.q, queries);
  other.dy = moved(random.dy, queries);
  other.k = moved(random.k, keys);
  other.v = moved(random.v, keys);
  other.mix = moved(random.mix, rows, columns);
  const Outcome<double> once = run(variant, random);
  const Outcome<double> once_moved{
      moved(once.y, queries),
      {moved(once.gradients.q, queries), moved(once.gradients.k, keys),
       moved(once.gradients.v, keys), moved(once.gradients.mix, rows, columns)}};
  const Outcome<double> found = run(variant, other);
  require_near(found, once_moved, magnitudes(variant, other, found.y), 2);
}

}  // namespace

TEST_CASE("law 4: tokens that change places inside their blocks take their results along",
          "[laws][permutation]") {
  for_each_case({}, 1, knows_blocks_only, [](const Variant& variant, const Case& random) {
    Draw draw(random.seed);
    const Setting& setting = random.setting;
    require_moved_alike(variant, random, order_inside_blocks(setting.queries, draw),
                        order_inside_blocks(setting.keys, draw),
                        same_order(setting.queries.num_blocks()),
                        same_order(setting.keys.num_blocks()));
  });
}

TEST_CASE("law 4: blocks that change places take their rows and columns of mix along",
          "[laws][permutation]") {
  for_each_case({.equal_blocks = true}, 1, knows_blocks_only,
                [](const Variant& variant, const Case& random) {
                  Draw draw(random.seed);
                  const Grid& queries = random.setting.queries;
                  const Grid& keys = random.setting.keys;
                  const Order rows = random_order(queries.num_blocks(), draw);
                  const Order columns = random_order(keys.num_blocks(), draw);
                  const Order all_queries = same_order(queries.num_tokens());
                  const Order all_keys = same_order(keys.num_tokens());
                  require_moved_alike(variant, random, order_of_blocks(queries, rows, all_queries),
                                      order_of_blocks(keys, columns, all_keys), rows, columns);
                });
}
