// SPDX-License-Identifier: MIT
// A decoder at work on the tokens of one attention call: whatever the order in which sequences are
// prefilled and stepped, y ends up where the forward pass would have put it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mhla/core/scalar.hpp>
#include <mhla/decoding.hpp>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/packed/cut.hpp"

namespace decoding {

using batches::copy;
using batches::tokens_of;
using call::Operands;
using namespace mhla;
using mhla::testing::HostTensor;

/// The sizes of a decoder that takes the operands of a call.
template <class T>
DecoderShape decoder_shape(const Operands<T>& x, Index num_slots = 1) {
  return {x.q.extent(0), x.q.extent(1), x.k.extent(1), x.q.extent(3), x.v.extent(3), num_slots};
}

/// `y` is NaN where no token has been written yet.
template <class V, class T>
struct Session {
  const Operands<T>* x;
  HostTensor<T, 4> y;
  mhla::Decoder<V, T> decoder;

  Session(const V& attention, const Operands<T>& operands, Index num_slots = 1)
      : x(&operands),
        y(operands.dy),
        decoder(attention, operands.mix, decoder_shape(operands, num_slots)) {
    for (T& element : y.elements())
      mhla::store(element, std::numeric_limits<mhla::Accumulator<T>>::quiet_NaN());
  }

  Index sequences() const { return x->q.extent(0); }
  Index tokens() const { return x->q.extent(2); }

  /// The next `count` tokens of one sequence, read and written where they lie.
  template <class E = SerialExecutor>
  void prefill(Index sequence, Index count, const E& executor = {}) {
    const Index at = decoder.position(sequence);
    decoder.prefill(executor, sequence, tokens_of(x->q.view(), sequence, at, count),
                    tokens_of(x->k.view(), sequence, at, count),
                    tokens_of(x->v.view(), sequence, at, count),
                    tokens_of(y.view(), sequence, at, count));
  }
  /// The next `count` tokens of every sequence, wherever each has got to: from and to tensors of
  /// `count` tokens.
  template <class E = SerialExecutor>
  void step(Index count = 1, const E& executor = {}) {
    std::vector<Index> at;
    for (Index s = 0; s < sequences(); ++s) at.push_back(decoder.position(s));
    const HostTensor<T, 4> q = collected(x->q, at, count);
    const HostTensor<T, 4> k = collected(x->k, at, count);
    const HostTensor<T, 4> v = collected(x->v, at, count);
    HostTensor<T, 4> out = collected(y, at, count);
    decoder.step(executor, q, k, v, out.view());
    for (Index s = 0; s < sequences(); ++s)
      copy(tokens_of(y.view(), s, at[static_cast<std::size_t>(s)], count),
           tokens_of(out.view(), s, 0, count));
  }
  /// Steps of `count` tokens, the last one shorter, until sequence 0 has all of its tokens.
  template <class E = SerialExecutor>
  void step_to_the_end(Index count = 1, const E& executor = {}) {
    while (decoder.position(0) < tokens())
      step(std::min(count, tokens() - decoder.position(0)), executor);
  }

 private:
  static HostTensor<T, 4> collected(const HostTensor<T, 4>& from, const std::vector<Index>& at,
                                    Index count) {
    HostTensor<T, 4> to(from.extent(0), from.extent(1), count, from.extent(3));
    for (Index s = 0; s < from.extent(0); ++s)
      copy(tokens_of(to.view(), s, 0, count),
           tokens_of(from.view(), s, at[static_cast<std::size_t>(s)], count));
    return to;
  }
};

/// Fails unless what a session has decoded is what the forward pass computes.
template <class T>
void check_decoded(const HostTensor<T, 4>& decoded, const HostTensor<T, 4>& expected) {
  call::check_close("y", decoded, expected, tolerance::forward_rms<T>, tolerance::forward_max<T>);
}

}  // namespace decoding
