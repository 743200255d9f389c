// SPDX-License-Identifier: MIT
// A layer shared out over ranks, modelled: bytes of the busiest rank's forward pass, and how long
// they and its arithmetic take. Prints the table of README.md, nothing is measured:
//   bench_distributed_model
#include <algorithm>
#include <cstdio>
#include <mhla/cuda/roofline.hpp>
#include <mhla/diagnostics/cost.hpp>
#include <mhla/distributed/propose_split.hpp>
#include <mhla/policy/propose_blocks.hpp>
#include <string>

namespace {

using mhla::Index;
using mhla::Shape;

constexpr double slow = 12.5e9;  // bytes a second of a rank: 100 Gb/s
constexpr double fast = 450e9;   // of an H100's NVLink, each way
constexpr Index bfloat16_bytes = 2, state_bytes = 4;

using Video = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional, mhla::Unnormalized>;
using Text = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
using Recurrence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                   mhla::NoRotation, mhla::RecurrentMixing>;

// Seconds that an H100 takes at round numbers, bound by products or by memory.
double seconds(Index flops, Index bytes) {
  return std::max(static_cast<double>(flops) / mhla::cuda::h100.sixteen_bit_flops,
                  static_cast<double>(bytes) / mhla::cuda::h100.memory_bandwidth);
}

// Two digits, or all before the point.
std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, x < 99.5 ? "%.2g" : "%.0f", x);
  return text;
}

// MB, and the milliseconds that they take on either network, one message after another in `turns`:
// bold if a rank computes for longer.
std::string exchange(Index bytes, double computing, Index turns = 1) {
  const auto time = [&](double rate) {
    const double taken = static_cast<double>(bytes * turns) / rate;
    return taken < computing ? "**" + number(1e3 * taken) + "**" : number(1e3 * taken);
  };
  return number(1e-6 * static_cast<double>(bytes)) + ": " + time(slow) + ", " + time(fast);
}

template <class V>
void print_rows(const char* name, const V& attention, Shape shape) {
  const mhla::Grid grid = attention.blocks.grid_of(shape.query_tokens);
  const Index blocks = grid.num_blocks();
  for (const Index ranks : {2, 8, 32, 128, 512}) {
    if (ranks > blocks) continue;
    constexpr bool recurs = mhla::is_structured<V>;
    const Index turns = recurs ? ranks - 1 : 1;  // states go from rank to rank
    mhla::SplitCall call{.queries = mhla::equal_shares(attention, shape, ranks)};
    const auto in_float = mhla::propose_split<mhla::BFloat16>(attention, shape, call);
    call.wire = mhla::Wire::bfloat16;
    const auto in_bfloat16 = mhla::propose_split<mhla::BFloat16>(attention, shape, call);

    const Index mhla_flops = mhla::diagnostics::forward_cost(attention, shape).flops();
    const mhla::SplitTraffic<V, mhla::BFloat16> traffic(attention, shape, call);
    const Index held = traffic.by_sequence(ranks - 1).forward.held;
    const double mixing = seconds(mhla_flops / ranks, held);
    const double heads = seconds(mhla_flops / std::min(ranks, shape.kv_heads), 0);

    // q, k, v and y of a rank; softmax attention computes much longer than it reads.
    const Index width = 2 * (shape.key_dim + shape.value_dim) * shape.heads;
    const Index tensors = shape.query_tokens * width * bfloat16_bytes / ranks;
    const Index linear_flops =
        mhla::diagnostics::linear_attention_flops(shape, shape.key_dim) / ranks;
    const Index all_pairs = mhla::diagnostics::softmax_attention_flops(shape) / ranks;
    const double softmax = seconds(mhla::is_causal<V> ? all_pairs / 2 : all_pairs, tensors);
    const Index ring = tensors / 2 * (ranks - 1);
    const Index lasp = (ranks - 1) * shape.kv_heads * shape.key_dim * shape.value_dim * state_bytes;
    std::puts(("| " + std::string(ranks == 2 ? name : "") + " | " + std::to_string(ranks) + " | " +
               number(1e3 * mixing) + " | " +
               exchange(in_float.by_sequence.forward, mixing, turns) + " | " +
               (recurs ? "" : exchange(in_bfloat16.by_sequence.forward, mixing)) + " | " +
               exchange(in_float.by_heads.forward, heads) + " | " +
               exchange(lasp, seconds(linear_flops, tensors)) + " | " + number(1e3 * softmax) +
               " | " + exchange(ring, softmax) + " |")
                  .c_str());
  }
}

Shape of(Index heads, Index key_dim, Index value_dim, Index tokens, Index rows, Index columns) {
  return {1, heads, heads, tokens, tokens, key_dim, value_dim, 1, rows, columns};
}
void print_video(const char* name, const mhla::Blocks3D& blocks) {
  const Index tokens = blocks.grid[0] * blocks.grid[1] * blocks.grid[2];
  const Index count = blocks.grid_of(tokens).num_blocks();
  print_rows((name + std::to_string(count) + " blocks").c_str(), Video{.blocks = blocks},
             of(12, 128, 128, tokens, count, count));
}
void print_text(const char* name, Index tokens, Index block) {
  const Index count = mhla::ceil_div(tokens, block);
  print_rows((name + std::to_string(count) + " blocks").c_str(), Text{.blocks = {.block = block}},
             of(4, 128, 256, tokens, count, count));
}

}  // namespace

int main() {
  std::puts(
      "| layer | ranks | MHLA | by sequence | S as bfloat16 | by heads, Ulysses "
      "| LASP-2 | softmax | ring |\n|---|---|---|---|---|---|---|---|---|");
  print_video("Wan, ", {{21, 30, 50}, {3, 10, 10}});
  print_video("Wan, ", {{21, 30, 50}, {7, 6, 5}});
  print_video("video of 1,049,760 tokens, ", mhla::propose_blocks(81, 90, 144));
  print_text("text of 32,768, ", 32768, 64);
  print_text("text of 1,048,576, ", Index{1} << 20, 1024);
  print_rows("the same, recurrence of 8 states",
             Recurrence{.blocks = {.block = 64}, .mixing = {.states = 8}},
             of(4, 128, 256, Index{1} << 20, 1, 25));
}
