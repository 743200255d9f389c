// SPDX-License-Identifier: MIT
// The oracle against every causal golden case.
#include "tests/reference/golden_case.hpp"

using namespace mhla;

TEST_CASE("oracle: reproduces every causal golden case", "[reference][golden]") {
  using golden::check;
  const golden::Entry entries[] = {
      {"p12_causal_none_relu_init", check<Attention<Relu, Blocks1D, Causal, Unnormalized>>},
      {"p13_causal_none_elu_ragged", check<Attention<EluPlusOne, Blocks1D, Causal, Unnormalized>>},
      {"p14_causal_paper_elu", check<Attention<EluPlusOne, Blocks1D, Causal>>},
      {"p15_causal_none_rope_gqa",
       check<Attention<Relu, Blocks1D, Causal, Unnormalized, HalfSplitRotary>>},
      {"p16_causal_paper_elu_rope",
       check<Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>>},
      {"p18_causal_none_perheadmix", check<Attention<EluPlusOne, Blocks1D, Causal, Unnormalized>>},
      {"p21_causal_hedgehog_paper", check<Attention<Hedgehog, Blocks1D, Causal>>},
  };
  golden::check_all(entries, true);
}
