// SPDX-License-Identifier: MIT
// What the tokens of the open block i do for the next ones by a recurrence, whose states take the
// place of the closed blocks' summaries: of the columns that are their share (decode_step.hpp),
//
//   H_i = g_i H_i-1 + b_i S_i-1        P_i+1 = sum_r a_i+1,r g_i+1,r H_i^r
//
// and m_i,i-1 = sum_r a_ir b_ir.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/decode_step.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/policy/recurrent_mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// state = decay state + write sum, of row i; the first row begins anew.
template <class A>
void advance_state(A* state, Index row, A decay, A write, const A* sum, Index count) {
  if (row == 1) std::fill_n(state, count, A(0));
  scale_rows(panel(state, 1, count), row == 1 ? A(1) : decay);
  add_scaled_row(state, write, sum, count);
}

/// prepare_next_block by a recurrence: the share's columns of H_i and of P_i+1.
/// `row(matrix, block)` is a RecurrentRow, or has no data; `summary` is scratch
/// [value_dim, feature_dim].
template <class A, class Row>
void advance_states(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile,
                    const Row& row, A* summary) {
  const DecodeShare share(e, tile);
  const Index width = share.count * e.feature_dim;
  if (tile.block == 0 || width == 0) return;
  summarize_share(e, unit, tile, share, summary);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const RecurrentRow<A> now = row(matrix, tile.block);
    const RecurrentRow<A> next = row(matrix, tile.block + 1);
    A* const mixed =
        unit.mixed[tile.closing()].data + matrix * e.summary_size() + share.first * e.feature_dim;
    std::fill_n(mixed, width, A(0));
    for (Index r = 0; r < e.states; ++r) {
      A* const state = unit.state(e, matrix, r, share.first);
      advance_state(state, tile.block, now.decay(r), now.write_weight(r), summary, width);
      if (next.row != nullptr)
        add_scaled_row<A>(mixed, next.read_weight(r) * next.decay(r), state, width);
    }
  }
}

/// The recurrence of key sums, when block i is closed: H_i+1 and z~_i+1.
template <class A, class Row>
void advance_key_sums(const DecodeExtents& e, const DecodeUnit<A>& unit, Index block,
                      const Row& row) {
  const int next_parity = static_cast<int>((block + 1) % 2);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const RecurrentRow<A> next = row(matrix, block + 1);
    if (next.row == nullptr) continue;
    A* const mixed = unit.mixed_sums[next_parity].data + matrix * e.feature_dim;
    std::fill_n(mixed, e.feature_dim, A(0));
    for (Index r = 0; r < e.states; ++r) {
      A* const state = unit.state_sum(e, matrix, r);
      advance_state(state, block + 1, next.decay(r), next.write_weight(r),
                    unit.open_key_sum(e, block).data, e.feature_dim);
      add_scaled_row<A>(mixed, next.read_weight(r), state, e.feature_dim);
    }
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
