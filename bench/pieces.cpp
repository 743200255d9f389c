// SPDX-License-Identifier: MIT
// What a pass is made of: its products, what packs tokens for them, and the lines of its tensors,
// each alone and in turns with the pass. Panels are hot here, so that a product's time is what its
// instructions take. pieces_forward and pieces_backward list, in shares of the pass' time:
//   products, packing, lines   what they take alone; lines: every tensor read once from where it is
//   rest                       1 - their sum: what waits for another, loops, tables
//   summaries, mixing, readout, dmix, own_block   percent of the multiply-add peak, alone
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/policy/feature_map.hpp>
#include <vector>

#include "benchmarks.hpp"
#include "memory_bandwidth.hpp"
#include "passes.hpp"

namespace bench {

namespace {

using mhla::ceil_div;
using mhla::Into;
using mhla::Span;
using mhla::cpu::Orientation;
using mhla::cpu::Panel;
using mhla::cpu::panel;

/// Panels of one head, and the loops over them that a pass makes.
class Head {
 public:
  explicit Head(const Shape& shape)
      : causal_(shape.causal()),
        blocks_(shape.blocks()),
        tokens_(shape.tokens()),
        block_tokens_(shape.block[0] * shape.block[1] * shape.block[2]),
        tiles_(ceil_div(block_tokens_,
                        causal_ ? mhla::cpu::max_causal_tile_tokens : mhla::cpu::max_tile_tokens)),
        tile_(ceil_div(block_tokens_, tiles_)),
        d_(shape.key_dim),
        e_(shape.value_dim),
        stride_((ceil_div(d_ * e_, 16) | 1) * 16),
        triangle_size_(columns() * columns()),
        memory_(4 * (3 * blocks_ * stride_ + 4 * tile_ * (d_ + e_) + tile_ * tile_ +
                     blocks_ * blocks_ + triangle_size_ + 4096)) {
    mhla::Arena arena(memory_);
    const auto take = [&](Index count) {
      const Span<float> array = arena.take<float>(count);
      for (Index i = 0; i < count; ++i) array[i] = 1 / static_cast<float>(1 + i % 7);
      return array.data;
    };
    summaries_ = {take(blocks_ * stride_), blocks_, d_ * e_, stride_};
    mixed_ = {take(blocks_ * stride_), blocks_, d_ * e_, stride_};
    keys_ = panel(take(tile_ * d_), tile_, d_);
    inputs_ = panel(take(tile_ * d_), tile_, d_);
    values_ = panel(take(tile_ * e_), tile_, e_);
    results_ = panel(take(tile_ * e_), tile_, e_);
    scores_ = panel(take(tile_ * tile_), tile_, tile_);
    mixing_ = panel(take(blocks_ * blocks_), blocks_, blocks_);
    triangle_ = {take(triangle_size_), triangle_size_};
  }

