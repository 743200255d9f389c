// SPDX-License-Identifier: MIT
// A whole pass taken apart into stages on any split of its blocks, and its bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/distributed/shares.hpp>
#include <mhla/packed.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/stages/backend.hpp"
#include "tests/support/parts.hpp"
#include "tests/support/tolerances.hpp"

namespace staged {

using backend::Stages;
using call::bitwise_equal;
using call::HostTensor;
using namespace mhla;
using parts::put_back;
using parts::random_parts;
using parts::taken;

template <class Causality, class Normalizer>
using SequenceOf =
    mhla::Attention<mhla::Relu, mhla::Blocks1D, Causality, Normalizer, mhla::HalfSplitRotary>;

/// Whether the tests of a variant run with this scalar type: float meets all of them, and every two
/// of type, causality and normalizer meet, as in all pairwise products. Where not all cases run,
/// each causality has one normalizer, and double and bfloat16 one causality.
template <class T, class V>
constexpr bool meets() {
#if defined(MHLA_FULL_PRODUCT)
  return true;
#else
  constexpr bool floats = std::is_same_v<T, float>, doubles = std::is_same_v<T, double>;
  constexpr bool sees_all = mhla::sight_of<V> == mhla::Sight::all;
  if (backend::runs_all_cases) return floats || doubles == (sees_all == mhla::normalizes<V>);
  constexpr bool sees_blocks = mhla::sight_of<V> == mhla::Sight::past_blocks;
  return sees_blocks != mhla::normalizes<V> && (floats || (!sees_blocks && doubles == sees_all));
#endif
}

/// Calls check<V>() for this causality's sequences.
template <class Causality, class Check>
void for_each_normalizer(const Check& check) {
  using Normalized = SequenceOf<Causality, mhla::MixedKeySum>;
  using Unnormalized = SequenceOf<Causality, mhla::Unnormalized>;
  if constexpr (meets<float, Normalized>()) {
    SECTION("normalized") { check.template operator()<Normalized>(); }
  }
  if constexpr (meets<float, Unnormalized>()) {
    SECTION("unnormalized") { check.template operator()<Unnormalized>(); }
  }
}

// Rows that hold NaN: nothing may be read before it is written, and all of it is.
template <class A>
HostTensor<A, 2> unwritten(Index rows, Index columns) {
  HostTensor<A, 2> matrix(rows, columns);
  for (Index i = 0; i < rows * columns; ++i)
    matrix.view().element(i) = std::numeric_limits<A>::quiet_NaN();
  return matrix;
}

template <class A>
bool all_written(const HostTensor<A, 2>& matrix) {
  return std::none_of(matrix.elements().begin(), matrix.elements().end(),
                      [](A x) { return std::isnan(x); });
}

using Mask = HostTensor<std::uint8_t, 2>;  // [batch, tokens]

inline Mask taken(const Mask& from, const std::vector<Index>& tokens) {
  Mask part(from.extent(0), static_cast<Index>(tokens.size()));
  for (Index n = 0; n < from.extent(0); ++n)
    for (std::size_t t = 0; t < tokens.size(); ++t)
      part(n, static_cast<Index>(t)) = from(n, tokens[t]);
  return part;
}

// A mask with holes, empty blocks, and items of any length, the first without a token.
inline Mask random_mask(const Grid& grid, Index batch, std::uint64_t seed) {
  Mask mask(batch, grid.num_tokens());
  for (Index n = 0; n < batch; ++n) {
    const auto random = [&](Index of, Index below) {
      return mhla::testing::random_index(seed + 7 * static_cast<std::uint64_t>(n),
                                         static_cast<std::uint64_t>(of), below);
    };
    const Index used = n == 0 && batch > 1 ? 0 : random(0, grid.num_blocks() + 1);
    for (Index t = 0; t < grid.num_tokens(); ++t) {
      const Index block = grid.block_of(t);
      mask(n, t) = block < used && random(1 + block, 5) > 0 && random(-1 - t, 4) > 0;
    }
  }
  return mask;
}

// Scratch memory full of NaN; what lies after it must stay as it is.
class Scratch {
 public:
  explicit Scratch(Index size) : size_(size), memory_(size + guard) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
  }
  ~Scratch() {
    for (Index i = 0; i < guard; ++i)
      if (memory_.data()[size_ + i] != std::byte{0xff}) FAIL_CHECK("written after the workspace");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator mhla::WorkspaceView() const { return {memory_.data(), size_}; }  // NOLINT: is a view

 private:
  static constexpr Index guard = 4096;
  Index size_;
  mhla::Workspace memory_;
};

template <class T>
struct Results {
  HostTensor<T, 4> y;
  call::Gradients<T> gradients;
};

// A call's operands, and its stages; of a padded batch if there are masks, of a packed one if V is.
// What masks take away is NaN.
template <class T, class V, bool masked = false>
struct Whole {
  using A = Accumulator<T>;
  static constexpr bool packs = requires(const V& v) { v.offsets; };
  V attention;
  call::Operands<T> x;
  Stages<V, T> stages;
  std::uint64_t seed;
  Grid query_grid;
  Grid key_grid;
  Mask query_mask;
  Mask key_mask;
  std::vector<Index> used_queries;
  std::vector<Index> used_keys;

