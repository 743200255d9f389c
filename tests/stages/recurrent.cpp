// SPDX-License-Identifier: MIT
// Stages by a recurrence: parts of a sequence, each of which waits for the states of the one before
// it, and in the backward pass for their gradients from the one after, make what the whole pass
// makes, bit for bit.
#include <mhla/stages.hpp>
#include <type_traits>

#include "tests/stages/whole.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using call::HostTensor;
using namespace mhla;
using namespace staged;

constexpr Index chunk = 16;

template <class T, class V, bool masked>
struct Chain : staged::Whole<T, V, masked> {
  using Base = staged::Whole<T, V, masked>;
  using A = mhla::Accumulator<T>;
  using Base::executor;
  using Base::on;
  using Base::stages;
  using Base::tokens_of;
  using Base::workspace;
  using Base::x;
  static constexpr bool own = mhla::is_causal_within_block<V>;

  using Base::Base;

  // The states after each part. What the first is given is not read.
  std::vector<HostTensor<A, 2>> states;
  HostTensor<A, 2> summaries = unwritten<A>(stages.key_blocks().count, stages.summary_size());
  HostTensor<A, 2> mixtures = unwritten<A>(stages.key_blocks().count, stages.mixture_size());
  HostTensor<A, 2> denominators =
      unwritten<A>(stages.key_blocks().count, stages.denominator_size());

  HostTensor<A, 2> no_states() const {
    return unwritten<A>(stages.num_states(), stages.mixture_size());
  }
  mhla::Sums<A> sums(std::size_t part, const BlockRange& range) const {
    const TensorView<const A, 2> all = summaries.view();
    const TensorView<const A, 2> before = states[part].view();
    return {rows_of(all, range), before};
  }
  mhla::OperandViews<T> mix(const BlockRange& range) const {
    const TensorView<const A, 3> all = x.mix.view();
    return {{}, {}, {}, rows_of(all, stages.mix_rows(range))};
  }

  void forward(const std::vector<BlockRange>& parts, HostTensor<T, 4>& y) {
    states.assign(1, no_states());
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const BlockRange& range = parts[p];
      const auto part = on(range, range);
      const std::vector<Index>& tokens = part.key_tokens;
      const auto k = taken(x.k, tokens);
      const auto v = taken(x.v, tokens);
      part.stages.summarize(executor(), range, k.view(), v.view(), rows_of(summaries.view(), range),
                            workspace(part, Stage::summarize, range));
      states.push_back(no_states());
      if (range.end() < stages.key_blocks().count) {
        part.stages.advance(executor(), range, mix(range).mix, sums(p, range), states[p + 1].view(),
                            workspace(part, Stage::advance, range));
        CHECK((x.shape().empty() || all_written(states[p + 1])));
      }
      auto some_y = taken(y, tokens);
      const auto q = taken(x.q, tokens);
      part.stages.read_out(executor(), range, {q.view(), k.view(), v.view(), mix(range).mix},
                           sums(p, range), some_y.view(), workspace(part, Stage::read_out, range));
      put_back(some_y, tokens, y);
    }
  }

  // dmix(part) is where a part writes its rows.
  template <class Dmix>
  void backward(const std::vector<BlockRange>& parts, call::Gradients<T>& gradients, Update update,
                const Dmix& dmix) {
    HostTensor<A, 2> after = no_states();
    for (std::size_t p = parts.size(); p-- > 0;) {
      const BlockRange& range = parts[p];
      const auto part = on(range, range);
      const std::vector<Index>& tokens = part.key_tokens;
      const auto q = taken(x.q, tokens);
      const auto k = taken(x.k, tokens);
      const auto v = taken(x.v, tokens);
      const auto dy = taken(x.dy, tokens);
      auto dq = taken(gradients.query, tokens);
      auto dk = taken(gradients.key, tokens);
      auto dv = taken(gradients.value, tokens);
      const mhla::OperandViews<T> operands{q.view(), k.view(), v.view(), mix(range).mix};
      part.stages.read_out_gradient(
          executor(), range, operands, sums(p, range), dy.view(),
          {dq.view(), mhla::skip, mhla::skip, mhla::skip}, update,
          {rows_of(mixtures.view(), range), rows_of(denominators.view(), range)},
          workspace(part, Stage::read_out_gradient, range));

      auto summary_gradients = unwritten<A>(range.count, stages.summary_size());
      auto before = no_states();
      const TensorView<const A, 2> left = mixtures.view();
      const auto of_mix = dmix(p);
      part.stages.advance_gradient(executor(), range, operands.mix, sums(p, range),
                                   rows_of(left, range), {after.view(), before.view()},
                                   summary_gradients.view(), of_mix, update,
                                   workspace(part, Stage::advance_gradient, range));
      if (!x.shape().empty())
        CHECK((all_written(summary_gradients) &&
               (stages.block_in_sequence(range.first) == 0 || all_written(before))));
      after = before;

      mhla::GradientViews<T> to{mhla::skip, dk.view(), dv.view(), mhla::skip};
      if (own) to.mix = of_mix;
      const TensorView<const A, 2> den = denominators.view();
      part.stages.summarize_gradient(executor(), range, operands, summary_gradients.view(),
                                     dy.view(), rows_of(den, range), to, update,
                                     workspace(part, Stage::summarize_gradient, range));
      put_back(dq, tokens, gradients.query);
      put_back(dk, tokens, gradients.key);
      put_back(dv, tokens, gradients.value);
    }
  }
};

