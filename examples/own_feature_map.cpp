// SPDX-License-Identifier: MIT
// A feature map of one's own, and the check that its gradient is right.
#include <cmath>
#include <cstdio>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/random_tensor.hpp>

// phi(x) = log(1 + exp(x)): smooth and positive.
struct Softplus {
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    using std::exp, std::log1p;
    return x > T(0) ? x + log1p(exp(-x)) : log1p(exp(x));  // so that exp cannot overflow
  }
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    using std::exp;
    return T(1) / (T(1) + exp(-x));
  }
};
using Attention = mhla::Attention<Softplus, mhla::Blocks1D>;

int main() {
  namespace testing = mhla::testing;
  const Attention attention{.blocks = {.block = 8}};
  const mhla::SerialExecutor serial;

  // 2 heads; 29 tokens in 4 blocks, the last one of 5
  auto q = testing::random_tensor<double>(testing::Normal{}, 1, 1, 2, 29, 6);
  auto k = testing::random_tensor<double>(testing::Normal{}, 2, 1, 2, 29, 6);
  auto v = testing::random_tensor<double>(testing::Normal{}, 3, 1, 2, 29, 7);
  auto dy = testing::random_tensor<double>(testing::Normal{}, 4, 1, 2, 29, 7);
  auto mix = testing::random_tensor<double>(testing::Uniform{}, 5, 1, 4, 4);
  auto dq = q, dk = k, dv = v, y = dy;
  auto dmix = mix;

  const mhla::Shape shape = mhla::shape_of(q.view(), k.view(), v.view(), mix.view());
  const mhla::Workspace workspace(mhla::backward_workspace_size<double>(attention, shape, serial));
  mhla::backward_into(attention, serial, q.view(), k, v, mix, dy,
                      {dq.view(), dk.view(), dv.view(), dmix.view()}, mhla::Update::overwrite,
                      workspace);

  const auto loss = [&] {  // <dy, attention(q, k, v, mix)>, whose gradients these are
    mhla::forward_into(attention, serial, q, k, v, mix, y.view(), workspace);
    double sum = 0;
    for (std::size_t i = 0; i < y.elements().size(); ++i) sum += y.elements()[i] * dy.elements()[i];
    return sum;
  };
  const testing::GradientCheck check = testing::check_gradient(
      loss, 6, 8, testing::differentiate(q, dq), testing::differentiate(k, dk),
      testing::differentiate(v, dv), testing::differentiate(mix, dmix));
  std::printf("%s\n", check.report().c_str());
  return check.error <= 1e-11 ? 0 : 1;
}
