// SPDX-License-Identifier: MIT
// A kernel of one's own, held to the library's oracle.
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>
#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#else
#include <catch2/catch.hpp>
#endif

// The kernel: one head, Relu, blocks of `block` tokens, without a normalizer.
// q, k [tokens, key_dim], v, y [tokens, value_dim], mix [blocks, blocks].
void my_attention(const float* q, const float* k, const float* v, const float* mix, float* y,
                  int tokens, int key_dim, int value_dim, int block) {
  const auto relu = [](float x) { return x > 0 ? x : 0; };
  const int blocks = (tokens + block - 1) / block;
  const int size = key_dim * value_dim;
  std::vector<float> summaries(static_cast<std::size_t>(blocks * size)), mixed(summaries.size());
  for (int j = 0; j < tokens; ++j)
    for (int r = 0; r < key_dim; ++r)
      for (int c = 0; c < value_dim; ++c)
        summaries[static_cast<std::size_t>(j / block * size + r * value_dim + c)] +=
            relu(k[j * key_dim + r]) * v[j * value_dim + c];
  for (int i = 0; i < blocks; ++i)
    for (int b = 0; b < blocks; ++b)
      for (int e = 0; e < size; ++e)
        mixed[static_cast<std::size_t>(i * size + e)] +=
            mix[i * blocks + b] * summaries[static_cast<std::size_t>(b * size + e)];
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < value_dim; ++c) {
      y[t * value_dim + c] = 0;
      for (int r = 0; r < key_dim; ++r)
        y[t * value_dim + c] +=
            relu(q[t * key_dim + r]) *
            mixed[static_cast<std::size_t>(t / block * size + r * value_dim + c)];
    }
}

TEST_CASE("my kernel agrees with the definition of MHLA") {
  namespace testing = mhla::testing;
  // 37 tokens in blocks of 8, the last one of 5; sizes all different, so that no swapped axis
  // passes
  const auto q = testing::random_tensor<float>(testing::Normal{}, 1, 1, 1, 37, 6);
  const auto k = testing::random_tensor<float>(testing::Normal{}, 2, 1, 1, 37, 6);
  const auto v = testing::random_tensor<float>(testing::Normal{}, 3, 1, 1, 37, 7);
  const auto mix = testing::random_tensor<float>(testing::Uniform{}, 4, 1, 5, 5);
  testing::HostTensor<float, 4> y(1, 1, 37, 7);
  my_attention(q.view().data, k.view().data, v.view().data, mix.view().data, y.view().data, 37, 6,
               7, 8);

  // The oracle, in double on the same numbers.
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::Unnormalized>
      attention{.feature_map = {.epsilon = 0}, .blocks = {.block = 8}};
  testing::HostTensor<double, 4> expected(1, 1, 37, 7);
  const auto in_double = [](const auto& x) { return testing::converted<double>(x.view()); };
  mhla::reference::mhla_forward(attention, in_double(q), in_double(k), in_double(v), in_double(mix),
                                expected.view());

  const auto error = testing::compare(y.view(), expected.view());
  INFO(error);
  CHECK(error.rms_ratio <= testing::tolerance::forward_rms<float>);
  CHECK(error.max_ratio <= testing::tolerance::forward_max<float>);
}
