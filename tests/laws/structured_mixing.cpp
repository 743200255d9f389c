// SPDX-License-Identifier: MIT
// A call with a structured mixing is the call with the matrix that its parameters stand for:
// forward, gradients by the chain rule, decoding; and its gradients are derivatives.
#include <algorithm>
#include <mhla/decoding.hpp>
#include <mhla/policy/expand_mixing.hpp>
#include <mhla/reference/mixing.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <string>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"
#include "tests/support/backend.hpp"
#include "tests/variants/attention.hpp"

namespace {

using namespace laws;
using mhla::testing::differentiate;

template <class Map, class C, class N, class R>
using Recurrent = mhla::Attention<Map, mhla::Blocks1D, C, N, R, mhla::RecurrentMixing>;
template <class Map, class G, class N, class R>
using Separable = mhla::Attention<Map, G, mhla::Bidirectional, N, R, mhla::SeparableMixing>;

// Every map of a kind, causality, number of axes and normalizer that a structured mixing can have.
#define STRUCTURED_VARIANTS                                                               \
  (Recurrent<mhla::EluPlusOne, mhla::Causal, mhla::MixedKeySum, mhla::HalfSplitRotary>),  \
      (Recurrent<mhla::Relu, mhla::Causal, mhla::Unnormalized, mhla::NoRotation>),        \
      (Recurrent<mhla::Exp, mhla::BlockCausal, mhla::Unnormalized, mhla::NoRotation>),    \
      (Separable<mhla::EluPlusOne, mhla::Blocks2D, mhla::MixedKeySum, mhla::NoRotation>), \
      (Separable<mhla::Softmax, mhla::Blocks2D, mhla::MixedKeySum, mhla::NoRotation>),    \
      (Separable<mhla::Relu, mhla::Blocks3D, mhla::Unnormalized, mhla::AxialRotary>)

// Of a variant with a dense matrix instead.
template <class V>
Policies dense_policies_of() {
  Policies policies = variants::policies_of<V>();
  policies.mixing = variants::Mixing::dense;
  return policies;
}
const Variant& dense_variant(const Policies& policies) {
  for (const Variant& variant : product())
    if (variant.policies() == policies) return variant;
  FAIL("the build lacks " << policies);
  throw std::logic_error("not reached");
}

// A case with parameters, and the same with the dense matrix.
template <class V>
struct StructuredCase {
  V attention;
  Case structured;
  Case dense;

  StructuredCase(const Wishes& wishes, std::uint64_t seed)
      : attention(),
        structured(random_case(dense_policies_of<V>(), wishes, seed)),
        dense(structured) {
    Draw draw(seed + 1);
    attention = variants::attention_of<V>(call_of(structured.setting));
    Shape& s = structured.shape;
    if constexpr (requires { attention.mixing.states; }) {
      attention.mixing.states = draw.between(1, 4);
      s.mix_query_blocks = draw.once_in(3) ? 1 : s.mix_query_blocks + draw.between(0, 2);
      s.mix_key_blocks = attention.mixing.columns();
    } else {
      attention.mixing.rank = draw.between(1, 3);
      s.mix_query_blocks = attention.mixing.rank;
      s.mix_key_blocks = attention.mixing.columns(
          mhla::MixingLayout::of(V::GeometryType::rank, structured.setting.queries,
                                 structured.setting.keys, mhla::Sight::all));
    }
    structured.mix = HostTensor<double, 3>(s.mix_heads, s.mix_query_blocks, s.mix_key_blocks);
    mhla::testing::fill_random(mhla::testing::Uniform{0.25f, 1}, draw.bits(),
                               structured.mix.view());
    mhla::expand(attention, s, structured.mix.view(), dense.mix.view());
  }

  HostTensor<double, 4> output() const {
    HostTensor<double, 4> y = structured.dy;
    poison(y);
    const mhla::Workspace workspace = poisoned_workspace(
        mhla::forward_workspace_size<double>(attention, structured.shape, executor));
    mhla::forward_into(attention, executor, structured.q, structured.k, structured.v,
                       structured.mix, y.view(), workspace);
    return y;
  }
  Outcome<double> outcome() const {
    Outcome<double> found{output(), zero_gradients<double>(structured.operands())};
    auto& grad = found.gradients;
    for (HostTensor<double, 4>* gradient : {&grad.q, &grad.k, &grad.v}) poison(*gradient);
    poison(grad.mix);
    const mhla::Workspace workspace = poisoned_workspace(
        mhla::backward_workspace_size<double>(attention, structured.shape, executor));
    mhla::backward_into(attention, executor, structured.q.view(), structured.k, structured.v,
                        structured.mix, structured.dy, grad.views(), Update::overwrite, workspace);
    return found;
  }
  // The gradient in the parameters that follows from that in the matrix; with the sizes of the
  // matrix's terms, as the parameters are positive, the sizes of the parameters' terms.
  template <class T>
  HostTensor<T, 3> by_chain_rule(const HostTensor<T, 3>& grad_dense) const {
    const auto mix = mhla::testing::converted<T>(structured.mix);
    HostTensor<T, 3> grad(mix.extent(0), mix.extent(1), mix.extent(2));
    const mhla::Problem problem = mhla::checked_problem(attention, structured.shape);
    for (Index h = 0; h < mix.extent(0); ++h) {
      mhla::reference::Matrix<T> dm(problem.query_blocks, problem.key_blocks);
      for (Index i = 0; i < dm.rows(); ++i)
        for (Index b = 0; b < dm.columns(); ++b) dm(i, b) = grad_dense(h, i, b);
      mhla::reference::add_mixing_gradient(attention, problem, mhla::matrix_view(mix.view(), h), dm,
                                           mhla::matrix_view(grad.view(), h));
    }
    return grad;
  }

