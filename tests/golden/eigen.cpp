// SPDX-License-Identifier: MIT
// Every golden case of attention through the Eigen layer, in double and, nightly, in float: maps of
// the files' own memory, the expression, and the gradients.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mhla/mhla.hpp>
#include <string>
#include <vector>

#include "examples/checkpoints/npy.hpp"
#include "examples/replay/attention_case.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace mhla;
using replay::AttentionCase;

const std::filesystem::path golden = MHLA_GOLDEN_DIR;

template <class T, int Rank>
Eigen::Tensor<T, Rank, Eigen::RowMajor> read(const std::string& name, const std::string& array) {
  const checkpoints::Array file = checkpoints::read_npy(golden / name / (array + ".npy"));
  REQUIRE(file.shape.size() == Rank);
  Eigen::DSizes<Eigen::Index, Rank> extents;
  std::copy(file.shape.begin(), file.shape.end(), extents.begin());
  Eigen::Tensor<T, Rank, Eigen::RowMajor> tensor(extents);
  std::copy(file.values.begin(), file.values.end(), tensor.data());
  return tensor;
}

template <class Geometry>
Geometry blocks_of(const replay::TokenGrid& side) {
  Geometry geometry;
  if constexpr (Geometry::rank == 1) {
    geometry.block = side.block[0];
  } else {
    std::copy(side.grid.begin(), side.grid.end(), geometry.grid);
    std::copy(side.block.begin(), side.block.end(), geometry.block);
  }
  return geometry;
}

template <class T, int Rank>
void require_result(const std::string& name, const std::string& array,
                    const Eigen::Tensor<T, Rank, Eigen::RowMajor>& found, double scale) {
  const auto wanted = read<double, Rank>(name, array);
  double worst = 0;
  for (Eigen::Index i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(static_cast<double>(found.data()[i]) - wanted.data()[i]) / scale;
    if (!(error <= worst)) worst = error;  // a NaN is the worst
  }
  INFO(array << ": " << worst);
  REQUIRE(worst <= tolerance::golden<T>);
}

template <class T, class Map, class Geometry, class Normalizer, class Rotation, class Causality>
void check_in(const std::string& name, const AttentionCase& c, const Map& map) {
  Attention<Map, Geometry, Causality, Normalizer, Rotation> attention{
      .feature_map = map, .blocks = blocks_of<Geometry>(c.query_side), .scale = c.scale};
  if constexpr (requires { attention.feature_map.epsilon; })
    attention.feature_map.epsilon = c.feature_epsilon;
  if constexpr (requires { attention.normalizer.epsilon; })
    attention.normalizer.epsilon = c.normalizer_epsilon;
  if constexpr (requires { attention.rotation.theta; }) attention.rotation.theta = c.theta;

  const auto q = read<T, 4>(name, "q");
  const auto k = read<T, 4>(name, "k");
  const auto v = read<T, 4>(name, "v");
  const auto mix = read<T, 3>(name, "mix");
  const auto dy = read<T, 4>(name, "dout");
  auto y = dy;
  auto dq = q;
  auto dk = k;
  auto dv = v;
  auto dmix = mix;
  y = attention(q, k, v, mix);
  gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
  require_result<T, 4>(name, "out", y, c.error_scale.out);
  require_result<T, 4>(name, "dq", dq, c.error_scale.dq);
  require_result<T, 4>(name, "dk", dk, c.error_scale.dk);
  require_result<T, 4>(name, "dv", dv, c.error_scale.dv);
  require_result<T, 3>(name, "dmix", dmix, c.error_scale.dmix);
}

template <class Map, class Geometry, class Normalizer, class Rotation = NoRotation,
          class Causality = Bidirectional>
void check(const std::string& name, const AttentionCase& c) {
  if constexpr (std::is_same_v<Map, Favor<double>>) {
    const auto wide = read<double, 2>(name, "proj");
    const Index features = wide.dimension(0);
    const Index key_dim = wide.dimension(1);
    check_in<double, Favor<double>, Geometry, Normalizer, Rotation, Causality>(
        name, c, {make_view(wide.data(), features, key_dim)});
#ifdef MHLA_FULL_PRODUCT
    const auto narrow = read<float, 2>(name, "proj");
    check_in<float, Favor<float>, Geometry, Normalizer, Rotation, Causality>(
        name, c, {make_view(narrow.data(), features, key_dim)});
#endif
  } else {
    Map map;
    if constexpr (requires { map.nu; }) map.nu = c.nu;
    check_in<double, Map, Geometry, Normalizer, Rotation, Causality>(name, c, map);
#ifdef MHLA_FULL_PRODUCT
    check_in<float, Map, Geometry, Normalizer, Rotation, Causality>(name, c, map);
#endif
  }
}

