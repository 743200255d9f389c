// SPDX-License-Identifier: MIT
// Law 10: it makes no difference how often a kv head is stored, nor where elements lie in memory.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mhla/testing/comparison.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;
using mhla::testing::bitwise_equal;

/// A tensor spread over memory of its own: axes in a random order, some of them backwards, with
/// gaps that hold NaN.
template <int Rank>
class Scattered {
 public:
  template <class U>
  Scattered(const TensorView<U, Rank>& like, Draw& draw) {
    std::vector<int> order(TensorView<double, Rank>::axes);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i], order[static_cast<std::size_t>(draw.between(0, static_cast<Index>(i)))]);
    Index stride = draw.between(1, 2);
    Index origin = 3;
    for (const int axis : order) {
      view_.extent[axis] = like.extent[axis];
      view_.stride[axis] = draw.once_in(2) ? stride : -stride;
      if (view_.stride[axis] < 0) origin += stride * (like.extent[axis] - 1);
      stride = stride * like.extent[axis] + draw.between(0, 3);
    }
    memory_.assign(static_cast<std::size_t>(stride + 6), poison);
    view_.data = memory_.data() + origin;
  }
  explicit Scattered(const HostTensor<double, Rank>& from, Draw& draw)
      : Scattered(from.view(), draw) {
    copy(from.view(), view_);
  }
  Scattered(const Scattered&) = delete;
  Scattered& operator=(const Scattered&) = delete;

  const TensorView<double, Rank>& view() const { return view_; }

  /// Whether the elements, and nothing else, hold the bits of `wanted`.
  bool holds(const HostTensor<double, Rank>& wanted) {
    if (!bitwise_equal(view_, wanted.view())) return false;
    mhla::testing::for_each_element([](double& x) { x = poison; }, view_);
    return std::all_of(memory_.begin(), memory_.end(), [](double x) { return std::isnan(x); });
  }

 private:
  static constexpr double poison = std::numeric_limits<double>::quiet_NaN();

  static void copy(const TensorView<const double, Rank>& from, const TensorView<double, Rank>& to) {
    mhla::testing::for_each_element([](double& x, const double& y) { x = y; }, to, from);
  }

  std::vector<double> memory_;
  TensorView<double, Rank> view_;
};

/// [batch, heads, tokens, dim] stored as [batch, tokens, heads, dim].
HostTensor<double, 4> tokens_first(const HostTensor<double, 4>& x) {
  HostTensor<double, 4> stored(x.extent(0), x.extent(2), x.extent(1), x.extent(3));
  mhla::testing::for_each_element([](double& to, const double& from) { to = from; },
                                  mhla::tokens_first(stored.view()), x.view());
  return stored;
}

/// Every head of `x` as often as a group has query heads.
HostTensor<double, 4> repeated(const HostTensor<double, 4>& x, Index group_size) {
  HostTensor<double, 4> result(x.extent(0), x.extent(1) * group_size, x.extent(2), x.extent(3));
  for (Index n = 0; n < result.extent(0); ++n)
    for (Index h = 0; h < result.extent(1); ++h)
      for (Index t = 0; t < result.extent(2); ++t)
        for (Index c = 0; c < result.extent(3); ++c)
          result(n, h, t, c) = x(n, h / group_size, t, c);
  return result;
}

/// The adjoint of `repeated`: the heads of a group are added up.
HostTensor<double, 4> gathered(const HostTensor<double, 4>& x, Index group_size) {
  HostTensor<double, 4> sum(x.extent(0), x.extent(1) / group_size, x.extent(2), x.extent(3));
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index h = 0; h < x.extent(1); ++h)
      for (Index t = 0; t < x.extent(2); ++t)
        for (Index c = 0; c < x.extent(3); ++c) sum(n, h / group_size, t, c) += x(n, h, t, c);
  return sum;
}

}  // namespace

TEST_CASE("law 10: a shared kv head gives what its copies give, and collects their gradients",
          "[laws][layout]") {
  for_each_case({.grouped = true}, 1, anything, [](const Variant& variant, const Case& random) {
    const Index group_size = random.shape.group_size();
    REQUIRE(group_size > 1);
    Case copies = random;
    copies.k = repeated(random.k, group_size);
    copies.v = repeated(random.v, group_size);
    copies.shape.kv_heads = random.shape.heads;
    Outcome<double> wanted = run(variant, copies);
    wanted.gradients.k = gathered(wanted.gradients.k, group_size);
    wanted.gradients.v = gathered(wanted.gradients.v, group_size);
    require_near(run(variant, random), wanted, magnitudes(variant, random, wanted.y), 2);
  });
}

