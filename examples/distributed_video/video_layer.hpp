// SPDX-License-Identifier: MIT
// The attention of Wan's layers, of which a rank has some tokens: both passes, measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed.hpp>
#include <mhla/fork_join.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "metered.hpp"

namespace distributed_video {

using mhla::testing::HostTensor;
using T = mhla::BFloat16;
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional,
                                  mhla::Unnormalized, mhla::AxialRotary>;

/// One pass of one rank: what mhla::SplitTraffic said, and what it was.
struct Pass {
  mhla::RankTraffic said;
  Meter metered;
  double milliseconds;  ///< in all; of the fastest run
  Index tensors;        ///< bytes
  Index workspace;      ///< bytes
  Index peak;           ///< bytes in memory at once, beyond those before
};

/// Of one rank.
struct Passes {
  Pass forward, backward;
};

/// Both passes, and what came of them: of tokens that are other ranks' and rows of dmix that are,
/// zeros, so that the sum over ranks is that of one process.
struct Outcome {
  Passes passes;
  std::vector<std::uint64_t> hashes;  ///< of each token's y, dq, dk and dv
  HostTensor<float, 3> dmix;
  HostTensor<T, 4> y;
};

/// The whole call in one process, called as the layers of several are.
struct OneProcess {
  Attention attention;
  mhla::Shape shape;

  Index forward_workspace_size(const mhla::ForkJoin& threads) const {
    return mhla::forward_workspace_size<T>(attention, shape, threads);
  }
  Index backward_workspace_size(const mhla::ForkJoin& threads) const {
    return mhla::backward_workspace_size<T>(attention, shape, threads);
  }
  void forward(const mhla::ForkJoin& threads, const mhla::OperandViews<T>& x,
               const mhla::TensorView<T, 4>& y, mhla::WorkspaceView workspace) const {
    mhla::forward_into(attention, threads, x.q, x.k, x.v, x.mix, y, workspace);
  }
  void backward(const mhla::ForkJoin& threads, const mhla::OperandViews<T>& x,
                const mhla::TensorView<const T, 4>& dy, const mhla::GradientViews<T>& gradients,
                mhla::Update update, mhla::WorkspaceView workspace) const {
    mhla::backward_into(attention, threads, x.q, x.k, x.v, x.mix, dy, gradients, update, workspace);
  }
};

/// A rank's work.
class VideoRank {
 public:
  VideoRank(const Attention& attention, const mhla::Shape& whole, std::vector<Index> tokens,
            const mhla::ForkJoin& threads, int repeats)
      : attention_(attention),
        whole_(whole),
        tokens_(std::move(tokens)),
        threads_(threads),
        repeats_(repeats) {}

  /// `take_meter` waits for all ranks, and returns what the communicator has counted since.
  template <class Layer>
  Outcome run(const Layer& layer, const std::function<Meter()>& take_meter) const {
    MemoryPeak peak;
    const auto q = random(1), k = random(2), v = random(3);
    HostTensor<float, 3> mix(1, whole_.mix_query_blocks, whole_.mix_key_blocks);
    mhla::initialize(mix.view(), attention_);
    const mhla::OperandViews<T> x{q, k, v, mix};
    Outcome outcome;
    outcome.hashes.resize(static_cast<std::size_t>(whole_.query_tokens));
    {
      const mhla::Workspace workspace(layer.forward_workspace_size(threads_));
      auto y = HostTensor<T, 4>::like(q.view());
      outcome.passes.forward =
          measure(take_meter, [&] { layer.forward(threads_, x, y.view(), workspace); });
      finish(outcome.passes.forward, peak, workspace, 4);
      take_hashes(outcome, y);
      outcome.y = std::move(y);
    }
    const mhla::Workspace workspace(layer.backward_workspace_size(threads_));
    const auto dy = random(4);
    auto dq = HostTensor<T, 4>::like(q.view()), dk = dq, dv = dq;
    outcome.dmix = HostTensor<float, 3>::like(mix.view());
    const mhla::GradientViews<T> gradients{dq.view(), dk.view(), dv.view(), outcome.dmix.view()};
    outcome.passes.backward = measure(take_meter, [&] {
      layer.backward(threads_, x, dy.view(), gradients, mhla::Update::overwrite, workspace);
    });
    finish(outcome.passes.backward, peak, workspace, 7);
    for (const auto* gradient : {&dq, &dk, &dv}) take_hashes(outcome, *gradient);
    return outcome;
  }

 private:
  // The same numbers whatever the ranks: of its tokens [1, heads, tokens, dim].
  HostTensor<T, 4> random(std::uint64_t seed) const {
    HostTensor<T, 4> tensor(1, whole_.heads, count(), whole_.key_dim);
    threads_.parallel_for(whole_.heads * count(), [&](Index row, Index) {
      const Index head = row / count();
      const Index i = row % count();
      const Index first = (head * whole_.query_tokens + token(i)) * whole_.key_dim;
      for (Index c = 0; c < whole_.key_dim; ++c) {
        const double x = mhla::testing::Uniform{-1, 1}(seed, static_cast<std::uint64_t>(first + c));
        mhla::store(tensor(Index{0}, head, i, c), static_cast<float>(x));
      }
    });
    return tensor;
  }

  template <class Call>
  Pass measure(const std::function<Meter()>& take_meter, const Call& call) const {
    Pass fastest{};
    fastest.milliseconds = std::numeric_limits<double>::infinity();
    for (int run = 0; run < repeats_; ++run) {
      take_meter();
      const auto start = Clock::now();
      call();
      const double taken = milliseconds_since(start);
      if (const Meter meter = take_meter(); taken < fastest.milliseconds)
        fastest = {{}, meter, taken, 0, 0, 0};
    }
    return fastest;
  }
  void finish(Pass& pass, MemoryPeak& peak, const mhla::Workspace& workspace, Index tensors) const {
    pass.tensors = tensors * whole_.heads * count() * whole_.key_dim * Index{sizeof(T)};
    pass.workspace = workspace.size();
    pass.peak = peak.bytes();
    peak.restart();
  }

  void take_hashes(Outcome& outcome, const HostTensor<T, 4>& tensor) const {
    for (Index i = 0; i < count(); ++i)
      for (Index head = 0; head < whole_.heads; ++head) {
        const std::string_view row(reinterpret_cast<const char*>(&tensor(Index{0}, head, i, 0)),
                                   static_cast<std::size_t>(whole_.key_dim) * sizeof(T));
        std::uint64_t& hash = outcome.hashes[static_cast<std::size_t>(token(i))];
        hash = 31 * hash + std::hash<std::string_view>{}(row);
      }
  }

  Index count() const { return static_cast<Index>(tokens_.size()); }
  Index token(Index i) const { return tokens_[static_cast<std::size_t>(i)]; }

  Attention attention_;
  mhla::Shape whole_;
  std::vector<Index> tokens_;
  const mhla::ForkJoin& threads_;
  int repeats_;
};

}  // namespace distributed_video
