// SPDX-License-Identifier: MIT
// MixedProduct, the released code's normalizer, divides token (i, p) by products of *other* blocks'
// queries at offset p. Where that makes no difference it is MixedKeySum; elsewhere offsets matter.
#include <algorithm>
#include <cmath>

#include "tests/laws/harness/blocks.hpp"
#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

bool has_mixed_product(const Policies& policies) { return policies.mixes_products(); }
bool has_mixed_product_unrotated(const Policies& policies) {
  return policies.mixes_products() && !policies.rotates();
}

/// max |a - b| / max |b|
template <class A, class B>
double distance(const HostTensor<A, 4>& a, const HostTensor<B, 4>& b) {
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    const auto want = static_cast<double>(b.elements()[i]);
    difference = std::max(difference, std::abs(static_cast<double>(a.elements()[i]) - want));
    largest = std::max(largest, std::abs(want));
  }
  return difference / largest;
}

/// The difference that the two normalizers make is of order 1 and cannot be rounding.
constexpr double visible = 1e-3;

}  // namespace

TEST_CASE("MixedProduct is MixedKeySum where mix is diagonal", "[laws][mixed_product]") {
  for_each_case({}, 1, has_mixed_product, [](const Variant& variant, Case random) {
    for (Index h = 0; h < random.mix.extent(0); ++h)
      for (Index i = 0; i < random.mix.extent(1); ++i)
        for (Index b = 0; b < random.mix.extent(2); ++b)
          if (i != b) random.mix(h, i, b) = 0;
    const Outcome<Wide> wanted = expected(variant, random, Formula::with_key_sums);
    // Not dmix, which leaves the diagonal.
    require_near(run(variant, random), wanted, magnitudes(variant, random, wanted.y), 1,
                 Compare::all_but_mix);
  });
}

TEST_CASE("MixedProduct is MixedKeySum where all blocks carry the same queries",
          "[laws][mixed_product]") {
  for_each_case({}, 1, has_mixed_product, [](const Variant& variant, Case random) {
    const Grid& grid = random.setting.queries;
    const Order first = tokens_of_block(grid, 0);
    const auto queries = taken(random.q, first);
    for (Index b = 1; b < grid.num_blocks(); ++b)
      put_back(queries, tokens_of_block(grid, b), random.q);
    const Outcome<Wide> wanted = expected(variant, random, Formula::with_key_sums);
    const CallMagnitudes magnitude = magnitudes(variant, random, wanted.y);
    const Outcome<double> found = run(variant, random);
    require_near("y", found.y, wanted.y, magnitude.y, 1);
    require_near("dk", found.gradients.k, wanted.gradients.k, magnitude.gradients.k, 1);
    require_near("dv", found.gradients.v, wanted.gradients.v, magnitude.gradients.v, 1);
    require_near("dmix", found.gradients.mix, wanted.gradients.mix, magnitude.gradients.mix, 1);
    // dq goes to other blocks, but its sum over the blocks that carry one query is the same.
    auto found_sum = HostTensor<double, 4>::like(queries.view());
    auto wanted_sum = HostTensor<Wide, 4>::like(queries.view());
    auto terms = HostTensor<double, 4>::like(queries.view());
    const auto add = [](auto& sum, const auto& part) {
      for (std::size_t i = 0; i < sum.elements().size(); ++i)
        sum.elements()[i] += part.elements()[i];
    };
    for (Index b = 0; b < grid.num_blocks(); ++b) {
      const Order tokens = tokens_of_block(grid, b);
      add(found_sum, taken(found.gradients.q, tokens));
      add(wanted_sum, taken(wanted.gradients.q, tokens));
      add(terms, taken(magnitude.gradients.q, tokens));
    }
    require_near("dq summed over blocks", found_sum, wanted_sum, terms, 1);
  });
}

TEST_CASE("MixedProduct differs from MixedKeySum on anything else", "[laws][mixed_product]") {
  for_each_case({}, 1, has_mixed_product, [](const Variant& variant, const Case& random) {
    const Tensors<Wide> wide(random);
    const auto with_key_sums =
        expected_output(Formula::with_key_sums, variant, random.setting, wide.operands());
    const auto found = output_of(variant, random);
    REQUIRE(distance(found, with_key_sums) > visible);
  });
}

TEST_CASE("MixedProduct: a change of places inside one block reaches other blocks",
          "[laws][mixed_product]") {
  for_each_case({}, 1, has_mixed_product_unrotated, [](const Variant& variant, const Case& random) {
    const Grid& grid = random.setting.queries;
    const Order block = tokens_of_block(grid, grid.num_blocks() - 1);
    Order order = same_order(grid.num_tokens());
    std::swap(order[static_cast<std::size_t>(block.front())],
              order[static_cast<std::size_t>(block.back())]);
    const auto once = output_of(variant, random);
    Case other = random;
    other.q = moved(random.q, order);
    const auto found = output_of(variant, other);
    const Order first = tokens_of_block(grid, 0);
    REQUIRE(distance(taken(found, first), taken(once, first)) > visible);
  });
}

TEST_CASE("MixedProduct: the same change of places in every block, and of blocks, is harmless",
          "[laws][mixed_product]") {
  for_each_case({}, 1, has_mixed_product_unrotated, [](const Variant& variant, const Case& random) {
    const Grid& grid = random.setting.queries;
    Draw draw(random.seed);
    const Order blocks = random_order(grid.num_blocks(), draw);
    const Order offsets = random_order(grid.num_tokens() / grid.num_blocks(), draw);
    const Order order = order_of_blocks(grid, blocks, offsets);
    Case other = random;
    for (auto tensor : {&Case::q, &Case::k, &Case::v, &Case::dy})
      other.*tensor = moved(random.*tensor, order);
    other.mix = moved(random.mix, blocks, blocks);
    const Outcome<double> once = run(variant, random);
    const Outcome<double> once_moved{
        moved(once.y, order),
        {moved(once.gradients.q, order), moved(once.gradients.k, order),
         moved(once.gradients.v, order), moved(once.gradients.mix, blocks, blocks)}};
    const Outcome<double> found = run(variant, other);
    require_near(found, once_moved, magnitudes(variant, other, found.y), 2);
  });
}
