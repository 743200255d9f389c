// SPDX-License-Identifier: MIT
// Attention through 16-bit summaries in one launch (arXiv 2601.07832, eqs. 3 to 5): the kernels of
// block_summary.cuh, block_mixing.cuh and readout.cuh in resident thread blocks, which take tickets
// in the order of persistent.hpp.
//
//   S_b, z_b of a unit, in places that an earlier unit's readout has left
//   S~_i in place of S_b, and z~_i = sum_b m_ib z_b in float, once all of those are complete
//   y, once all of these are
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/persistent.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// z~ = m z for slices of columns, of units that share a matrix or have one each.
template <int KeyDim, int MostBlocks>
struct MixKeySums {
  static constexpr int threads = 256;
  static constexpr int slice = key_sum_slice(KeyDim);
  static constexpr int slices = KeyDim / slice;
  static constexpr int shared_bytes = MostBlocks * slice * 4;

  MixingWork work;
  MixingMatrices mixing;
  const float* key_sums;  // z, [units, key blocks, KeyDim]
  float* mixed_key_sums;  // z~, [units, query blocks, KeyDim]

  struct alignas(16) FourFloats {
    float value[4];
  };
  static constexpr int quads = slice / 4;

  MHLA_DEVICE static Shared place(int b, int quad) {
    return static_cast<Shared>((b * quads + quad) * 16);
  }

  /// Calls `wait` before key sums are read; those of unit n are where those of unit n + shift would
  /// be.
  template <class Wait>
  MHLA_DEVICE void mix(const Block& block, int unit, int first_column, const Wait& wait,
                       Index shift) const {
    const float* const matrix = mixing.data + unit % work.kv_heads * mixing.head_stride;
    const Index of_unit = unit + shift;
    wait();
    const float* const from = key_sums + of_unit * work.inner * KeyDim + first_column;
    for (int n = block.thread; n < work.inner * quads; n += threads)
      machine::copy_chunk(place(n / quads, n % quads), from + n / quads * KeyDim + n % quads * 4,
                          true);
    machine::commit_copies();
    machine::wait_for_copies<0>();
    block.sync();
    float* const to = mixed_key_sums + of_unit * work.rows * KeyDim + first_column;
    for (int n = block.thread; n < work.rows * quads; n += threads) {
      const int i = n / quads;
      FourFloats sum{};
      for (int b = 0; b < work.inner_end(i + 1); ++b) {
        const float weight = machine::load_from(matrix + i * mixing.row_stride + b);
        const auto of_block = machine::read<FourFloats>(place(b, n % quads));
        for (int e = 0; e < 4; ++e) sum.value[e] += weight * of_block.value[e];
      }
      machine::store_to(reinterpret_cast<FourFloats*>(to + i * KeyDim + n % quads * 4), sum);
    }
  }
};

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Side, bool Divides,
          class Own = NoOwnTokens>
struct AttendPersistently {
  using Summarize = SummarizeBlocks<T, Map, Rotates, KeyDim, ValueDim, forward_parts, Divides>;
  using Mix = MixBlocks<T, forward_parts, Side, true>;
  using MixSums = MixKeySums<KeyDim, Side>;
  using ReadOut = ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, forward_parts, Divides, Own>;
  static constexpr int threads = 256;
  static constexpr int min_blocks_per_sm = KeyDim > 128 || ReadOut::adds_own ? 1 : 2;
  static constexpr int shared_bytes = std::max(
      {Summarize::shared_bytes, Mix::shared_bytes, MixSums::shared_bytes, ReadOut::shared_bytes});
  static_assert(Summarize::threads == threads && Mix::threads == threads &&
                ReadOut::threads == threads);

  UnitSchedule schedule;
  int places;  // for units' summaries, reused in turn
  Summarize summaries;
  Mix mixing;
  MixSums key_sums;
  ReadOut readout;
  machine::Counter* counters;  // tickets taken; then parts done, [stages, units]

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    for (;;) {
      const int number = next_number(block);
      if (number >= schedule.tickets()) return;
      const Ticket ticket = schedule.ticket(number);
      // Keeping what the stages share would take registers throughout.
      run(Block{block.number, block.blocks, machine::known_anew(block.thread)}, ticket);
      block.sync();  // all of it is written, and shared memory is no longer read
      if (block.thread == 0) machine::announce(done(ticket.stage, ticket.unit));
    }
  }

 private:
  /// One for all threads of the block.
  MHLA_DEVICE int next_number(const Block& block) const {
    if (block.thread == 0) machine::write(Shared{0}, machine::take_number(counters));
    block.sync();
    const auto number = machine::read<std::uint32_t>(Shared{0});
    block.sync();
    return static_cast<int>(number);
  }
  MHLA_DEVICE machine::Counter* done(UnitStage stage, int unit) const {
    return counters + 1 + static_cast<int>(stage) * schedule.units + unit;
  }
  MHLA_DEVICE void run(const Block& block, const Ticket& ticket) const {
    const int unit = ticket.unit;
    const Index shift = unit % places - unit;
    // All threads wait here until a stage of a unit is complete.
    const auto wait_for = [&](UnitStage stage, int of_unit) {
      const int parts = schedule.parts[static_cast<int>(stage)];
      if (block.thread == 0)
        machine::wait_for_count(done(stage, of_unit), static_cast<std::uint32_t>(parts));
      block.sync();
    };
    if (ticket.stage == UnitStage::summarize) {
      summaries.summarize(
          Block{summaries.number_of(unit, ticket.part), block.blocks, block.thread},
          [&] {
            if (unit >= places) wait_for(UnitStage::read_out, unit - places);
          },
          shift);
    } else if (ticket.stage == UnitStage::mix) {
      const auto wait = [&] { wait_for(UnitStage::summarize, unit); };
      constexpr int slices = Divides ? MixSums::slices : 0;
      if (ticket.part < slices) {
        key_sums.mix(block, unit, ticket.part * MixSums::slice, wait, shift);
      } else {
        const int stretches = schedule.parts[static_cast<int>(UnitStage::mix)] - slices;
        const int stretch = ticket.part - slices;
        const auto item = [&](int part) {
          return mixing.first_item(unit) +
                 static_cast<int>(even_split(mixing.work.panels, stretches, part));
        };
        mixing.mix(block, item(stretch), item(stretch + 1), wait, shift);
      }
    } else {
      readout.read_out(
          Block{readout.number_of(unit, ticket.part), block.blocks, block.thread},
          [&] { wait_for(UnitStage::mix, unit); }, shift);
    }
  }
};

/// Launches it, on at most `blocks` thread blocks.
template <class Body>
void attend_persistently(const CudaDevice& device, Index blocks, const Body& body) {
  machine::run_together(device, std::min(blocks, Index{body.schedule.tickets()}), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
