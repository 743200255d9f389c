// SPDX-License-Identifier: MIT
// The library and what a user would have instead, in turns on the same tensors. Besides the
// library's own columns, for each peer PEER_ms, PEER_GFLOP/s and PEER_ratio, its time over the
// library's:
//   eigen     the same attention written with Eigen alone (bidirectional shapes with MixedKeySum)
//   linear    global linear attention: one block (shapes without rotation)
//   softmax   tiled softmax attention. It runs as many tiles of queries as make about a GFLOP,
//             evenly spread over the batch, and its time is scaled by its FLOPs: softmax_share
//             says how much of one image or sequence was run, 1 being all of it.
// Peers are checked first: a result that is not what it should be is an error.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks.hpp"
#include "eigen_by_hand.hpp"
#include "passes.hpp"
#include "tiled_softmax.hpp"

namespace bench {

namespace {

Rows<float> rows(const HostTensor<float, 4>& t, Index n, Index h) {
  return {&t(n, h, 0, 0), t.extent(2), t.extent(3)};
}
Result<float> result_rows(HostTensor<float, 4>& t, Index n, Index h) {
  return {&t(n, h, 0, 0), t.extent(2), t.extent(3)};
}

/// Calls f(n, h) for every head of every image.
template <class F>
void for_each_head(const Tensors<float>& t, F&& f) {
  for (Index n = 0; n < t.q.extent(0); ++n)
    for (Index h = 0; h < t.q.extent(1); ++h) f(n, h);
}

BlockTokens block_tokens(const Shape& shape) {
  BlockTokens tokens(static_cast<std::size_t>(shape.blocks()));
  const mhla::Grid blocks = grid(shape);
  for (Index token = 0; token < shape.tokens(); ++token)
    tokens[static_cast<std::size_t>(blocks.block_of(token))].push_back(token);
  return tokens;
}

Matrix<float> mixing(const Tensors<float>& t) {
  return Rows<float>(&t.mix(0, 0, 0), t.mix.extent(1), t.mix.extent(2));
}

std::function<void()> eigen_forward(const Shape& shape, Tensors<float>& t) {
  return [&t, tokens = block_tokens(shape), mix = mixing(t)] {
    for_each_head(t, [&](Index n, Index h) {
      mhla_by_hand<float>(rows(t.q, n, h), rows(t.k, n, h), rows(t.v, n, h), mix, tokens,
                          result_rows(t.y, n, h));
    });
  };
}

std::function<void()> eigen_backward(const Shape& shape, Tensors<float>& t) {
  return [&t, tokens = block_tokens(shape), mix = mixing(t)] {
    Matrix<float> dmix = Matrix<float>::Zero(mix.rows(), mix.cols());
    for_each_head(t, [&](Index n, Index h) {
      mhla_gradients_by_hand<float>(rows(t.q, n, h), rows(t.k, n, h), rows(t.v, n, h), mix, tokens,
                                    rows(t.dy, n, h), result_rows(t.dq, n, h),
                                    result_rows(t.dk, n, h), result_rows(t.dv, n, h), dmix);
    });
    std::copy_n(dmix.data(), dmix.size(), &t.dmix(0, 0, 0));
  };
}

std::function<void()> linear_forward(Tensors<float>& t) {
  return [&t] {
    for_each_head(t, [&](Index n, Index h) {
      global_linear_attention<float>(rows(t.q, n, h), rows(t.k, n, h), rows(t.v, n, h),
                                     result_rows(t.y, n, h));
    });
  };
}

/// A tile of queries of one head of the batch.
struct QueryTile {
  Index n, h, first, rows;
  double flops;
};

/// Tiles that make about a GFLOP, evenly spread over the batch, but at least one.
std::vector<QueryTile> spread_tiles(const Batch& b) {
  const Shape& shape = b.shape;
  std::vector<QueryTile> tiles;
  double flops = 0;
  for (Index n = 0; n < b.items; ++n)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index first = 0; first < shape.tokens(); first += softmax_query_tile) {
        const Index count = std::min<Index>(softmax_query_tile, shape.tokens() - first);
        const double keys = shape.causal() ? static_cast<double>(2 * first + count + 1) / 2
                                           : static_cast<double>(shape.tokens());
        const double own = 2 * static_cast<double>(count) * keys *
                           static_cast<double>(shape.key_dim + shape.value_dim);
        tiles.push_back({n, h, first, count, own});
        flops += own;
      }
  const auto all = static_cast<double>(tiles.size());
  const auto some =
      std::max<std::size_t>(1, static_cast<std::size_t>(all * std::min(1.0, 1e9 / flops)));
  std::vector<QueryTile> spread;
  for (std::size_t i = 0; i < some; ++i)
    spread.push_back(tiles[static_cast<std::size_t>((static_cast<double>(i) + 0.5) * all /
                                                    static_cast<double>(some))]);
  return spread;
}

std::function<void()> softmax_forward(const Shape& shape, Tensors<float>& t,
                                      const std::vector<QueryTile>& tiles) {
  return [&t, tiles, causal = shape.causal(), scratch = SoftmaxTile<float>()]() mutable {
    for (const QueryTile& tile : tiles)
      softmax_query_rows<float>(rows(t.q, tile.n, tile.h), rows(t.k, tile.n, tile.h),
                                rows(t.v, tile.n, tile.h), tile.first, causal, scratch,
                                {&t.y(tile.n, tile.h, tile.first, 0), tile.rows, t.y.extent(3)});
  };
}

/// Softmax attention of one query in double, as its definition reads, against what is in y.
bool softmax_is_right(const Shape& shape, const Tensors<float>& t, const QueryTile& tile) {
  const Index query = tile.first + tile.rows - 1;
  const Rows<float> k = rows(t.k, tile.n, tile.h);
  const Index keys = shape.causal() ? query + 1 : k.rows();
  const Eigen::RowVectorXd q = rows(t.q, tile.n, tile.h).row(query).cast<double>();
  const Column<double> scores = k.topRows(keys).cast<double>() * q.transpose() /
                                std::sqrt(static_cast<double>(shape.key_dim));
  const Column<double> weights = (scores.array() - scores.maxCoeff()).exp();
  const Eigen::RowVectorXd expected =
      weights.transpose() * rows(t.v, tile.n, tile.h).topRows(keys).cast<double>() / weights.sum();
  const Eigen::RowVectorXd actual = rows(t.y, tile.n, tile.h).row(query).cast<double>();
  return (actual - expected).norm() < 1e-4 * expected.norm();
}

/// Whether a peer's results are the library's, but for rounding.
template <class Tensor>
bool agree(const Tensor& a, const Tensor& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    const auto x = static_cast<double>(a.elements()[i]);
    const auto y = static_cast<double>(b.elements()[i]);
    difference += (x - y) * (x - y);
    size += x * x;
  }
  return difference <= 1e-8 * size;
}