  Whole(const V& variant, const Shape& shape, std::uint64_t of)
      : attention(variant),
        x(call::operands<T>(variant, shape, of)),
        stages(variant, x.shape()),
        seed(of),
        used_queries(static_cast<std::size_t>(shape.batch)),
        used_keys(static_cast<std::size_t>(shape.batch)) {
    attention.path = mhla::Path::linear;  // as stages have it
    const mhla::Problem problem = mhla::checked_problem(variant, x.shape());
    query_grid = problem.query_grid;
    key_grid = problem.key_grid;
    if (!masked) return;
    query_mask = random_mask(query_grid, shape.batch, seed);
    key_mask = mhla::is_causal<V> ? query_mask : random_mask(key_grid, shape.batch, seed + 1);
    for (auto* tensor : {&x.q, &x.dy}) spoil(*tensor, query_mask);
    for (auto* tensor : {&x.k, &x.v}) spoil(*tensor, key_mask);
    if constexpr (masked && backend::stages_count_blocks) {  // as ranks do, each with its own
      for (const BlockRange& part : random_parts(query_grid.num_blocks(), 3, seed))
        stages.count_used_queries(part, taken(query_mask, tokens_of(query_grid, part)).view(),
                                  span(used_queries));
      for (const BlockRange& part : random_parts(key_grid.num_blocks(), 3, seed))
        stages.count_used_keys(part, taken(key_mask, tokens_of(key_grid, part)).view(),
                               span(used_keys));
    }
  }

  template <class X>
  static mhla::Span<X> span(std::vector<X>& vector) {
    return {vector.data(), static_cast<Index>(vector.size())};
  }
  static void spoil(HostTensor<T, 4>& tensor, const Mask& mask) {
    for (Index n = 0; n < tensor.extent(0); ++n)
      for (Index h = 0; h < tensor.extent(1); ++h)
        for (Index t = 0; t < tensor.extent(2); ++t)
          for (Index c = 0; mask(n, t) == 0 && c < tensor.extent(3); ++c)
            mhla::store(tensor(n, h, t, c), std::numeric_limits<A>::quiet_NaN());
  }

  // Some blocks, or more, whose tokens tensors then hold.
  BlockRange held(const BlockRange& blocks, const BlockRange& all) const {
    const auto more = [&](Index most) {
      return mhla::testing::random_index(seed, static_cast<std::uint64_t>(blocks.first), most + 1);
    };
    const Index before = more(std::min(Index{2}, blocks.first));
    const Index end = blocks.end() + more(std::min(Index{3}, all.end() - blocks.end()));
    return {blocks.first - before, end - blocks.first + before};
  }

  // The stages on some blocks, the tokens of their tensors, and whatever they borrow.
  struct Tokens {
    std::vector<Index> query_tokens;
    std::vector<Index> key_tokens;
    BlockRange held_queries;
    BlockRange held_keys;
    Tokens(const Whole& whole, const BlockRange& queries, const BlockRange& keys)
        : held_queries(whole.held(queries, whole.stages.query_blocks())),
          held_keys(whole.held(keys, whole.stages.key_blocks())) {
      query_tokens = whole.tokens_of(whole.query_grid, held_queries);
      key_tokens = whole.tokens_of(whole.key_grid, held_keys);
    }
    // Unless tensors hold these blocks alone.
    template <class S>
    S holding(S of, const BlockRange& queries, const BlockRange& keys) const {
      if (held_queries != queries || held_keys != keys) of.hold(held_queries, held_keys);
      return of;
    }
  };
  struct Part : Tokens {
    Stages<V, T> stages;
    Part(const Whole& whole, const BlockRange& queries, const BlockRange& keys)
        : Tokens(whole, queries, keys), stages(this->holding(whole.stages, queries, keys)) {}
  };
  struct PaddedPart : Tokens {
    Mask query;
    Mask key;
    Stages<mhla::Padded<V>, T> stages;
    PaddedPart(Whole& whole, const BlockRange& queries, const BlockRange& keys)
        : Tokens(whole, queries, keys),
          query(taken(whole.query_mask, this->query_tokens)),
          key(taken(whole.key_mask, this->key_tokens)),
          stages(
              this->holding(whole.stages.padded(
                                {{query.view(), mhla::is_causal_within_block<V> && queries.count > 0
                                                    ? query.view()
                                                    : key.view()},
                                 span(whole.used_queries),
                                 span(whole.used_keys)}),
                            queries, keys)) {}
  };
  // Under Causal, which has both sides' tensors of the same blocks.
  auto on(const BlockRange& queries, const BlockRange& keys) {
    return std::conditional_t<masked, PaddedPart, Part>(*this, queries, keys);
  }
  auto padded() const {
    if constexpr (masked) {
      return mhla::padded(attention, query_mask.view(),
                          mhla::is_causal<V> ? query_mask.view() : key_mask.view());
    } else {
      return attention;
    }
  }

