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
using namespace mhla;
using parts::taken;

/// Blocks of a list cut at random multiples of `unit` of a sequence's.
template <class List>
Shares random_shares(const List& list, Index ranks, Index unit, std::uint64_t seed) {
  Shares shares = parts::random_parts(list.num_blocks(), ranks, seed);
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const Index end = r + 1 < shares.size() ? shares[r].end() : list.num_blocks();
    const Index first = r == 0 ? 0 : shares[r - 1].end();
    shares[r] = {first, end - list.block_in_sequence(end) % unit - first};
  }
  return shares;
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
    attention.path = mhla::Path::linear;  // as ranks have it
    const mhla::Problem problem = mhla::checked_problem(variant, shape);
    const auto query_list = mhla::query_list(variant, problem);
    const auto key_list = mhla::key_list(variant, problem);
    const Index unit = mhla::is_structured<V> ? mhla::RecurrentMixing::chunk : 1;
    queries = seed == 0 ? mhla::equal_shares(variant, shape, ranks)
                        : random_shares(query_list, ranks, unit, seed);
    keys = queries;
    if (problem.query_grid != problem.key_grid)
      keys = seed == 0 ? mhla::equal_shares(key_list.num_blocks(), ranks)
                       : random_shares(key_list, ranks, unit, 2 * seed);
    const auto at = static_cast<std::size_t>(rank);
    query_tokens = mhla::tokens_of(query_list, queries[at]);
    key_tokens = mhla::tokens_of(key_list, keys[at]);
    local = {taken(x.q, query_tokens), taken(x.k, key_tokens), taken(x.v, key_tokens), x.mix,
             taken(x.dy, query_tokens)};
  }

  mhla::OperandViews<T> operands() const { return {local.q, local.k, local.v, local.mix}; }

  void require_y(const HostTensor<T, 4>& y) const {
    require_same("y", rank, taken(call::forward(attention, x), query_tokens), y);
  }

  /// dq, dk and dv in `gradients` are what `layer` made of the operands, which they held before.
  /// Returns those of one process.
  call::Gradients<T> require_token_gradients(const call::Gradients<T>& gradients,
                                             Update update) const {
    call::Gradients<T> whole(x);
    call::backward_to(whole.views(), update, attention, x);
    require_same("dq", rank, taken(whole.query, query_tokens), gradients.query);
    require_same("dk", rank, taken(whole.key, key_tokens), gradients.key);
    require_same("dv", rank, taken(whole.value, key_tokens), gradients.value);
    return whole;
  }
  /// And dmix: owns(head, row, column) says what of it is this rank's.
  template <class Owns>
  void require_gradients(const call::Gradients<T>& gradients, Update update,
                         const Owns& owns) const {
    const call::Gradients<T> whole = require_token_gradients(gradients, update);
    HostTensor<A, 3> mix = whole.mix;
    for (Index h = 0; h < shape.mix_heads; ++h)
      for (Index i = 0; i < shape.mix_query_blocks; ++i)
        for (Index b = 0; b < shape.mix_key_blocks; ++b)
          if (!owns(h, i, b))
            mix.view()(h, i, b) = update == Update::overwrite ? A(0) : x.mix.view()(h, i, b);
    require_same("dmix", rank, mix, gradients.mix);
  }
  /// On all ranks together: the sum of what they have written to dmix is that of one process.
  template <class Communicator>
  void require_sum_of_dmix(const Communicator& communicator, const HostTensor<A, 3>& dmix,
                           Update update) const {
    call::Gradients<T> whole(x);
    call::backward_to(whole.views(), Update::overwrite, attention, x);
    const std::vector<A> all =
        mhla::gather_all(communicator, mhla::Span<const A>{dmix.elements().data(), dmix.size()});
    auto sum = HostTensor<A, 3>::like(whole.mix.view());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t at = i % sum.elements().size();
      sum.elements()[at] += update == Update::overwrite ? all[i] : all[i] - x.mix.elements()[at];
    }
    const auto compared = mhla::testing::compare(sum.view(), whole.mix.view());
    if (!(compared.rms_ratio <= tolerance::gradient_rms<A> &&
          compared.max_ratio <= tolerance::gradient_max<A>))
      throw std::runtime_error("summed over ranks, dmix is not that of one process: " +
                               compared.report());
  }
};

}  // namespace distributed_calls
