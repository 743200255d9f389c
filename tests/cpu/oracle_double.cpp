// SPDX-License-Identifier: MIT
// Double against the token-level oracle.
#include "tests/cpu/oracle.hpp"
#include "tests/support/catch.hpp"

TEST_CASE("oracle, double: cross-attention of sequences, normalized by mixed key sums", "[cpu]") {
  oracle::check_sequences<double, mhla::MixedKeySum>();
}
TEST_CASE("oracle, double: cross-attention of sequences, unnormalized", "[cpu]") {
  oracle::check_sequences<double, mhla::Unnormalized>();
}
TEST_CASE("oracle, double: cross-attention of images and videos", "[cpu]") {
  oracle::check_grids<double, mhla::MixedKeySum>();
  oracle::check_grids<double, mhla::Unnormalized>();
}
TEST_CASE("oracle, double: mixed products", "[cpu]") { oracle::check_mixed_products<double>(); }
TEST_CASE("oracle, double: more blocks than are mixed at once", "[cpu]") {
  oracle::check_many_blocks<double>();
}