  void summaries() const {
    for_each_tile([&](Index b, Index i) {
      mhla::cpu::multiply_left_transposed_rows<float>(
          summary(summaries_, b), tile_, keys_.placed(), values_.placed(),
          i == 0 ? Into::overwrite : Into::add, nullptr);
    });
  }
  void mixing() const {
    for_each_group([&](Index first, Index rows) {
      const Panel<const float> part = mixing_.row_range(first, rows);
      const Panel<float> to = mixed_.row_range(first, rows);
      if (causal_) {
        mhla::cpu::mix<mhla::Sight::past_tokens, float>(part, first, summaries_, to);
      } else {
        mhla::cpu::mix<mhla::Sight::all, float>(part, first, summaries_, to);
      }
    });
  }
  void readout() const {
    for_each_tile([&](Index b, Index) {
      mhla::cpu::multiply_into_rows<float>(results_.placed(), keys_, summary(mixed_, b), {},
                                           nullptr);
    });
  }
  void dmix() const {
    for (Index first = 0; first < blocks_; first += columns()) {
      const Index count = std::min(columns(), blocks_ - first);
      const Panel<float> blocks = summaries_.row_range(first, count);
      const Panel<float> columns = mixing_.col_range(first, count);
      if (causal_) {
        mhla::cpu::mix_matrix_gradient<mhla::Sight::past_tokens, float>(mixed_, {0, blocks_}, first,
                                                                        blocks, columns, triangle_);
      } else {
        mhla::cpu::mix_matrix_gradient<mhla::Sight::all, float>(mixed_, {0, blocks_}, first, blocks,
                                                                columns, {});
      }
    }
  }
  void own_block() const {
    for_each_tile([&](Index, Index) {
      mhla::cpu::read_out_own_tile<float>(keys_, inputs_, values_, scores_, results_);
    });
  }
  void map() const {
    for_each_tile([&](Index, Index) {
      mhla::cpu::map_rows<mhla::Relu, float>(mhla::Relu{}, 1.0f, const_rows(inputs_), keys_);
    });
  }
  void unmap() const {
    for_each_tile([&](Index, Index) {
      mhla::cpu::unmap_rows<mhla::Relu, float, float>(mhla::Relu{}, 1.0f, const_rows(inputs_),
                                                      keys_, {}, {}, inputs_.placed(),
                                                      mhla::Update::overwrite);
    });
  }
  void copy_values() const {
    for_each_tile([&](Index, Index) {
      mhla::cpu::weighted_rows<float, float>(results_, {}, const_rows(values_));
    });
  }
  void turn(const mhla::cpu::RotationTable<float>& rotation) const {
    const Index at[3] = {0, 0, 0};
    for_each_tile([&](Index, Index) {
      // A run of the last axis at a time, as tokens lie.
      const Index run = causal_ ? tile_ : std::min<Index>(tile_, 10);
      for (Index r = 0; r < tile_; r += run)
        rotation.turn(keys_.row_range(r, std::min(run, tile_ - r)), at, mhla::Turn::forward);
    });
  }
  void transposes() const {
    for (Index b = 0; b < blocks_; ++b)
      mhla::cpu::transpose<float>(panel(mixed_.row(b), e_, d_), summary(summaries_, b));
  }

 private:
  static mhla::cpu::Rows<const float> const_rows(const Panel<float>& panel) {
    return Panel<const float>(panel).placed();
  }
  Panel<float> summary(const Panel<float>& rows, Index b) const {
    return panel(rows.row(b), d_, e_);
  }
  template <class F>
  void for_each_tile(F&& f) const {
    for (Index b = 0; b < blocks_; ++b)
      for (Index i = 0; i < tiles_; ++i) f(b, i);
  }
  template <class F>
  void for_each_group(F&& f) const {
    const mhla::cpu::RowGroups groups = this->groups();
    for (Index g = 0; g < groups.count; ++g) f(groups.begin(g), groups.size(g));
  }

  mhla::cpu::RowGroups groups() const {
    return mhla::cpu::mixing_groups(causal_ ? mhla::Sight::past_tokens : mhla::Sight::all, blocks_,
                                    blocks_, stride_);
  }
  Index columns() const { return mhla::cpu::matrix_gradient_cols(blocks_); }

