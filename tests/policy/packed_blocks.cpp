// SPDX-License-Identifier: MIT
// The list of packed sequences' blocks, against one that is written down block by block.
#include <mhla/policy/packed_blocks.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;

struct Block {
  Index sequence;
  Index index;  // within it
  Index first_token;
  Index tokens;
};

template <class Offset>
void check_lists() {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto random = [&](std::uint64_t of, Index below) {
      return mhla::testing::random_index(seed, of, below);
    };
    const Index block = 1 + random(0, 5);
    std::vector<Offset> offsets{0};
    for (Index s = random(1, 7); s-- > 0;)
      offsets.push_back(static_cast<Offset>(offsets.back() +
                                            random(10 + static_cast<std::uint64_t>(s), 4 * block)));
    const auto sequences = static_cast<Index>(offsets.size()) - 1;
    const auto begin = [&](Index s) {
      return static_cast<Index>(offsets[static_cast<std::size_t>(s)]);
    };
    std::vector<Block> all;
    for (Index s = 0; s < sequences; ++s)
      for (Index t = begin(s); t < begin(s + 1); t += block)
        all.push_back({s, (t - begin(s)) / block, t, std::min(block, begin(s + 1) - t)});
    const auto count = static_cast<Index>(all.size());
    const auto at = [&](Index b) { return all[static_cast<std::size_t>(b)]; };

    const PackedBlocks<Offset> list({offsets.data(), sequences + 1}, block);
    CAPTURE(seed, offsets, block);
    REQUIRE(list.num_blocks() == count);
    for (Index b = 0; b <= count; ++b) {
      CHECK(list.first_token(b) == (b < count ? at(b).first_token : begin(sequences)));
      CHECK(list.block_in_sequence(b) == (b < count ? at(b).index : 0));
    }
    for (Index first = 0; first <= count; ++first)
      for (Index end = first; end <= count; ++end) {
        const BlockRange range{first, end - first};
        CAPTURE(first, end);
        BlockRange whole = range;
        if (first < end) {
          while (whole.first > 0 && at(whole.first - 1).sequence == at(first).sequence)
            --whole.first;
          Index last = end;
          while (last < count && at(last).sequence == at(end - 1).sequence) ++last;
          whole.count = last - whole.first;
        }
        CHECK(list.sequences_of(range) == whole);

        Index tokens = 0;
        Index row = 0;
        list.for_each_part(range, [&](const SequencePart& of) {
          CHECK(of.rows.first == row);
          CHECK(of.tokens.first == tokens);
          CHECK((of.part.count > 0 || range.count == 0));
          const Index s = at(of.first_block).sequence;
          CHECK(of.length == begin(s + 1) - begin(s));
          CHECK(of.blocks == mhla::ceil_div(of.length, block));
          CHECK(at(of.first_block).index == 0);
          CHECK(of.part.first == (first < count ? at(first + row).index : 0));
          Index of_part = 0;
          for (Index b = 0; b < of.part.count; ++b) {
            CHECK(at(first + row + b).sequence == s);
            CHECK(at(first + row + b).index == of.part.first + b);
            of_part += at(first + row + b).tokens;
          }
          CHECK(of.tokens.count == of_part);
          CHECK(of.rows.count == of.part.count);
          CHECK(of.of(range) == of.part);
          CHECK(of.of({0, count}) == BlockRange{0, of.blocks});
          tokens += of.tokens.count;
          row += of.part.count;
        });
        CHECK(row == range.count);
        CHECK(list.num_tokens(range) == tokens);
      }
    // Between blocks of a sequence an empty range is of that sequence, at its border of none.
    for (Index b = 0; b <= count; ++b) {
      Index visited = 0;
      list.for_each_part({b, 0}, [&](const SequencePart& of) {
        ++visited;
        CHECK(of.part == BlockRange{at(b).index, 0});
      });
      CHECK(visited == (b < count && at(b).index > 0 ? 1 : 0));
    }
  }
}

}  // namespace

TEST_CASE("blocks of packed sequences, end to end") {
  SECTION("32-bit offsets") { check_lists<std::int32_t>(); }
  SECTION("64-bit offsets") { check_lists<std::int64_t>(); }
}
