// SPDX-License-Identifier: MIT
// Every feature map against its formula written out here, its derivative by finite differences, and
// exact values at kinks, at 0 and at NaN.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <mhla/policy/feature_map.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

using mhla::Index;
using mhla::Span;
using namespace mhla::testing;

static_assert(mhla::ElementwiseFeatureMap<mhla::Identity>);
static_assert(mhla::ElementwiseFeatureMap<mhla::Relu>);
static_assert(mhla::ElementwiseFeatureMap<mhla::SquaredRelu>);
static_assert(mhla::ElementwiseFeatureMap<mhla::EluPlusOne>);
static_assert(mhla::ElementwiseFeatureMap<mhla::Exp>);
static_assert(mhla::RowwiseFeatureMap<mhla::Softmax>);
static_assert(mhla::RowwiseFeatureMap<mhla::Hedgehog>);
static_assert(mhla::RowwiseFeatureMap<mhla::Dpfp>);
static_assert(mhla::RowwiseFeatureMap<mhla::Favor<float>>);
static_assert(mhla::RowwiseFeatureMap<mhla::Favor<double>>);
static_assert(!mhla::FeatureMap<int>);
static_assert(mhla::Relu{}.epsilon == 1e-6 && mhla::SquaredRelu{}.epsilon == 1e-6);
static_assert(std::is_same_v<decltype(mhla::Relu{}.value(1.0L)), long double>);

namespace {

using Row = std::vector<long double>;
using Formula = std::function<Row(const Row&)>;

Row each(const Row& x, const std::function<long double(long double)>& f) {
  Row y;
  for (const long double element : x) y.push_back(f(element));
  return y;
}

Row softmax(const Row& x) {
  long double sum = 0;
  for (const long double element : x) sum += std::exp(element);
  return each(x, [&](long double element) { return std::exp(element) / sum; });
}

// phi of a row, whichever kind the map is.
template <class Map, class T, class Allocator>
std::vector<T> features(const Map& map, const std::vector<T, Allocator>& x) {
  std::vector<T> y(static_cast<std::size_t>(mhla::feature_dim(map, static_cast<Index>(x.size()))));
  if constexpr (mhla::RowwiseFeatureMap<Map>) {
    map.value(Span<const T>{x.data(), static_cast<Index>(x.size())},
              Span<T>{y.data(), static_cast<Index>(y.size())});
  } else {
    for (std::size_t c = 0; c < x.size(); ++c) y[c] = map.value(x[c]);
  }
  return y;
}

// J^T grad of a row.
template <class Map, class T, class Allocator>
std::vector<T> adjoint(const Map& map, const std::vector<T, Allocator>& x,
                       const std::vector<T, Allocator>& grad) {
  std::vector<T> result(x.size());
  if constexpr (mhla::RowwiseFeatureMap<Map>) {
    map.vjp(Span<const T>{x.data(), static_cast<Index>(x.size())},
            Span<const T>{grad.data(), static_cast<Index>(grad.size())},
            Span<T>{result.data(), static_cast<Index>(result.size())});
  } else {
    for (std::size_t c = 0; c < x.size(); ++c) result[c] = map.derivative(x[c]) * grad[c];
  }
  return result;
}

template <class T, class Map>
void check_value(const Map& map, const Formula& formula, Index key_dim) {
  const auto x = random_tensor<T>(Normal{}, 5, key_dim);
  const std::vector<T> got = features(map, x.elements());
  const Row expected = formula(Row(x.elements().begin(), x.elements().end()));
  REQUIRE(got.size() == expected.size());
  for (std::size_t c = 0; c < got.size(); ++c) {
    INFO("feature " << c << " of key_dim " << key_dim << ": got " << got[c] << ", expected "
                    << expected[c]);
    CHECK(std::abs(static_cast<double>(got[c] - expected[c])) <=
          ::tolerance::policy_value<T> * static_cast<double>(std::abs(expected[c])));
  }
}

template <class Map>
void check_adjoint(const Map& map, Index key_dim) {
  auto x = random_tensor<double>(AwayFromKink{}, 6, key_dim);
  const auto grad = random_tensor<double>(Normal{}, 7, mhla::feature_dim(map, key_dim));
  HostTensor<double, 1> claimed(key_dim);
  claimed.elements() = adjoint(map, x.elements(), grad.elements());
  const auto loss = [&] {
    const std::vector<double> y = features(map, x.elements());
    double sum = 0;
    for (std::size_t c = 0; c < y.size(); ++c) sum += y[c] * grad.elements()[c];
    return sum;
  };
  const auto check =
      mhla::testing::check_gradient(loss, 8, 4, mhla::testing::differentiate(x, claimed));
  INFO("key_dim " << key_dim << ": " << check);
  CHECK(check.error <= ::tolerance::gradient_check);
}

template <class Map>
void check_map(const Map& map, const Formula& formula) {
  for (const Index key_dim : {1, 2, 5, 8}) {
    check_value<float>(map, formula, key_dim);
    check_value<double>(map, formula, key_dim);
    check_value<long double>(map, formula, key_dim);
    check_adjoint(map, key_dim);
  }
  CHECK(features(map, std::vector<double>{}).empty());
}

}  // namespace

