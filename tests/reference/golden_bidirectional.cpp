// SPDX-License-Identifier: MIT
// The oracle against every bidirectional golden case.
#include "tests/reference/golden_case.hpp"

using namespace mhla;

TEST_CASE("oracle: reproduces every bidirectional golden case", "[reference][golden]") {
  using golden::check;
  using All = Bidirectional;
  const golden::Entry entries[] = {
      {"p01_1d_none_relu", check<Attention<Relu, Blocks1D, All, Unnormalized>>},
      {"p02_1d_paper_relu", check<Attention<Relu, Blocks1D>>},
      {"p03_1d_official_relu", check<Attention<Relu, Blocks1D, All, MixedProduct>>},
      {"p04_2d_paper_codeinit", check<Attention<Relu, Blocks2D>>},
      {"p05_2d_none_elu_paperinit_m16", check<Attention<EluPlusOne, Blocks2D, All, Unnormalized>>},
      {"p06_2d_official_batch2", check<Attention<Relu, Blocks2D, All, MixedProduct>>},
      {"p07_2d_paper_elu_rectblock", check<Attention<EluPlusOne, Blocks2D>>},
      {"p08_3d_none_relu", check<Attention<Relu, Blocks3D, All, Unnormalized>>},
      {"p09_3d_paper_elu", check<Attention<EluPlusOne, Blocks3D>>},
      {"p10_3d_official_wanrope", check<Attention<Relu, Blocks3D, All, MixedProduct, AxialRotary>>},
      {"p11_3d_none_wanrope", check<Attention<Relu, Blocks3D, All, Unnormalized, AxialRotary>>},
      {"p17_paper_perheadmix", check<Attention<Relu, Blocks1D>>},
      {"p19_exp_paper", check<Attention<Exp, Blocks1D>>},
      {"p20_softmax_paper", check<Attention<Softmax, Blocks2D>>},
      {"p22_sqrelu_none", check<Attention<SquaredRelu, Blocks2D, All, Unnormalized>>},
      {"p23_dpfp_none", check<Attention<Dpfp, Blocks1D, All, Unnormalized>>},
      {"p24_favor_paper", check<Attention<Favor<double>, Blocks1D>>},
      {"p25_M1_paper_is_linear_attention", check<Attention<Relu, Blocks2D>>},
      {"p26_uniform_mix_paper", check<Attention<Relu, Blocks2D>>},
      {"p27_identity_mix_none_blocklocal", check<Attention<Relu, Blocks2D, All, Unnormalized>>},
      {"p28_2d_paper_large", check<Attention<Relu, Blocks2D>>},
  };
  golden::check_all(entries, false);
}