TEST_CASE("law 10: a shared mix gives what its copies give, and collects their gradients",
          "[laws][layout]") {
  for_each_case({}, 1, anything, [](const Variant& variant, Case random) {
    const Shape& s = random.shape;
    HostTensor<double, 3> shared(1, s.mix_query_blocks, s.mix_key_blocks);
    HostTensor<double, 3> copied(s.heads, s.mix_query_blocks, s.mix_key_blocks);
    const auto for_each = [&](auto&& f) {
      for (Index h = 0; h < s.heads; ++h)
        for (Index i = 0; i < s.mix_query_blocks; ++i)
          for (Index b = 0; b < s.mix_key_blocks; ++b) f(h, i, b);
    };
    for_each([&](Index h, Index i, Index b) {
      copied(h, i, b) = shared(0, i, b) = random.mix(0, i, b);
    });
    random.mix = copied;
    Outcome<double> wanted = run(variant, random);
    HostTensor<double, 3> sum(1, s.mix_query_blocks, s.mix_key_blocks);
    for_each([&](Index h, Index i, Index b) { sum(0, i, b) += wanted.gradients.mix(h, i, b); });
    wanted.gradients.mix = sum;
    random.mix = shared;
    require_near(run(variant, random), wanted, magnitudes(variant, random, wanted.y), 2);
  });
}

TEST_CASE("law 10: strided tensors give the bits of contiguous ones", "[laws][layout]") {
  for_each_case({}, 2, anything, [](const Variant& variant, const Case& random) {
    const Outcome<double> wanted = run(variant, random);
    Draw draw(random.seed);
    const Scattered<4> q(random.q, draw), k(random.k, draw), v(random.v, draw), dy(random.dy, draw);
    const Scattered<3> mix(random.mix, draw);
    const Operands<double> operands{q.view(), k.view(), v.view(), mix.view()};
    const Backend<double>& backend = variant.in_double();

    Scattered<4> y(wanted.y.view(), draw);
    backend.forward(random.setting, operands, y.view());
    REQUIRE(y.holds(wanted.y));

    Scattered<4> dq(random.q.view(), draw), dk(random.k.view(), draw), dv(random.v.view(), draw);
    Scattered<3> dmix(random.mix.view(), draw);
    backend.backward(random.setting, operands, dy.view(),
                     {dq.view(), dk.view(), dv.view(), dmix.view()}, Update::overwrite);
    REQUIRE(dq.holds(wanted.gradients.q));
    REQUIRE(dk.holds(wanted.gradients.k));
    REQUIRE(dv.holds(wanted.gradients.v));
    REQUIRE(dmix.holds(wanted.gradients.mix));
  });
}

TEST_CASE("law 10: [batch, tokens, heads, dim] gives the bits of [batch, heads, tokens, dim]",
          "[laws][layout]") {
  for_each_case({}, 2, anything, [](const Variant& variant, const Case& random) {
    const Outcome<double> wanted = run(variant, random);
    const auto q = tokens_first(random.q);
    const auto k = tokens_first(random.k);
    const auto v = tokens_first(random.v);
    const auto dy = tokens_first(random.dy);
    const Operands<double> operands{mhla::tokens_first(q.view()), mhla::tokens_first(k.view()),
                                    mhla::tokens_first(v.view()), random.mix.view()};
    auto y = HostTensor<double, 4>::like(dy.view());
    variant.in_double().forward(random.setting, operands, mhla::tokens_first(y.view()));
    REQUIRE(same_bits(y, tokens_first(wanted.y)));

    auto dq = HostTensor<double, 4>::like(q.view());
    auto dk = HostTensor<double, 4>::like(k.view());
    auto dv = HostTensor<double, 4>::like(v.view());
    auto dmix = HostTensor<double, 3>::like(random.mix.view());
    variant.in_double().backward(random.setting, operands, mhla::tokens_first(dy.view()),
                                 {mhla::tokens_first(dq.view()), mhla::tokens_first(dk.view()),
                                  mhla::tokens_first(dv.view()), dmix.view()},
                                 Update::overwrite);
    REQUIRE(same_bits(dq, tokens_first(wanted.gradients.q)));
    REQUIRE(same_bits(dk, tokens_first(wanted.gradients.k)));
    REQUIRE(same_bits(dv, tokens_first(wanted.gradients.v)));
    REQUIRE(same_bits(dmix, wanted.gradients.mix));
  });
}

TEST_CASE("law 10: an axis of stride 0 gives the bits of its copies", "[laws][layout]") {
  for_each_case({}, 2, anything, [](const Variant& variant, const Case& random) {
    // dy of a sum over all outputs is one number; k is one for all of the batch; v for all heads.
    Case copies = random;
    std::fill(copies.dy.elements().begin(), copies.dy.elements().end(), 1.5);
    TensorView<const double, 4> dy = random.dy.view();
    const double one_and_a_half = 1.5;
    dy.data = &one_and_a_half;
    for (Index& stride : dy.stride) stride = 0;
    TensorView<const double, 4> k = random.k.view();
    k.stride[0] = 0;
    TensorView<const double, 4> v = random.v.view();
    v.stride[1] = 0;
    copies.k = mhla::testing::converted<double>(k);
    copies.v = mhla::testing::converted<double>(v);
    const Outcome<double> wanted = run(variant, copies);

    const Operands<double> operands{random.q.view(), k, v, random.mix.view()};
    REQUIRE(same_bits(output_of(variant, random.setting, operands), wanted.y));
    require_same_bits(gradients_of(variant, random.setting, operands, dy), wanted.gradients);
  });
}
