// SPDX-License-Identifier: MIT
// What the other laws rely on: the build holds the variants it should, and random cases reach every
// kind of shape.
#include "tests/variants/product.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/partition.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/laws/harness/for_each_case.hpp"

namespace {

using namespace laws;

std::vector<Policies> full_list() {
  std::vector<Policies> all;
  variants::for_each_variant(0, num_maps, [&](const Policies& policies, variants::Batch batch) {
    if (batch == variants::Batch::plain && policies.mixing == variants::Mixing::dense)
      all.push_back(policies);
  });
  return all;
}

/// "factor 0 = 3 and factor 2 = 1" for every two of map, rank, rotation, normalizer and causality.
std::set<std::tuple<int, int, int, int>> pairs_in(const std::vector<Policies>& variants) {
  std::set<std::tuple<int, int, int, int>> pairs;
  for (const Policies& p : variants) {
    const int value[] = {static_cast<int>(p.map), p.rank, static_cast<int>(p.rotation),
                         static_cast<int>(p.normalizer), static_cast<int>(p.causality)};
    for (int a = 0; a < 5; ++a)
      for (int b = a + 1; b < 5; ++b) pairs.insert({a, value[a], b, value[b]});
  }
  return pairs;
}

}  // namespace

TEST_CASE("the build holds the variants it should", "[laws][product]") {
  const std::vector<Policies> all = full_list();
  REQUIRE(all.size() == num_maps * (21 + 2 * 6));
  std::vector<Policies> expected;
  std::copy_if(all.begin(), all.end(), std::back_inserter(expected),
               [](const Policies& policies) { return variants::in_laws(policies); });
  std::vector<Policies> found;
  for (const Variant& variant : product()) found.push_back(variant.policies());
  REQUIRE(found.size() == expected.size());
  for (const Policies& policies : expected) {
    INFO(policies);
    REQUIRE(std::count(found.begin(), found.end(), policies) == 1);
  }
  if (variants::full_product) REQUIRE(found.size() == all.size());
}

TEST_CASE("in the pairwise subset every two policies meet that can meet", "[laws][product]") {
  const std::vector<Policies> all = full_list();
  std::vector<Policies> subset;
  std::copy_if(all.begin(), all.end(), std::back_inserter(subset), variants::in_pairwise_subset);
  CHECK(subset.size() <= 58);
  CHECK(pairs_in(subset) == pairs_in(all));
}

TEST_CASE("random cases reach every kind of shape", "[laws][product]") {
  for (const bool products : {false, true}) {
    std::set<std::string> seen;
    std::uint64_t counter = 0;
    for (const Policies& policies : full_list()) {
      if (policies.mixes_products() != products || !policies.bidirectional()) continue;
      for (Index number = 0; number < 2; ++number) {
        const std::uint64_t seed = mhla::testing::random_bits(1, counter++);
        const Case random = random_case(policies, {}, seed);
        const Shape& s = random.shape;
        const Grid& queries = random.setting.queries;
        const Index block = queries.block[0] * queries.block[1] * queries.block[2];
        const std::string rank = std::to_string(policies.rank) + "-D ";
        const auto note = [&](bool holds, const char* what) {
          if (holds) seen.insert(rank + what);
        };
        note(true, "any");
        note(random.ragged(), "ragged");
        note(random.setting.cross, "cross-attention");
        note(s.kv_heads < s.heads, "grouped heads");
        note(s.kv_heads == s.heads, "a kv head each");
        note(s.mix_heads > 1, "a mix per head");
        note(s.mix_key_blocks > random.setting.keys.num_blocks(), "larger mix");
        note(queries.num_blocks() > mhla::cpu::max_mixing_rows,
             "more blocks than are mixed at once");
        note(block > mhla::cpu::max_tile_tokens, "blocks longer than a tile");
        note(s.key_dim < s.value_dim, "key_dim below value_dim");
        note(s.key_dim > s.value_dim, "key_dim above value_dim");
        note(s.batch > 1, "a batch");
      }
    }
    std::set<std::string> expected;
    for (const std::string rank : {"1-D ", "2-D ", "3-D "}) {
      for (const char* what : {"any", "grouped heads", "a kv head each", "a mix per head",
                               "more blocks than are mixed at once", "blocks longer than a tile",
                               "key_dim below value_dim", "key_dim above value_dim", "a batch"})
        expected.insert(rank + what);
      if (!products)
        for (const char* what : {"ragged", "cross-attention"}) expected.insert(rank + what);
    }
    expected.insert("1-D larger mix");
    CHECK(seen == expected);
  }
}
