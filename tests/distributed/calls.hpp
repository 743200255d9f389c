// SPDX-License-Identifier: MIT
// A call that ranks share, against the same call in one process, bit for bit. Every rank makes the
// whole call's operands and results itself; a difference is thrown.
#pragma once

#include <cstdint>
#include <mhla/attention.hpp>
#include <mhla/distributed.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/parts.hpp"

namespace distributed_calls {

using call::HostTensor;
using mhla::Accumulator;
using mhla::BlockRange;
using mhla::Index;
using mhla::Shape;
using mhla::Shares;
using mhla::TensorView;
using mhla::Update;
using parts::taken;

/// Blocks cut at random multiples of `unit`, or into equal parts if seed is 0.
inline Shares shares(Index blocks, Index ranks, Index unit, std::uint64_t seed) {
  return seed == 0 ? mhla::equal_shares(blocks, ranks, unit)
                   : parts::random_parts(blocks, ranks, seed, unit);
}

template <class T, int Rank>
void require_same(const char* name, Index rank, const HostTensor<T, Rank>& a,
                  const HostTensor<T, Rank>& b) {
  if (!mhla::testing::bitwise_equal(a.view(), b.view()))
    throw std::runtime_error(std::string(name) + " of rank " + std::to_string(rank) +
                             " is not that of one process");
}

/// A whole call, and the part of it that a rank has.
template <class T, class V>
struct SharedCall {
  using A = Accumulator<T>;
  V attention;
  call::Operands<T> x;
  Shape shape;
  Shares queries;
  Shares keys;
  std::vector<Index> query_tokens;
  std::vector<Index> key_tokens;
  Index rank;
  call::Operands<T> local;

  SharedCall(const V& variant, const Shape& partial, Index ranks, Index of, std::uint64_t seed)
      : attention(variant),
        x(call::operands<T>(variant, partial, seed + 1)),
        shape(x.shape()),
        rank(of),
        local(x) {
    const mhla::Problem problem = mhla::checked_problem(variant, shape);
    mhla::Grid query_grid = problem.query_grid;
    mhla::Grid key_grid = problem.key_grid;
    if constexpr (requires { variant.offsets; })  // whose shares are of tokens
      query_grid = key_grid = {{1, 1, shape.query_tokens}, {1, 1, 1}};
    const Index unit = mhla::factors_mixing<V> ? mhla::RecurrentMixing::chunk : 1;
    queries = shares(query_grid.num_blocks(), ranks, unit, seed);
    keys = query_grid == key_grid ? queries : shares(key_grid.num_blocks(), ranks, unit, 2 * seed);
    const auto at = static_cast<std::size_t>(rank);
    query_tokens = mhla::tokens_of(query_grid, queries[at]);
    key_tokens = mhla::tokens_of(key_grid, keys[at]);
    local = {taken(x.q, query_tokens), taken(x.k, key_tokens), taken(x.v, key_tokens), x.mix,
             taken(x.dy, query_tokens)};
  }

  mhla::OperandViews<T> operands() const { return {local.q, local.k, local.v, local.mix}; }

  void require_y(const HostTensor<T, 4>& y) const {
    require_same("y", rank, taken(call::forward(attention, x), query_tokens), y);
  }

  /// `gradients` is what `layer` made of the operands, which it held before. Owns(head, row,
  /// column) says what of dmix is this rank's.
  template <class Owns>
  void require_gradients(call::Gradients<T>& gradients, Update update, const Owns& owns) const {
    call::Gradients<T> whole(x);
    call::backward_to(whole.views(), update, attention, x);
    require_same("dq", rank, taken(whole.query, query_tokens), gradients.query);
    require_same("dk", rank, taken(whole.key, key_tokens), gradients.key);
    require_same("dv", rank, taken(whole.value, key_tokens), gradients.value);
    HostTensor<A, 3> mix = whole.mix;
    for (Index h = 0; h < shape.mix_heads; ++h)
      for (Index i = 0; i < shape.mix_query_blocks; ++i)
        for (Index b = 0; b < shape.mix_key_blocks; ++b)
          if (!owns(h, i, b))
            mix.view()(h, i, b) = update == Update::overwrite ? A(0) : x.mix.view()(h, i, b);
    require_same("dmix", rank, mix, gradients.mix);
  }
};

}  // namespace distributed_calls
