// SPDX-License-Identifier: MIT
// Float against the token-level oracle.
#include "tests/cpu/oracle.hpp"
#include "tests/support/catch.hpp"

TEST_CASE("oracle, float: cross-attention of sequences, normalized by mixed key sums", "[cpu]") {
  oracle::check_sequences<float, mhla::MixedKeySum>();
}
TEST_CASE("oracle, float: cross-attention of sequences, unnormalized", "[cpu]") {
  oracle::check_sequences<float, mhla::Unnormalized>();
}
TEST_CASE("oracle, float: cross-attention of images and videos", "[cpu]") {
  oracle::check_grids<float, mhla::MixedKeySum>();
  oracle::check_grids<float, mhla::Unnormalized>();
}
TEST_CASE("oracle, float: mixed products", "[cpu]") { oracle::check_mixed_products<float>(); }
TEST_CASE("oracle, float: more blocks than are mixed at once", "[cpu]") {
  oracle::check_many_blocks<float>();
}