template <class Map, class Normalizer, class Rotation = NoRotation>
void check_causal(const std::string& name, const AttentionCase& c) {
  check<Map, Blocks1D, Normalizer, Rotation, Causal>(name, c);
}

using Check = void (*)(const std::string&, const AttentionCase&);

// The variant of each case, as a user would write it.
const std::map<std::string, Check> checks = {
    {"p01_1d_none_relu", check<Relu, Blocks1D, Unnormalized>},
    {"p02_1d_paper_relu", check<Relu, Blocks1D, MixedKeySum>},
    {"p03_1d_official_relu", check<Relu, Blocks1D, MixedProduct>},
    {"p04_2d_paper_codeinit", check<Relu, Blocks2D, MixedKeySum>},
    {"p05_2d_none_elu_paperinit_m16", check<EluPlusOne, Blocks2D, Unnormalized>},
    {"p06_2d_official_batch2", check<Relu, Blocks2D, MixedProduct>},
    {"p07_2d_paper_elu_rectblock", check<EluPlusOne, Blocks2D, MixedKeySum>},
    {"p08_3d_none_relu", check<Relu, Blocks3D, Unnormalized>},
    {"p09_3d_paper_elu", check<EluPlusOne, Blocks3D, MixedKeySum>},
    {"p10_3d_official_wanrope", check<Relu, Blocks3D, MixedProduct, AxialRotary>},
    {"p11_3d_none_wanrope", check<Relu, Blocks3D, Unnormalized, AxialRotary>},
    {"p12_causal_none_relu_init", check_causal<Relu, Unnormalized>},
    {"p13_causal_none_elu_ragged", check_causal<EluPlusOne, Unnormalized>},
    {"p14_causal_paper_elu", check_causal<EluPlusOne, MixedKeySum>},
    {"p15_causal_none_rope_gqa", check_causal<Relu, Unnormalized, HalfSplitRotary>},
    {"p16_causal_paper_elu_rope", check_causal<EluPlusOne, MixedKeySum, HalfSplitRotary>},
    {"p17_paper_perheadmix", check<Relu, Blocks1D, MixedKeySum>},
    {"p18_causal_none_perheadmix", check_causal<EluPlusOne, Unnormalized>},
    {"p19_exp_paper", check<Exp, Blocks1D, MixedKeySum>},
    {"p20_softmax_paper", check<Softmax, Blocks2D, MixedKeySum>},
    {"p21_causal_hedgehog_paper", check_causal<Hedgehog, MixedKeySum>},
    {"p22_sqrelu_none", check<SquaredRelu, Blocks2D, Unnormalized>},
    {"p23_dpfp_none", check<Dpfp, Blocks1D, Unnormalized>},
    {"p24_favor_paper", check<Favor<double>, Blocks1D, MixedKeySum>},
    {"p25_M1_paper_is_linear_attention", check<Relu, Blocks2D, MixedKeySum>},
    {"p26_uniform_mix_paper", check<Relu, Blocks2D, MixedKeySum>},
    {"p27_identity_mix_none_blocklocal", check<Relu, Blocks2D, Unnormalized>},
    {"p28_2d_paper_large", check<Relu, Blocks2D, MixedKeySum>},
};

}  // namespace

TEST_CASE("golden: every case of attention agrees through the Eigen layer", "[golden]") {
  std::ifstream index(golden / "index.txt");
  std::size_t run = 0;
  for (std::string name; index >> name;) {
    const replay::CaseFile file(golden / name);
    if (replay::read_kind(file) != replay::Kind::attention) continue;
    const AttentionCase c = replay::read_attention_case(file);
    INFO(name);
    const auto check = checks.find(name);
    REQUIRE(check != checks.end());
    check->second(name, c);
    ++run;
  }
  CHECK(run == 28);
  CHECK(checks.size() == run);
}
