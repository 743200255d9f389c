// SPDX-License-Identifier: MIT
// Whole calls with shorter vectors than this machine may have, forward and backward, against the
// token-level oracle. Compiled with MHLA_MAX_VECTOR_BYTES, which every source of the program
// shares.
#include <mhla/cpu/pipeline.hpp>
#include <type_traits>

#include "tests/cpu/call.hpp"

namespace {

using call::check_against_oracle;
using call::operands;
using namespace mhla;

}  // namespace

TEST_CASE("narrow vectors: no longer ones are chosen", "[cpu]") {
  Index bytes = 0;
  mhla::cpu::with_kernels<float>([&](auto kernels) {
    bytes = static_cast<Index>(sizeof(typename decltype(kernels)::Vector));
  });
  CAPTURE(bytes);
  CHECK(bytes <= MHLA_MAX_VECTOR_BYTES);
#if defined(__x86_64__)
  const bool has_32 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  CHECK(bytes == (MHLA_MAX_VECTOR_BYTES >= 32 && has_32 ? 32 : 16));
#endif
}

// d = 72 and 24: whole vectors, half ones and some left over; 5: less than a vector.
TEST_CASE("narrow vectors: a rotated image, ragged, with grouped heads", "[cpu]") {
  const Attention<EluPlusOne, Blocks2D, Bidirectional, MixedKeySum, AxialRotary> attention{
      .blocks = {.grid = {17, 13}, .block = {3, 4}}, .scale = 0.375};
  const auto [key_dim, value_dim] =
      GENERATE(std::pair{Index{72}, Index{72}}, std::pair{Index{24}, Index{5}},
               std::pair{Index{4}, Index{24}}, std::pair{Index{16}, Index{1}});
  CAPTURE(key_dim, value_dim);
  for (const Index matrices : {1, 4})
    check_against_oracle(
        attention, operands<float>(attention, {1, 4, 2, 221, 221, key_dim, value_dim, matrices}));
}

TEST_CASE("narrow vectors: a causal sequence, ragged, in blocks of several tiles", "[cpu]") {
  // Without the large epsilon the gradient of the first block's own weight nearly cancels.
  const Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary> attention{
      .blocks = {.block = GENERATE(7, 150)}, .normalizer = {.epsilon = 20}, .scale = 0.375};
  const auto [key_dim, value_dim] =
      GENERATE(std::pair{Index{72}, Index{24}}, std::pair{Index{24}, Index{72}},
               std::pair{Index{6}, Index{5}});
  CAPTURE(attention.blocks.block, key_dim, value_dim);
  check_against_oracle(attention,
                       operands<float>(attention, {1, 4, 2, 331, 331, key_dim, value_dim, 4}));
}