TEST_CASE("feature_map: element-wise maps are their formulas, and derivatives theirs", "[policy]") {
  SECTION("identity") {
    check_map(mhla::Identity{}, [](const Row& x) { return x; });
  }
  SECTION("relu") {
    for (const double epsilon : {0.0, 1e-6, 0.5})
      check_map(mhla::Relu{.epsilon = epsilon}, [=](const Row& x) {
        return each(x, [=](long double e) { return std::max(e, 0.0L) + epsilon; });
      });
  }
  SECTION("squared relu") {
    for (const double epsilon : {0.0, 1e-6, 0.5})
      check_map(mhla::SquaredRelu{.epsilon = epsilon}, [=](const Row& x) {
        return each(x, [=](long double e) { return std::pow(std::max(e, 0.0L), 2) + epsilon; });
      });
  }
  SECTION("elu + 1") {
    check_map(mhla::EluPlusOne{}, [](const Row& x) {
      return each(x, [](long double e) { return e > 0 ? e + 1 : std::exp(e); });
    });
  }
  SECTION("exp") {
    check_map(mhla::Exp{},
              [](const Row& x) { return each(x, [](long double e) { return std::exp(e); }); });
  }
}

TEST_CASE("feature_map: row-wise maps are their formulas, and adjoints theirs", "[policy]") {
  SECTION("softmax") { check_map(mhla::Softmax{}, softmax); }
  SECTION("hedgehog: softmax([2x, -2x])") {
    CHECK(mhla::Hedgehog{}.feature_dim(5) == 10);
    check_map(mhla::Hedgehog{}, [](const Row& x) {
      Row both = each(x, [](long double e) { return 2 * e; });
      for (const long double e : x) both.push_back(-2 * e);
      return softmax(both);
    });
  }
  SECTION("dpfp: y o roll(y, j), j = 1..nu, y = [relu(x), relu(-x)]") {
    for (const std::size_t nu : {1u, 2u, 4u, 7u}) {
      CHECK(mhla::Dpfp{.nu = static_cast<Index>(nu)}.feature_dim(5) == static_cast<Index>(10 * nu));
      check_map(mhla::Dpfp{.nu = static_cast<Index>(nu)}, [=](const Row& x) {
        Row y = each(x, [](long double e) { return std::max(e, 0.0L); });
        for (const long double e : x) y.push_back(std::max(-e, 0.0L));
        Row phi;
        for (std::size_t j = 1; j <= nu; ++j)
          for (std::size_t c = 0; c < y.size(); ++c)  // roll(y, j)[c] = y[c - j], around the end
            phi.push_back(y[c] * y[(c + j * (y.size() - 1)) % y.size()]);
        return phi;
      });
    }
  }
}

TEST_CASE("feature_map: favor is exp(W x^ - |x^|^2 / 2) / sqrt(m), x^ = x d^(-1/4)", "[policy]") {
  const Index m = 6;
  for (const Index key_dim : {1, 5, 8}) {
    const auto projection = random_tensor<float>(Normal{}, 9, m, key_dim);
    const Formula formula = [&](const Row& x) {
      const long double root = std::pow(static_cast<long double>(key_dim), -0.25L);
      long double squares = 0;
      for (const long double e : x) squares += e * root * e * root;
      Row phi;
      for (Index r = 0; r < m; ++r) {
        long double inner = 0;
        for (Index c = 0; c < key_dim; ++c)
          inner += projection(r, c) * x[static_cast<std::size_t>(c)] * root;
        phi.push_back(std::exp(inner - squares / 2) / std::sqrt(static_cast<long double>(m)));
      }
      return phi;
    };
    const mhla::Favor<float> favor{projection.view()};
    CHECK(favor.feature_dim(key_dim) == m);
    check_value<float>(favor, formula, key_dim);
    check_value<double>(favor, formula, key_dim);
    check_value<long double>(favor, formula, key_dim);
    check_adjoint(favor, key_dim);

    // The projection may lie transposed in memory.
    HostTensor<double, 2> transposed(key_dim, m);
    for (Index r = 0; r < m; ++r)
      for (Index c = 0; c < key_dim; ++c) transposed(c, r) = projection(r, c);
    const mhla::Favor<double> strided{{transposed.view().data, {m, key_dim}, {1, m}}};
    check_value<double>(strided, formula, key_dim);
    check_adjoint(strided, key_dim);
  }
}