  static constexpr mhla::SerialExecutor executor{};
};

// Calls law(case, dense variant) for some random cases of V.
template <class V, class Law>
void for_cases(Wishes wishes, Index weight, const Law& law) {
  wishes.exact_mix = true;
  const Policies policies = dense_policies_of<V>();
  const Options& options = Options::get();
  const Index count = options.alone ? options.shapes : weight * options.shapes;
  for (Index number = options.first; number < options.first + count; ++number) {
    const StructuredCase<V> c(wishes, seed_of_case(policies, number));
    INFO(policies << ", structured, case " << number << ": " << description_of(c.structured));
    law(c, dense_variant(policies));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a structured mixing is the dense call on the expanded matrix", "[laws][mixing]",
                   STRUCTURED_VARIANTS) {
  for_cases<TestType>({}, 12, [](const auto& c, const Variant& variant) {
    const Outcome<Wide> wide = expected(variant, c.dense);
    Outcome<double> dense = run(variant, c.dense);
    CallMagnitudes magnitude = magnitudes(variant, c.dense, wide.y);
    magnitude.gradients.mix = c.by_chain_rule(magnitude.gradients.mix);
    dense.gradients.mix = c.by_chain_rule(dense.gradients.mix);
    require_near(c.outcome(), dense, magnitude, 2);
  });
}

TEMPLATE_TEST_CASE("gradients with a structured mixing are derivatives", "[laws][gradient]",
                   STRUCTURED_VARIANTS) {
  for_cases<TestType>({.small = true, .smooth = true}, 3, [](auto c, const Variant&) {
    const auto loss = [&] {
      const HostTensor<double, 4> y = c.output();
      Wide sum = 0;
      for (std::size_t i = 0; i < y.elements().size(); ++i)
        sum +=
            static_cast<Wide>(y.elements()[i]) * static_cast<Wide>(c.structured.dy.elements()[i]);
      return sum;
    };
    const auto require_derivative = [&](const char* name, const auto&... operands) {
      const auto check = mhla::testing::check_gradient(loss, c.structured.seed, 1, operands...);
      INFO(name << ": " << check);
      REQUIRE(check.error <= tolerance::gradient_check);
    };
    const Gradients<double> grad = c.outcome().gradients;
    const auto q = differentiate(c.structured.q, grad.q);
    const auto k = differentiate(c.structured.k, grad.k);
    const auto v = differentiate(c.structured.v, grad.v);
    const auto mix = differentiate(c.structured.mix, grad.mix);
    require_derivative("all", q, k, v, mix);
    require_derivative("dmix", mix);
  });
}

TEMPLATE_TEST_CASE(
    "decoding by a recurrence is the dense call on the expanded matrix", "[laws][decoding]",
    (Recurrent<mhla::EluPlusOne, mhla::Causal, mhla::MixedKeySum, mhla::HalfSplitRotary>),
    (Recurrent<mhla::Relu, mhla::Causal, mhla::Unnormalized, mhla::NoRotation>)) {
  for_cases<TestType>({}, 12, [](const auto& c, const Variant& variant) {
    const Case& x = c.structured;
    mhla::Decoder<TestType, double> decoder(c.attention, x.mix,
                                            {.batch = x.shape.batch,
                                             .heads = x.shape.heads,
                                             .kv_heads = x.shape.kv_heads,
                                             .key_dim = x.shape.key_dim,
                                             .value_dim = x.shape.value_dim,
                                             .max_tokens = x.shape.query_tokens});
    HostTensor<double, 4> y = x.dy;
    poison(y);
    for (Index done = 0, step = 1; done < x.shape.query_tokens; done += step, step = step % 7 + 1) {
      step = std::min(step, x.shape.query_tokens - done);
      const auto tokens = [&](auto view) {
        view.data += done * view.stride[2];
        view.extent[2] = step;
        return view;
      };
      decoder.step(tokens(x.q.view()), tokens(x.k.view()), tokens(x.v.view()), tokens(y.view()));
    }
    const HostTensor<Wide, 4> wide = expected(variant, c.dense).y;
    require_near("y", y, wide, output_magnitude(variant, c.dense, wide), 2);
  });
}