// Cut at random where a chunk begins; the last part ends with the sequence.
template <class S>
std::vector<BlockRange> random_chunks(const S& stages, Index parts, std::uint64_t seed) {
  std::vector<Index> borders;
  for (Index b = 0; b <= stages.key_blocks().count; ++b)
    if (stages.block_in_sequence(b) % chunk == 0) borders.push_back(b);
  auto ranges = staged::random_parts(static_cast<Index>(borders.size()) - 1, parts, seed);
  for (BlockRange& range : ranges) {
    const Index first = borders[static_cast<std::size_t>(range.first)];
    range = {first, borders[static_cast<std::size_t>(range.end())] - first};
  }
  return ranges;
}

template <class T, bool masked = false, class V>
void check(const V& attention, const Shape& shape) {
  using A = mhla::Accumulator<T>;
  for (const std::uint64_t seed : backend::seeds_of_splits) {
    INFO("split " << seed);
    const Update update = seed == 2 ? Update::accumulate : Update::overwrite;
    Chain<T, V, masked> chain(attention, shape, seed);
    const auto parts = random_chunks(chain.stages, static_cast<Index>(2 * seed - 1), seed);
    HostTensor<T, 4> y = chain.x.dy;
    chain.forward(parts, y);
    auto whole_y = call::forward(chain.padded(), chain.x);
    CHECK(call::bitwise_equal(y.view(), whole_y.view()));

    call::Gradients<T> whole(chain.x);
    call::backward_to(whole.views(), update, chain.padded(), chain.x);
    call::Gradients<T> gradients(chain.x);
    const TensorView<A, 3> dmix = gradients.mix.view();
    // Each part has dmix of its own, as ranks have: rows, or one of those that are added up.
    std::vector<HostTensor<A, 3>> of_parts;
    const bool shared = chain.x.shape().mix_query_blocks == 1;
    const bool added_up = chain.packs || (shared && parts.size() > 1);
    for (const BlockRange& part : parts) {
      const BlockRange rows = chain.stages.mix_rows(part);
      of_parts.emplace_back(dmix.extent[0], rows.count, dmix.extent[2]);
      for (Index n = 0; n < of_parts.back().view().size(); ++n)
        if (!added_up || update == Update::overwrite)
          of_parts.back().view().element(n) = rows_of(dmix, rows).element(n);
    }
    chain.backward(parts, gradients, update,
                   [&](std::size_t p) { return mhla::GradientView<A, 3>(of_parts[p].view()); });
    CHECK(call::bitwise_equal(gradients.query.view(), whole.query.view()));
    CHECK(call::bitwise_equal(gradients.key.view(), whole.key.view()));
    CHECK(call::bitwise_equal(gradients.value.view(), whole.value.view()));
    if (!added_up) {
      const Index states = chain.stages.num_states();
      bool others_as_they_were = true;
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const BlockRange& part = parts[p];
        const BlockRange rows = chain.stages.mix_rows(part);
        const TensorView<A, 3> written = of_parts[p].view();
        for (Index h = 0; h < dmix.extent[0]; ++h)
          for (Index i = 0; i < rows.count; ++i)
            for (Index c = 0; c < dmix.extent[2]; ++c) {
              const bool own = shared || (c <= states ? i < part.count : i > 0 || rows.first == 0);
              A& to = dmix(h, rows.first + i, c);
              if (own)
                to = written(h, i, c);
              else
                others_as_they_were =
                    others_as_they_were && written(h, i, c) == chain.x.mix(h, rows.first + i, c);
            }
      }
      CHECK(others_as_they_were);
      for (Index i = chain.stages.key_blocks().count; i < dmix.extent[1] && !shared;
           ++i)  // of no part
        for (Index h = 0; h < dmix.extent[0] && update == Update::overwrite; ++h)
          for (Index c = 0; c < dmix.extent[2]; ++c) dmix(h, i, c) = 0;
      CHECK(call::bitwise_equal(gradients.mix.view(), whole.mix.view()));
      continue;
    }
    auto sum = HostTensor<A, 3>::like(dmix);
    if (update == Update::accumulate) sum = chain.x.mix;
    for (const auto& part : of_parts)
      for (std::size_t i = 0; i < sum.elements().size(); ++i)
        sum.elements()[i] += part.elements()[i];
    call::check_close("dmix", sum, whole.mix, tolerance::gradient_rms<T>,
                      tolerance::gradient_max<T>);
  }
}