  // What the tensors of some blocks have.
  std::vector<Index> tokens_of(const Grid& grid, const BlockRange& range) const {
    std::vector<Index> tokens;
    if constexpr (packs) {
      Index block = -1;
      for (Index s = 0; s < attention.sequences(); ++s)
        for (Index t = 0; t < attention.length(s); ++t) {
          if (t % attention.blocks.block == 0) ++block;
          if (block >= range.first && block < range.end()) tokens.push_back(attention.begin(s) + t);
        }
    } else {
      tokens = mhla::tokens_of(grid, range);
    }
    return tokens;
  }

  auto executor() const { return backend::shuffled_device(seed); }
  template <class P>
  Scratch workspace(const P& part, Stage stage, const BlockRange& blocks,
                    const BlockRange& keys = {}) const {
    return Scratch(part.stages.workspace_size(stage, executor(), blocks, keys));
  }
  // Of the queries' sequences; under Causal and BlockCausal, no more than queries see.
  TensorView<const A, 2> seen(const HostTensor<A, 2>& summaries, const BlockRange& queries) const {
    const TensorView<const A, 2> all = summaries.view();
    BlockRange keys = stages.key_blocks(queries);
    if (mhla::is_causal<V>)
      keys.count = std::max(Index{0}, queries.end() - keys.first - lag_of(mhla::sight_of<V>));
    return rows_of(all, keys);
  }
  // Calls make(rows of dmix). Of packed sequences each call makes a sum, of which dmix is the sum.
  template <class Make>
  void make_dmix(const BlockRange& range, Update update, HostTensor<A, 3>& dmix,
                 const Make& make) const {
    if (!packs || update == Update::accumulate)
      return make(rows_of(dmix.view(), stages.mix_rows(range)));
    HostTensor<A, 3> sum = x.mix;
    make(sum.view());
    for (std::size_t i = 0; i < sum.elements().size(); ++i) dmix.elements()[i] += sum.elements()[i];
  }

  // What stages make on parts of the blocks.
  Results<T> run(const std::vector<BlockRange>& queries, const std::vector<BlockRange>& keys,
                 Update update) {
    constexpr bool own = mhla::is_causal_within_block<V>;
    HostTensor<T, 4> y = x.dy;
    call::Gradients<T> gradients(x);
    if (packs && update == Update::overwrite)
      gradients.mix = HostTensor<A, 3>::like(gradients.mix.view());
    const BlockRange all_queries = stages.query_blocks();
    const BlockRange all_keys = stages.key_blocks();
    const TensorView<const A, 3> mix = x.mix.view();

    auto summaries = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      const auto part = on(own ? range : BlockRange{}, range);
      const std::vector<Index>& tokens = part.key_tokens;
      REQUIRE(stages.key_tokens(part.held_keys) == static_cast<Index>(tokens.size()));
      part.stages.summarize(executor(), range, taken(x.k, tokens).view(), taken(x.v, tokens).view(),
                            rows_of(summaries.view(), range),
                            workspace(part, Stage::summarize, range));
    }