  bool causal_;
  Index blocks_, tokens_, block_tokens_, tiles_, tile_, d_, e_, stride_, triangle_size_;
  mhla::Workspace memory_;
  Panel<float> summaries_, mixed_, keys_, inputs_, values_, results_, scores_, mixing_;
  Span<float> triangle_;
};

/// How often a pass runs each piece over all tokens, or blocks, of a head.
struct Counts {
  double summaries, mixing, readout, dmix, own_block;  // products
  double map, unmap, copy_values, turn, transposes;    // packing
};

Counts counts_of(const Shape& shape, bool forward) {
  const double turns = shape.model == Model::key_sum || shape.model == Model::product ? 0 : 1;
  if (!shape.causal())
    return forward ? Counts{1, 1, 1, 0, 0, 2, 0, 0, 2 * turns, 0}
                   : Counts{2, 2, 3, 1, 0, 3, 2, 2, 5 * turns, 1};
  return forward ? Counts{1, 1, 1, 0, 1, 3, 0, 0, 3, 0} : Counts{2, 2, 3, 1, 3, 5, 2, 1, 7, 1};
}

void measure_pieces(benchmark::State& state, const Shape& shape, bool forward,
                    const NamedExecutor& executor) {
  const Batch b = batch(shape, WorkingSet::L3, sizeof(float));
  Tensors<float>& tensors = tensors_of<float>(b);
  const auto calls = library_calls(b.shape, tensors, executor.executor);
  const Head head(shape);

  mhla::Workspace tables(Index{64} << 20);
  mhla::Arena arena(tables);
  mhla::cpu::RotationTable<float> rotation;
  if (shape.model == Model::video)
    rotation = mhla::cpu::rotation_table<float>(arena, mhla::AxialRotary{}, 3, shape.key_dim,
                                                grid(shape).grid_box(), executor.executor);
  if (shape.model == Model::language)
    rotation = mhla::cpu::rotation_table<float>(arena, mhla::HalfSplitRotary{}, 1, shape.key_dim,
                                                grid(shape).grid_box(), executor.executor);

  const auto touch = [](const HostTensor<float, 4>& tensor) {
    volatile float sink = read_bytes(reinterpret_cast<const char*>(tensor.elements().data()),
                                     static_cast<std::size_t>(tensor.size()) * sizeof(float));
    static_cast<void>(sink);
  };
  const std::vector<std::function<void()>> contenders = {
      forward ? calls.forward : calls.backward,
      [&] { head.summaries(); },
      [&] { head.mixing(); },
      [&] { head.readout(); },
      [&] { head.dmix(); },
      [&] { shape.causal() ? head.own_block() : void(); },
      [&] { head.map(); },
      [&] { head.unmap(); },
      [&] { head.copy_values(); },
      [&] { rotation.rotates() ? head.turn(rotation) : void(); },
      [&] { head.transposes(); },
      [&] {
        for (const auto* tensor : {&tensors.q, &tensors.k, &tensors.v, &tensors.y}) touch(*tensor);
        if (!forward)  // y stands for dy, and k and v are read twice
          for (const auto* tensor : {&tensors.k, &tensors.v, &tensors.dq, &tensors.dk, &tensors.dv})
            touch(*tensor);
      }};
  const Turns turns = take_turns<float>(state, executor.executor, executor.clock, contenders);

  const Counts n = counts_of(shape, forward);
  const double heads = static_cast<double>(b.items * shape.heads);
  const double pass = turns.median_seconds(0);
  const auto seconds = [&](std::size_t contender) { return turns.median_seconds(contender); };
  const double products =
      heads * (n.summaries * seconds(1) + n.mixing * seconds(2) + n.readout * seconds(3) +
               n.dmix * seconds(4) + n.own_block * seconds(5));
  const double packing =
      heads * (n.map * seconds(6) + n.unmap * seconds(7) + n.copy_values * seconds(8) +
               n.turn * seconds(9) + n.transposes * seconds(10));
  const double peak = median(turns.peaks) * 1e9;
  const double linear = 2.0 * static_cast<double>(shape.tokens() * shape.key_dim * shape.value_dim);
  const auto blocks = static_cast<double>(shape.blocks());
  const double pairs = shape.causal() ? blocks * (blocks - 1) / 2 : blocks * blocks;
  const double mixing = 2.0 * pairs * static_cast<double>(shape.key_dim * shape.value_dim);
  state.counters["of_FMA_peak"] = static_cast<double>(b.items) *
                                  (forward ? shape.forward_flops() : shape.backward_flops()) /
                                  pass / peak;
  state.counters["products"] = products / pass;
  state.counters["packing"] = packing / pass;
  state.counters["lines"] = seconds(11) / pass;
  state.counters["rest"] = 1 - (products + packing + seconds(11)) / pass;
  state.counters["summaries"] = linear / seconds(1) / peak;
  state.counters["mixing"] = mixing / seconds(2) / peak;
  state.counters["readout"] = linear / seconds(3) / peak;
  if (!forward) state.counters["dmix"] = mixing / seconds(4) / peak;
  state.counters["turns"] = static_cast<double>(turns.peaks.size());
}

}  // namespace

void add_pieces(const Shape& shape, const NamedExecutor& executor) {
  for (const bool forward : {true, false})
    add(std::string(forward ? "pieces_forward/" : "pieces_backward/") + shape.name + "/float/" +
            executor.name,
        [=](benchmark::State& state) { measure_pieces(state, shape, forward, executor); });
}

}  // namespace bench