TEST_CASE("feature_map: NaN stays NaN", "[policy]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(mhla::Identity{}.value(nan)));
  CHECK(std::isnan(mhla::Relu{}.value(nan)));
  CHECK(std::isnan(mhla::SquaredRelu{}.value(nan)));
  CHECK(std::isnan(mhla::EluPlusOne{}.value(nan)));
  CHECK(std::isnan(mhla::Exp{}.value(nan)));
  const auto projection = random_tensor<double>(Normal{}, 9, 4, 3);
  for (const std::vector<double>& x :
       {std::vector<double>{nan, 1, 2}, std::vector<double>{1, 2, nan}}) {
    for (const double feature : features(mhla::Softmax{}, x)) CHECK(std::isnan(feature));
    for (const double feature : features(mhla::Hedgehog{}, x)) CHECK(std::isnan(feature));
    for (const double feature : features(mhla::Favor<double>{projection.view()}, x))
      CHECK(std::isnan(feature));
    int nans = 0;
    for (const double feature : features(mhla::Dpfp{.nu = 1}, x)) nans += std::isnan(feature);
    CHECK(nans == 4);  // both rectifications, each in two products
  }
}

TEST_CASE("feature_map: large inputs do not overflow where the formula is bounded", "[policy]") {
  const std::vector<float> x{1000, -2000, 999};
  const auto soft = features(mhla::Softmax{}, x);
  CHECK(soft[0] > 0.7f);
  CHECK(soft[1] == 0);
  const auto hedgehog = features(mhla::Hedgehog{}, x);
  CHECK(hedgehog[4] == 1);  // exp(-2 x[1]) is the largest
  CHECK(hedgehog[0] == 0);
  for (const float gradient : adjoint(mhla::Hedgehog{}, x, std::vector<float>(6, 1.0f)))
    CHECK(std::isfinite(gradient));
}

namespace {

// What a user writes: sigmoid by element, and the row divided by its 1-norm.
struct Sigmoid {
  template <class T>
  T value(T x) const {
    return T(1) / (T(1) + std::exp(-x));
  }
  template <class T>
  T derivative(T x) const {
    return value(x) * (T(1) - value(x));
  }
};

struct ShareOfRow {
  Index feature_dim(Index key_dim) const { return key_dim; }
  template <class T>
  void value(Span<const T> in, Span<T> out) const {
    const T norm = norm_of(in);
    for (Index c = 0; c < in.size; ++c) out[c] = std::abs(in[c]) / norm;
  }
  template <class T>
  void vjp(Span<const T> in, Span<const T> grad, Span<T> out) const {
    const T norm = norm_of(in);
    T inner = 0;
    for (Index c = 0; c < in.size; ++c) inner += grad[c] * std::abs(in[c]) / norm;
    for (Index c = 0; c < in.size; ++c) out[c] = (in[c] < 0 ? -1 : 1) * (grad[c] - inner) / norm;
  }

 private:
  template <class T>
  static T norm_of(Span<const T> in) {
    T sum = 0;
    for (const T& x : in) sum += std::abs(x);
    return sum;
  }
};

struct ValueOnly {
  template <class T>
  T value(T x) const {
    return x;
  }
};

}  // namespace

static_assert(mhla::ElementwiseFeatureMap<Sigmoid>);
static_assert(mhla::RowwiseFeatureMap<ShareOfRow>);
static_assert(!mhla::FeatureMap<ValueOnly>);

TEST_CASE("feature_map: a user's own maps satisfy the concepts", "[policy]") {
  check_map(Sigmoid{}, [](const Row& x) {
    return each(x, [](long double e) { return 1 / (1 + std::exp(-e)); });
  });
  check_map(ShareOfRow{}, [](const Row& x) {
    long double norm = 0;
    for (const long double e : x) norm += std::abs(e);
    return each(x, [=](long double e) { return std::abs(e) / norm; });
  });
}
