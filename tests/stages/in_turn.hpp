// SPDX-License-Identifier: MIT
// The stages of one call, on ranges of its blocks, called in turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/stages/backend.hpp"

namespace stages {

using call::HostTensor;
using mhla::Accumulator;
using mhla::BlockRange;
using mhla::columns_of;
using mhla::Grid;
using mhla::Index;
using mhla::rows_of;
using mhla::Shape;
using mhla::Stage;
using mhla::TensorView;
using mhla::Update;

/// Blocks [0, blocks) cut at random places; some parts are empty.
inline std::vector<BlockRange> random_parts(Index blocks, Index parts, std::uint64_t seed) {
  std::vector<Index> cuts{0, blocks};
  for (Index i = 1; i < parts; ++i)
    cuts.push_back(mhla::testing::random_index(seed, static_cast<std::uint64_t>(i), blocks + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<BlockRange> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    ranges.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  return ranges;
}

/// The tokens of some blocks, in the order of the sequence.
inline std::vector<Index> tokens_of(const Grid& grid, const BlockRange& blocks) {
  std::vector<Index> tokens;
  for (Index t = 0; t < grid.num_tokens(); ++t)
    if (grid.block_of(t) >= blocks.first && grid.block_of(t) < blocks.end()) tokens.push_back(t);
  return tokens;
}
template <class T>
HostTensor<T, 4> taken(const HostTensor<T, 4>& from, const std::vector<Index>& tokens) {
  const TensorView<const T, 4> all = from.view();
  HostTensor<T, 4> part(all.extent[0], all.extent[1], static_cast<Index>(tokens.size()),
                        all.extent[3]);
  for (Index n = 0; n < all.extent[0]; ++n)
    for (Index h = 0; h < all.extent[1]; ++h)
      for (std::size_t t = 0; t < tokens.size(); ++t)
        for (Index c = 0; c < all.extent[3]; ++c)
          part.view()(n, h, static_cast<Index>(t), c) = all(n, h, tokens[t], c);
  return part;
}
template <class T>
void put_back(const HostTensor<T, 4>& part, const std::vector<Index>& tokens,
              HostTensor<T, 4>& all) {
  const TensorView<const T, 4> from = part.view();
  for (Index n = 0; n < from.extent[0]; ++n)
    for (Index h = 0; h < from.extent[1]; ++h)
      for (std::size_t t = 0; t < tokens.size(); ++t)
        for (Index c = 0; c < from.extent[3]; ++c)
          all.view()(n, h, tokens[t], c) = from(n, h, static_cast<Index>(t), c);
}

/// Rows that hold NaN: nothing may be read before it is written.
template <class A>
HostTensor<A, 2> unwritten(Index rows, Index columns) {
  HostTensor<A, 2> matrix(rows, columns);
  for (Index i = 0; i < rows * columns; ++i)
    matrix.view().element(i) = std::numeric_limits<A>::quiet_NaN();
  return matrix;
}

/// Scratch memory full of NaN; what lies behind it must stay as it is.
class Scratch {
 public:
  explicit Scratch(Index size) : size_(size), memory_(size + guard) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
  }
  ~Scratch() {
    for (Index i = 0; i < guard; ++i)
      if (memory_.data()[size_ + i] != std::byte{0xff}) FAIL_CHECK("written behind the workspace");
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

/// The stages of an attention on ranges of its blocks, in turn.
template <class T, class V>
struct InTurn {
  using A = Accumulator<T>;
  V attention;
  call::Operands<T> x;
  backend::Stages<V, T> stages;
  std::uint64_t seed;
  Grid query_grid;
  Grid key_grid;

  InTurn(const V& variant, const Shape& shape, std::uint64_t of)
      : attention(variant),
        x(call::operands<T>(variant, shape, of)),
        stages(variant, x.shape()),
        seed(of) {
    const mhla::Problem problem = mhla::checked_problem(variant, x.shape());
    query_grid = problem.query_grid;
    key_grid = problem.key_grid;
  }

  auto executor() const { return backend::shuffled_device(seed); }
  Scratch workspace(Stage stage, const BlockRange& blocks, const BlockRange& keys = {}) const {
    return Scratch(stages.workspace_size(stage, executor(), blocks, keys));
  }
  // Under Causal and BlockCausal, no more than queries see.
  TensorView<const A, 2> seen(const HostTensor<A, 2>& summaries, const BlockRange& queries) const {
    const TensorView<const A, 2> all = summaries.view();
    if (!mhla::sees_past_only<V>) return all;
    return rows_of(all, {0, std::max(Index{0}, queries.end() - lag_of(mhla::sight_of<V>))});
  }

  /// y, and the gradients added to x or in place of it.
  Results<T> run(const std::vector<BlockRange>& queries, const std::vector<BlockRange>& keys,
                 Update update) const {
    constexpr bool own = mhla::masks_own_block<V>;
    HostTensor<T, 4> y = x.dy;
    call::Gradients<T> gradients(x);
    const BlockRange all_queries = stages.query_blocks();
    const BlockRange all_keys = stages.key_blocks();
    const TensorView<const A, 3> mix = x.mix.view();

    auto summaries = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      const auto tokens = tokens_of(key_grid, range);
      REQUIRE(stages.key_tokens(range) == static_cast<Index>(tokens.size()));
      stages.summarize(executor(), range, taken(x.k, tokens).view(), taken(x.v, tokens).view(),
                       rows_of(summaries.view(), range), workspace(Stage::summarize, range));
    }

    auto mixtures = unwritten<A>(all_queries.count, stages.mixture_size());
    auto denominators = unwritten<A>(all_queries.count, stages.denominator_size());
    for (const BlockRange& range : queries) {
      const auto tokens = tokens_of(query_grid, range);
      REQUIRE(stages.query_tokens(range) == static_cast<Index>(tokens.size()));
      const auto q = taken(x.q, tokens);
      const auto dy = taken(x.dy, tokens);
      const auto k = own ? taken(x.k, tokens) : HostTensor<T, 4>();
      const auto v = own ? taken(x.v, tokens) : HostTensor<T, 4>();
      const mhla::OperandViews<T> part{q.view(), k.view(), v.view(), rows_of(mix, range)};
      auto some_y = dy;
      stages.read_out(executor(), range, part, seen(summaries, range), some_y.view(),
                      workspace(Stage::read_out, range));
      put_back(some_y, tokens, y);

      auto dq = taken(gradients.query, tokens);
      stages.read_out_gradient(
          executor(), range, part, seen(summaries, range), dy.view(),
          {dq.view(), mhla::skip, mhla::skip, rows_of(gradients.mix.view(), range)}, update,
          {rows_of(mixtures.view(), range), rows_of(denominators.view(), range)},
          workspace(Stage::read_out_gradient, range));
      put_back(dq, tokens, gradients.query);
    }

    auto summary_gradients = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      // Under Causal and BlockCausal, no earlier queries than see the keys.
      const Index first = mhla::sees_past_only<V> ? range.first : 0;
      const BlockRange later{first, all_queries.count - first};
      const TensorView<const A, 2> left = mixtures.view();
      stages.mix_gradient(executor(), later, range, columns_of(rows_of(mix, later), range),
                          rows_of(left, later), rows_of(summary_gradients.view(), range),
                          workspace(Stage::mix_gradient, later, range));

      const auto tokens = tokens_of(key_grid, range);
      const auto k = taken(x.k, tokens);
      const auto v = taken(x.v, tokens);
      const auto q = own ? taken(x.q, tokens) : HostTensor<T, 4>();
      const auto dy = own ? taken(x.dy, tokens) : HostTensor<T, 4>();
      auto dk = taken(gradients.key, tokens);
      auto dv = taken(gradients.value, tokens);
      mhla::OperandViews<T> part{q.view(), k.view(), v.view(), {}};
      mhla::GradientView<A, 3> dmix = mhla::skip;
      TensorView<const A, 2> den;
      if (own) {
        part.mix = rows_of(mix, range);
        dmix = rows_of(gradients.mix.view(), range);
        den = rows_of(TensorView<const A, 2>(denominators.view()), range);
      }
      stages.summarize_gradient(executor(), range, part,
                                rows_of(TensorView<const A, 2>(summary_gradients.view()), range),
                                dy.view(), den, {mhla::skip, dk.view(), dv.view(), dmix}, update,
                                workspace(Stage::summarize_gradient, range));
      put_back(dk, tokens, gradients.key);
      put_back(dv, tokens, gradients.value);
    }

    return {std::move(y), std::move(gradients)};
  }
};

}  // namespace stages