struct Peer {
  std::string name;
  std::function<void()> run;
  double flops;      ///< of a run
  double scale = 1;  ///< times its time is what the whole batch would take
};

void report_peers(benchmark::State& state, const Turns& turns, const std::vector<Peer>& peers,
                  double items) {
  for (std::size_t p = 0; p < peers.size(); ++p) {
    const double seconds = turns.median_seconds(p + 1);
    const Peer& peer = peers[p];
    state.counters[peer.name + "_ms"] = seconds * peer.scale / items * 1e3;
    state.counters[peer.name + "_GFLOP/s"] = peer.flops / seconds * 1e-9;
    state.counters[peer.name + "_ratio"] = seconds * peer.scale / turns.median_seconds(0);
  }
}

Turns run_in_turns(benchmark::State& state, const NamedExecutor& executor,
                   const std::function<void()>& library, const std::vector<Peer>& peers) {
  std::vector<std::function<void()>> contenders{library};
  for (const Peer& peer : peers) contenders.push_back(peer.run);
  return take_turns<float>(state, executor.executor, executor.clock, contenders);
}

void peers_forward(benchmark::State& state, const Shape& shape, const NamedExecutor& executor) {
  const Batch b = batch(shape, WorkingSet::L3, sizeof(float));
  Tensors<float>& t = tensors_of<float>(b);
  const auto calls = library_calls(b.shape, t, executor.executor);
  const Work amount = work_of(PassKind::forward, b, sizeof(float), calls);
  std::vector<Peer> peers;
  if (shape.model == Model::key_sum) {
    calls.forward();
    const HostTensor<float, 4> expected = t.y;
    peers.push_back({"eigen", eigen_forward(shape, t), amount.flops});
    peers.back().run();
    if (!agree(expected, t.y)) return state.SkipWithError("Eigen by hand computes something else");
  }
  if (shape.model == Model::key_sum || shape.model == Model::product)
    peers.push_back(
        {"linear", linear_forward(t),
         4 * amount.tokens * static_cast<double>(shape.heads * shape.key_dim * shape.value_dim)});
  const std::vector<QueryTile> tiles = spread_tiles(b);
  double flops = 0;
  for (const QueryTile& tile : tiles) flops += tile.flops;
  const double all_flops = shape.softmax_flops() * amount.items;
  peers.push_back({"softmax", softmax_forward(shape, t, tiles), flops, all_flops / flops});
  peers.back().run();
  if (!softmax_is_right(shape, t, tiles.back()))
    return state.SkipWithError("tiled softmax attention computes something else");
  const Turns turns = run_in_turns(state, executor, calls.forward, peers);
  report(state, turns, amount);
  report_peers(state, turns, peers, amount.items);
  state.counters["softmax_share"] = std::min(1.0, flops / shape.softmax_flops());
}

void peers_backward(benchmark::State& state, const Shape& shape, const NamedExecutor& executor) {
  const Batch b = batch(shape, WorkingSet::L3, sizeof(float));
  Tensors<float>& t = tensors_of<float>(b);
  const auto calls = library_calls(b.shape, t, executor.executor);
  const Work amount = work_of(PassKind::backward, b, sizeof(float), calls);
  calls.backward();
  const HostTensor<float, 4> dq = t.dq, dk = t.dk, dv = t.dv;
  const HostTensor<float, 3> dmix = t.dmix;
  // It computes the numerators again too, for c = -<u, y>.
  const double flops =
      amount.flops +
      2 * amount.tokens * static_cast<double>(shape.heads * shape.key_dim * shape.value_dim);
  const std::vector<Peer> peers{{"eigen", eigen_backward(shape, t), flops}};
  peers.back().run();
  if (!agree(dq, t.dq) || !agree(dk, t.dk) || !agree(dv, t.dv) || !agree(dmix, t.dmix))
    return state.SkipWithError("Eigen by hand computes something else");
  const Turns turns = run_in_turns(state, executor, calls.backward, peers);
  report(state, turns, amount);
  report_peers(state, turns, peers, amount.items);
}

}  // namespace

void add_peers(const Shape& shape, const NamedExecutor& executor) {
  const std::string suffix = "/" + shape.name + "/float/" + executor.name;
  add("peers_forward" + suffix,
      [=](benchmark::State& state) { peers_forward(state, shape, executor); });
  if (shape.model == Model::key_sum)
    add("peers_backward" + suffix,
        [=](benchmark::State& state) { peers_backward(state, shape, executor); });
}

}  // namespace bench
