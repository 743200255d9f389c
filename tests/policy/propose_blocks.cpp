// SPDX-License-Identifier: MIT
// Proposed blocks: those of the released models, and what is promised of any.
#include <cmath>
#include <mhla/policy/propose_blocks.hpp>

#include "tests/support/catch.hpp"

using mhla::Index;
using mhla::propose_blocks;

TEST_CASE("proposed blocks are the released models'") {
  const auto require = [](const mhla::Blocks2D& blocks, Index side) {
    CAPTURE(blocks.grid[0]);
    REQUIRE(blocks.block[0] == side);
    REQUIRE(blocks.block[1] == side);
  };
  require(propose_blocks(16, 16), 4);  // DeiT, DiT at 256 pixels
  require(propose_blocks(32, 32), 8);  // DiT at 512
  require(propose_blocks(24, 24), 6);  // DeiT-T at 384
  require(propose_blocks(56, 56), 8);  // VLT, stage 1
  require(propose_blocks(28, 28), 7);  // stage 2
  const mhla::Blocks3D wan = propose_blocks(21, 30, 50);
  REQUIRE(wan.grid[2] == 50);
  REQUIRE(wan.block[0] == 7);
  REQUIRE(wan.block[1] == 6);
  REQUIRE(wan.block[2] == 5);
  REQUIRE(propose_blocks(2048, {.key_dim = 128, .value_dim = 256, .causal = true}).block == 64);
}

TEST_CASE("proposed blocks keep the cost of mixing below half of the rest, and divide the grid") {
  for (Index rows = 1; rows <= 40; ++rows)
    for (Index columns = 1; columns <= 40; ++columns)
      for (const bool ragged : {false, true}) {
        CAPTURE(rows, columns, ragged);
        const mhla::Grid grid =
            propose_blocks(rows, columns, {.ragged = ragged}).grid_of(rows * columns);
        REQUIRE(grid.num_blocks() * grid.num_blocks() <= rows * columns);
        if (!ragged) REQUIRE(!grid.ragged());
        // Where shorter blocks are allowed, there is always something near.
        if (ragged && rows >= 8 && columns >= 8)
          REQUIRE(64 * grid.num_blocks() * grid.num_blocks() >= rows * columns);
      }
}

TEST_CASE("causal blocks are the cheapest of all") {
  for (const Index tokens : {100, 509, 1000, 4096, 31500})
    for (const Index dim : {32, 128}) {
      const mhla::BlockNeeds needs{.key_dim = dim, .value_dim = dim, .causal = true};
      const auto cost = [&](Index block) {
        return mhla::proposal::distance(mhla::Blocks1D{block}.grid_of(tokens), needs);
      };
      double cheapest = INFINITY;
      for (Index block = 1; block <= tokens; ++block)
        if (cost(block) < cheapest) cheapest = cost(block);
      CAPTURE(tokens, dim);
      const Index proposed = propose_blocks(tokens, needs).block;
      REQUIRE(cost(proposed) <= cheapest + 0.7 + 1e-9);
      if (tokens == 509) REQUIRE(proposed < 509);  // a prime number
    }
}

TEST_CASE("longer heads make causal blocks longer") {
  const auto of = [](Index dim) {
    return propose_blocks(16384, {.key_dim = dim, .value_dim = dim, .causal = true}).block;
  };
  REQUIRE(of(128) < of(1024));
}

TEST_CASE("propose_blocks refuses a grid without tokens, or of more than a call takes") {
  REQUIRE_THROWS_AS(propose_blocks(0), mhla::ShapeError);
  REQUIRE_THROWS_AS(propose_blocks(4, 0), mhla::ShapeError);
  REQUIRE_THROWS_AS(propose_blocks(4, {.key_dim = 0}), mhla::ShapeError);
  REQUIRE_THROWS_AS(propose_blocks((mhla::Index{1} << 36) + 1), mhla::ShapeError);
  REQUIRE_THROWS_AS(propose_blocks(1 << 20, 1 << 20), mhla::ShapeError);
}
