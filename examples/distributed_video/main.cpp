// SPDX-License-Identifier: MIT
// mpirun -n P distributed_video [options]: a layer shaped as Wan's, forward and backward, shared
// out by sequence and by heads.
#include <mpi.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mhla/mpi.hpp>
#include <vector>

#include "options.hpp"
#include "report.hpp"
#include "video_layer.hpp"

namespace {

using namespace distributed_video;
using mhla::MpiCommunicator;
using mhla::Wire;

class Program {
 public:
  explicit Program(const Options& options)
      : options_(options),
        attention_{.blocks = options.blocks},
        grid_(attention_.blocks.grid_of(options.tokens())),
        blocks_(grid_.num_blocks()),
        shape_{1,
               options.heads,
               options.heads,
               options.tokens(),
               options.tokens(),
               options.dim,
               options.dim,
               1,
               blocks_,
               blocks_},
        threads_(options.threads) {}

  /// Whether all was right, which the first rank alone knows.
  bool run() {
    if (first()) {
      std::printf("%td processes, %td tokens in %td blocks, %td heads of %td\n%s\n", ranks_.size(),
                  shape_.query_tokens, blocks_, shape_.heads, shape_.key_dim,
                  mhla::explain<T>(attention_, shape_, split(Wire::exact)).c_str());
      Report::print_heading();
    }
    Attention fast = attention_;
    fast.precision = mhla::Precision::fast;
    const auto by_sequence = [&](Wire wire, const Attention& attention) {
      return [this, wire, attention](const auto& ranks) {
        return mhla::sequence_parallel<T>(attention, shape_, ranks, shares(ranks.size()), {}, wire);
      };
    };
    const auto by_heads = [&](const auto& ranks) {
      return mhla::head_parallel<T>(attention_, shape_, ranks, shares(ranks.size()));
    };
    const auto said = [&](Wire wire) {
      return mhla::SplitTraffic<Attention, T>(attention_, shape_, split(wire));
    };
    const Index rank = ranks_.rank();
    const OneProcess whole{attention_, shape_};
    const auto exact = by_sequence(Wire::exact, attention_);
    const auto rounded = by_sequence(Wire::bfloat16, attention_);
    const auto in_pairs = by_sequence(Wire::exact, fast);
    const auto y = share("by sequence", exact, said(Wire::exact).by_sequence(rank), whole);
    // One process rounds likewise.
    const auto of_rounded = share("by sequence, S as bfloat16", rounded,
                                  said(Wire::bfloat16).by_sequence(rank), rounded(alone_));
    const auto of_pairs =
        share("by sequence, fast", in_pairs, said(Wire::exact).by_sequence(rank), in_pairs(alone_));
    share("by heads", by_heads, said(Wire::exact).by_heads(rank), whole);
    const double errors[] = {distance(of_rounded, y), distance(of_pairs, y)};
    if (!first()) return true;
    std::printf("y, RMS difference from exact: S as bfloat16 %.1e, fast %.1e\n", errors[0],
                errors[1]);
    if (!options_.json.empty())
      std::ofstream(options_.json)
          << "{\"ranks\": " << ranks_.size() << ", \"tokens\": " << shape_.query_tokens
          << ", \"blocks\": " << blocks_ << ", \"heads\": " << shape_.heads
          << ", \"dim\": " << shape_.key_dim << ", \"threads\": " << options_.threads
          << ", \"link\": " << options_.link << ", \"passes\": [" << report_.json() << "]}\n";
    if (report_.right())
      std::printf("Every rank has moved the bytes that were said%s\n",
                  options_.shared_only ? "." : "; all bits are those of one process.");
    return report_.right();
  }

 private:
  bool first() const { return ranks_.rank() == 0; }
  mhla::Shares shares(Index ranks) const { return mhla::equal_shares(blocks_, ranks); }
  mhla::SplitCall split(Wire wire) const {
    return {.queries = shares(ranks_.size()), .keys = {}, .wire = wire};
  }
  VideoRank holder(const mhla::BlockRange& blocks, int repeats) const {
    return {attention_, shape_, mhla::tokens_of(grid_, blocks), threads_, repeats};
  }

  /// The layer that make(communicator) makes, beside what was said of this rank and what `whole`
  /// makes of all tokens.
  /// Returns this rank's y.
  template <class Make, class Whole>
  mhla::testing::HostTensor<T, 4> share(const char* name, const Make& make,
                                        const mhla::Traffic& said, const Whole& whole) {
    const Metered communicator(ranks_, options_.link);
    const auto layer = make(communicator);
    const mhla::BlockRange own = shares(ranks_.size())[static_cast<std::size_t>(ranks_.rank())];
    Outcome outcome = holder(own, options_.repeats).run(layer, [&] {
      MPI_Barrier(MPI_COMM_WORLD);
      return communicator.take();
    });
    outcome.passes.forward.said = said.forward;
    outcome.passes.backward.said = said.backward;
    std::vector<Passes> all(static_cast<std::size_t>(ranks_.size()));
    MPI_Gather(&outcome.passes, sizeof(Passes), MPI_BYTE, all.data(), sizeof(Passes), MPI_BYTE, 0,
               MPI_COMM_WORLD);
    sum_up(outcome.hashes.data(), static_cast<Index>(outcome.hashes.size()), MPI_UINT64_T);
    sum_up(outcome.dmix.view().data, outcome.dmix.size(), MPI_FLOAT);
    if (!first()) return outcome.y;
    report_.add(name, all);
    if (options_.shared_only) return outcome.y;
    const Outcome one = holder({0, blocks_}, 1).run(whole, [] { return Meter{}; });
    report_.require(outcome.hashes == one.hashes, name, "y, dq, dk or dv is not one process's");
    report_.require(outcome.dmix.elements() == one.dmix.elements(), name,
                    "dmix, summed over ranks, is not one process's");
    return outcome.y;
  }
  // Of all tokens, relative to y; at the first rank.
  double distance(const mhla::testing::HostTensor<T, 4>& other,
                  const mhla::testing::HostTensor<T, 4>& y) const {
    double squares[2] = {};
    for (std::size_t i = 0; i < y.elements().size(); ++i) {
      const double element = static_cast<double>(mhla::load(y.elements()[i]));
      const double error = static_cast<double>(mhla::load(other.elements()[i])) - element;
      squares[0] += error * error;
      squares[1] += element * element;
    }
    sum_up(squares, 2, MPI_DOUBLE);
    return squares[1] > 0 ? std::sqrt(squares[0] / squares[1]) : 0;
  }
  // At the first rank.
  void sum_up(void* numbers, Index count, MPI_Datatype type) const {
    MPI_Reduce(first() ? MPI_IN_PLACE : numbers, numbers, static_cast<int>(count), type, MPI_SUM, 0,
               MPI_COMM_WORLD);
  }

  Options options_;
  Attention attention_;
  mhla::Grid grid_;
  Index blocks_;
  mhla::Shape shape_;
  mhla::ForkJoin threads_;
  // The first rank is long busy with the whole call.
  MpiCommunicator ranks_{MPI_COMM_WORLD, std::chrono::minutes(10)};
  MpiCommunicator alone_{MPI_COMM_SELF};
  Report report_;
};

int run(const std::vector<std::string>& arguments) {
  try {
    Options options;
    options.parse(arguments);
    return Program(options).run() ? 0 : 1;
  } catch (const training::UsageError& error) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) std::fprintf(stderr, "distributed_video: %s", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distributed_video: %s\n", error.what());
    return MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const int status = run({argv + 1, argv + argc});
  MPI_Finalize();
  return status;
}