    auto mixtures = unwritten<A>(all_queries.count, stages.mixture_size());
    auto denominators = unwritten<A>(all_queries.count, stages.denominator_size());
    for (const BlockRange& range : queries) {
      const auto part = on(range, own ? range : BlockRange{});
      const std::vector<Index>& tokens = part.query_tokens;
      REQUIRE(stages.query_tokens(part.held_queries) == static_cast<Index>(tokens.size()));
      const auto q = taken(x.q, tokens);
      const auto dy = taken(x.dy, tokens);
      const auto k = own ? taken(x.k, tokens) : HostTensor<T, 4>();
      const auto v = own ? taken(x.v, tokens) : HostTensor<T, 4>();
      const mhla::OperandViews<T> operands{q.view(), k.view(), v.view(),
                                           rows_of(mix, stages.mix_rows(range))};
      auto some_y = taken(y, tokens);
      part.stages.read_out(executor(), range, operands, seen(summaries, range), some_y.view(),
                           workspace(part, Stage::read_out, range));
      put_back(some_y, tokens, y);

      auto dq = taken(gradients.query, tokens);
      make_dmix(range, update, gradients.mix, [&](const TensorView<A, 3>& dmix) {
        part.stages.read_out_gradient(
            executor(), range, operands, seen(summaries, range), dy.view(),
            {dq.view(), mhla::skip, mhla::skip, dmix}, update,
            {rows_of(mixtures.view(), range), rows_of(denominators.view(), range)},
            workspace(part, Stage::read_out_gradient, range));
      });
      put_back(dq, tokens, gradients.query);
    }

    auto summary_gradients = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      // Under Causal and BlockCausal, no earlier queries than see the keys.
      BlockRange later = stages.query_blocks(range);
      if (mhla::is_causal<V>) later = {range.first, later.end() - range.first};
      const TensorView<const A, 2> left = mixtures.view();
      const auto mixed = on({}, {});
      mixed.stages.mix_gradient(
          executor(), later, range,
          columns_of(rows_of(mix, stages.mix_rows(later)), stages.mix_columns(range)),
          rows_of(left, later), rows_of(summary_gradients.view(), range),
          workspace(mixed, Stage::mix_gradient, later, range));

      const auto part = on(own ? range : BlockRange{}, range);
      const std::vector<Index>& tokens = part.key_tokens;
      const auto k = taken(x.k, tokens);
      const auto v = taken(x.v, tokens);
      const auto q = own ? taken(x.q, tokens) : HostTensor<T, 4>();
      const auto dy = own ? taken(x.dy, tokens) : HostTensor<T, 4>();
      auto dk = taken(gradients.key, tokens);
      auto dv = taken(gradients.value, tokens);
      mhla::OperandViews<T> operands{q.view(), k.view(), v.view(), {}};
      TensorView<const A, 2> den;
      if (own) {
        operands.mix = rows_of(mix, stages.mix_rows(range));
        den = rows_of(TensorView<const A, 2>(denominators.view()), range);
      }
      const auto summarize_gradient = [&](const mhla::GradientView<A, 3>& dmix) {
        part.stages.summarize_gradient(
            executor(), range, operands,
            rows_of(TensorView<const A, 2>(summary_gradients.view()), range), dy.view(), den,
            {mhla::skip, dk.view(), dv.view(), dmix}, update,
            workspace(part, Stage::summarize_gradient, range));
      };
      if (own)
        make_dmix(range, Update::accumulate, gradients.mix, summarize_gradient);
      else
        summarize_gradient(mhla::skip);
      put_back(dk, tokens, gradients.key);
      put_back(dv, tokens, gradients.value);
    }

    for (const auto* left : {&summaries, &mixtures, &summary_gradients})
      CHECK((x.shape().empty() || all_written(*left)));
    return {std::move(y), std::move(gradients)};
  }

  void check(const std::vector<BlockRange>& queries, const std::vector<BlockRange>& keys,
             Update update) {
    auto [y, gradients] = run(queries, keys, update);
    auto whole_y = call::forward(padded(), x);
    CHECK(bitwise_equal(y.view(), whole_y.view()));
    call::Gradients<T> whole(x);
    call::backward_to(whole.views(), update, padded(), x);
    if (packs) {  // dmix is a sum over sequences in another order
      call::check_close("dmix", gradients.mix, whole.mix, tolerance::gradient_rms<T>,
                        tolerance::gradient_max<T>);
      gradients.mix = whole.mix;
    }
    call::check_same_bits(gradients, whole);
  }
};

template <class T, bool masked = false, class V>
void check(const V& attention, const Shape& shape) {
  for (const std::uint64_t seed : backend::seeds_of_splits) {
    Whole<T, V, masked> whole(attention, shape, seed);
    const Index query_blocks = whole.stages.query_blocks().count;
    const Index key_blocks = whole.stages.key_blocks().count;
    INFO("split " << seed);
    whole.check(random_parts(query_blocks, static_cast<Index>(2 * seed), 10 * seed),
                random_parts(key_blocks, static_cast<Index>(2 * seed - 1), 10 * seed + 1),
                seed == 2 ? Update::accumulate : Update::overwrite);
  }
}

}  // namespace staged