template <class Causality, class Normalizer>
void check_sequences() {
  using Sequence =
      Attention<Relu, Blocks1D, Causality, Normalizer, HalfSplitRotary, RecurrentMixing>;
  const auto of = [](Index block, Index states) {
    return Sequence{.blocks = {.block = block}, .mixing = {.states = states}};
  };
  SECTION("five chunks") { check<float>(of(3, 2), {2, 2, 2, 229, 229, 16, 5}); }
  SECTION("groups of query heads, more rows than blocks") {
    check<float>(of(2, 1), {2, 4, 2, 161, 161, 16, 4, 4, 90, 4});
  }
  if constexpr (meets<double, Sequence>()) {
    SECTION("a matrix for every head of every item, in double") {
      check<double>(of(3, 3), {2, 4, 2, 300, 300, 6, 5, 8});
    }
  }
  SECTION("rows that end in half a vector") { check<float>(of(2, 2), {2, 1, 1, 130, 130, 8, 5}); }
  SECTION("long rows") { check<float>(of(5, 4), {1, 2, 1, 420, 420, 32, 36, 2}); }
  SECTION("as many blocks as chunks hold") { check<float>(of(2, 2), {2, 1, 1, 128, 128, 8, 6}); }
  SECTION("a chunk of one block, few parts") { check<float>(of(2, 2), {1, 1, 1, 98, 98, 8, 6}); }
  SECTION("a single row for all blocks") {
    check<float>(of(2, 2), {2, 4, 2, 229, 229, 6, 5, 4, 1, 7});
  }
  if constexpr (meets<BFloat16, Sequence>()) {
    SECTION("bfloat16") { check<BFloat16>(of(4, 2), {2, 2, 1, 229, 229, 16, 12}); }
  }
  SECTION("nothing to attend") {
    check<float>(of(3, 2), {0, 2, 2, 229, 229, 16, 5});
    check<float>(of(3, 2), {2, 2, 2, 229, 229, 16, 0});
    check<float>(of(3, 2), {2, 2, 2, 0, 0, 16, 3, 1, 1, 7});
  }
  SECTION("packed") {
    const std::vector<std::int32_t> few{0, 130, 130, 131, 140, 295};
    check<float>(mhla::packed(of(3, 2), few), {1, 4, 2, 295, 295, 16, 5, 4, 60, 7});
    const std::vector<std::int64_t> many{0, 2, 98, 162, 164, 300, 300};
    if constexpr (meets<double, Sequence>()) {
      check<double>(mhla::packed(of(2, 3), many), {1, 2, 1, 300, 300, 6, 5, 1, 68, 10});
      check<double>(mhla::packed(of(2, 3), many), {1, 2, 1, 300, 300, 6, 5, 2, 1, 10});
    }
  }
  SECTION("padded") {
    check<float, true>(of(3, 2), {4, 2, 2, 229, 229, 16, 5});
    check<float, true>(of(2, 3), {3, 4, 2, 161, 161, 16, 4, 12});
  }
}

}  // namespace

TEST_CASE("stages of a recurrence are the whole pass") {
  SECTION("normalized") { check_sequences<Causal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<Causal, Unnormalized>(); }
}

TEST_CASE("stages of a block-causal recurrence are the whole pass") {
  SECTION("normalized") { check_sequences<BlockCausal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<BlockCausal, Unnormalized>(); }
}
