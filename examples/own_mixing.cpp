// SPDX-License-Identifier: MIT
// A mixing of one's own, and the check that its gradient is right.
#include <algorithm>
#include <cstdio>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/random_tensor.hpp>

// A block sees `reach` blocks on either side, by weights of the distance: a short convolution over
// block summaries. S~_i = sum over |d| <= reach of w_d S_(i+d); mix [.., 1, 2 reach + 1].
struct LocalMixing {
  mhla::Index reach = 1;
  static constexpr bool causal = false;

  MHLA_HOST_DEVICE mhla::Index width() const { return 2 * reach + 1; }
  void require_parameters(const mhla::MixingLayout&, mhla::Index rows, mhla::Index columns) const {
    if (rows != 1 || columns != width())
      throw mhla::ShapeError({"LocalMixing: mix is [.., 1, ", width(), "]"});
  }

  // S of the blocks, then S~ of the blocks: nothing in between.
  mhla::Index num_rows(const mhla::MixingLayout& layout) const { return 2 * layout.key_blocks(); }
  MHLA_HOST_DEVICE mhla::Index num_coefficients(const mhla::MixingLayout& layout) const {
    return layout.key_blocks() * width();
  }
  // One product for each block: a row of 2 reach + 1 coefficients, or fewer at the ends.
  template <class Visit>
  void for_each_product(const mhla::MixingLayout& layout, Visit&& visit) const {
    const mhla::Index blocks = layout.key_blocks();
    for (mhla::Index i = 0; i < blocks; ++i) {
      const mhla::Index first = std::max(mhla::Index{0}, i - reach);
      const mhla::Index end = std::min(blocks, i + reach + 1);
      visit(mhla::MixingProduct{.coefficient = i * width() + first - (i - reach),
                                .stride = width(),
                                .out = blocks + i,
                                .in = first,
                                .rows = 1,
                                .columns = end - first});
    }
  }

  // Where the coefficients come from, and the way back: on a GPU, too.
  template <class A>
  MHLA_HOST_DEVICE void coefficients(const mhla::MixingLayout& layout,
                                     const mhla::TensorView<const A, 2>& mix,
                                     const mhla::Span<A>& to) const {
    for (mhla::Index i = 0; i < num_coefficients(layout); ++i) to[i] = mix(0, i % width());
  }
  template <class A>
  MHLA_HOST_DEVICE void vjp(const mhla::MixingLayout& layout, const mhla::TensorView<const A, 2>&,
                            const mhla::Span<const A>& grad,
                            const mhla::TensorView<A, 2>& grad_mix) const {
    for (mhla::Index i = 0; i < num_coefficients(layout); ++i) grad_mix(0, i % width()) += grad[i];
  }
};
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Bidirectional,
                                  mhla::MixedKeySum, mhla::NoRotation, LocalMixing>;

int main() {
  namespace testing = mhla::testing;
  const Attention attention{.blocks = {.block = 4}, .mixing = {.reach = 2}};
  const mhla::SerialExecutor serial;

  // 2 heads, each with weights of its own; 29 tokens in 8 blocks, the last one of 1
  auto q = testing::random_tensor<double>(testing::AwayFromKink{}, 1, 1, 2, 29, 6);
  auto k = testing::random_tensor<double>(testing::AwayFromKink{}, 2, 1, 2, 29, 6);
  auto v = testing::random_tensor<double>(testing::Normal{}, 3, 1, 2, 29, 7);
  auto dy = testing::random_tensor<double>(testing::Normal{}, 4, 1, 2, 29, 7);
  auto mix = testing::random_tensor<double>(testing::Uniform{0.5f, 1.5f}, 5, 2, 1, 5);
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
