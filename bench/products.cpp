// SPDX-License-Identifier: MIT
// Products alone, again and again from the L1 or L2 cache, in turns with libxsmm's: of cubes, and
// those that the stages compute for a head, summaries a^T b over the tokens of a block and readouts
// a b of as many rows. All overwrite their result.
//   float      row-major; a^T is read as it lies by both (libxsmm: TRANS_B)
//   bfloat16   factors in pairs of terms, packed beforehand for both (libxsmm: VNNI_A, and a^T
//              transposed beforehand, too); results in float, and readouts' rounded to bfloat16
// Results are first compared with a loop in double. Columns:
//   GFLOP/s, of_peak, peak   of the product's own extents; the peak is that of multiply-adds, for
//                            bfloat16 of VDPBF16PS
//   libxsmm_GFLOP/s, libxsmm_of_peak, of_libxsmm   its own, and our rate over its
#include <benchmark/benchmark.h>

#include <cmath>
#include <functional>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/pairs/panel.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "benchmarks.hpp"
#include "libxsmm_products.hpp"

namespace bench {

namespace {

using mhla::BFloat16;
using mhla::Into;
using mhla::cpu::LeftFactor;
using mhla::cpu::Panel;
using mhla::cpu::panel;
using mhla::cpu::VnniPanel;

enum class ProductKind { cube, summary, readout };

struct Extents {
  ProductKind kind;
  Index rows, cols, depth;

  bool transposed() const { return kind == ProductKind::summary; }
  double flops() const { return 2 * static_cast<double>(rows * cols * depth); }
  std::string name() const {
    const char* const kinds[] = {"cube", "summary", "readout"};
    return std::string(kinds[static_cast<int>(kind)]) + "_" + std::to_string(rows) + "x" +
           std::to_string(cols) + "x" + std::to_string(depth);
  }
};

/// Factors a [rows, depth] and b [depth, cols] of few bits: all sums of their products are exact.
class Factors {
 public:
  explicit Factors(const Extents& e) : extents(e), arena_(memory_) {
    a = panel(take<float>(e.rows * e.depth), e.rows, e.depth);
    b = panel(take<float>(e.depth * e.cols), e.depth, e.cols);
    unsigned state = 1;
    for (const Panel<float>& factor : {a, b})
      for (Index i = 0; i < factor.rows * factor.cols; ++i) {
        state = state * 1664525u + 1013904223u;
        factor.data[i] = static_cast<float>(static_cast<int>(state >> 25) - 64) / 64;
      }
  }
  template <class T>
  T* take(Index count) {
    return arena_.take<T>(count).data;
  }

  /// Whether `c` is the product, but for one rounding to Sum.
  template <class Sum>
  bool gives(const Panel<Sum>& c) const {
    const double epsilon = std::is_same_v<Sum, float> ? 0 : 1.0 / 256;
    for (Index i = 0; i < c.rows; ++i)
      for (Index j = 0; j < extents.cols; ++j) {
        double sum = 0;
        for (Index k = 0; k < extents.depth; ++k)
          sum += static_cast<double>(a.row(i)[k]) * static_cast<double>(b.row(k)[j]);
        const double error = static_cast<double>(mhla::load(c.row(i)[j])) - sum;
        if (!(std::abs(error) <= epsilon * std::abs(sum))) return false;
      }
    return true;
  }

  const Extents extents;
  Panel<float> a, b;

 private:
  mhla::Workspace memory_{Index{8} << 20};
  mhla::Arena arena_;
};

/// Our product and libxsmm's, which is empty where there is none, and whether they are right.
struct Contenders {
  std::function<void()> ours, libxsmm;
  std::function<bool()> ours_is_right, libxsmm_is_right;
};

Contenders contenders_of(Factors& f, float) {
  const Extents& e = f.extents;
  Panel<float> a = f.a;
  if (e.transposed()) {
    a = panel(f.take<float>(e.rows * e.depth), e.depth, e.rows);
    mhla::cpu::transpose<float>(a, f.a);
  }
  const Panel<float> b = f.b;
  const Panel<float> c = panel(f.take<float>(e.rows * e.cols), e.rows, e.cols);
  const Panel<float> d = panel(f.take<float>(e.rows * e.cols), e.rows, e.cols);
  const auto ours = [=] {
    if (e.transposed()) {
      mhla::cpu::multiply_left_transposed<float>(c, a, b);
    } else {
      mhla::cpu::multiply<float>(c, a, b);
    }
  };
  return {ours,
          libxsmm_product(LibxsmmProduct<float, float>{e.rows, e.cols, e.depth, a.data, a.stride,
                                                       e.transposed(), b.data, b.stride, d.data,
                                                       d.stride}),
          [=, &f] { return f.gives(c); }, [=, &f] { return f.gives(d); }};
}

Contenders contenders_of(Factors& f, BFloat16) {
  const Extents& e = f.extents;
  // Terms 2 k and 2 k + 1 side by side: a row of a is as it was.
  const Panel<BFloat16> a = panel(f.take<BFloat16>(e.rows * e.depth), e.rows, e.depth);
  for (Index i = 0; i < e.rows * e.depth; ++i) mhla::store(a.data[i], f.a.data[i]);
  const auto pair_panel = [&](Index terms, Index cols) {
    return mhla::cpu::pair_panel(
        f.take<mhla::cpu::Pair>(mhla::cpu::pairs_of(terms) * mhla::cpu::whole_columns(cols)), terms,
        cols);
  };
  const VnniPanel b = pair_panel(e.depth, e.cols);
  mhla::cpu::pair_rows<float>(b, e.depth, Panel<const float>(f.b).placed());
  LeftFactor left =
      mhla::cpu::paired_rows(reinterpret_cast<mhla::cpu::Pair*>(a.data), e.rows, e.depth);
  if (e.transposed()) {
    const Panel<float> tokens = panel(f.take<float>(e.rows * e.depth), e.depth, e.rows);
    mhla::cpu::transpose<float>(tokens, f.a);
    const VnniPanel pairs = pair_panel(e.depth, e.rows);
    mhla::cpu::pair_rows<float>(pairs, e.depth, Panel<const float>(tokens).placed());
    left = pairs.transposed();
  }
  const auto with = [&](auto sum, const auto& multiply) -> Contenders {
    using Sum = decltype(sum);
    const Index stride = mhla::cpu::whole_columns(e.cols);
    const Panel<Sum> c = panel(f.take<Sum>(e.rows * stride), e.rows, stride);
    const Panel<Sum> d = panel(f.take<Sum>(e.rows * stride), e.rows, stride);
    return {[=] { multiply(c); },
            libxsmm_product(LibxsmmProduct<BFloat16, Sum>{
                e.rows, e.cols, e.depth, a.data, a.stride, false,
                reinterpret_cast<const BFloat16*>(b.data), b.stride, d.data, d.stride}),
            [=, &f] { return f.gives(c); }, [=, &f] { return f.gives(d); }};
  };
  if (e.kind == ProductKind::readout)
    return with(BFloat16{}, [=](const Panel<BFloat16>& c) {
      mhla::cpu::multiply(mhla::cpu::stored_in(c.placed(), b.cols, {}), left, b, nullptr);
    });
  return with(0.0f,
              [=](const Panel<float>& c) { mhla::cpu::multiply(c, left, b, Into::overwrite); });
}

template <class T>
void measure(benchmark::State& state, const Extents& extents, const NamedExecutor& executor) {
  Factors factors(extents);
  const Contenders contenders = contenders_of(factors, T{});
  const bool has_peer = static_cast<bool>(contenders.libxsmm);
  contenders.ours();
  if (!contenders.ours_is_right()) return state.SkipWithError("computes something else");
  if (has_peer) {
    contenders.libxsmm();
    if (!contenders.libxsmm_is_right())
      return state.SkipWithError("libxsmm computes something else");
  }
  const auto repeats = static_cast<Index>(std::ceil(2e7 / extents.flops()));
  const auto repeated = [&](const std::function<void()>& run) -> std::function<void()> {
    return [&run, repeats] {
      for (Index i = 0; i < repeats; ++i) run();
    };
  };
  std::vector<std::function<void()>> runs{repeated(contenders.ours)};
  if (has_peer) runs.push_back(repeated(contenders.libxsmm));
  const Turns turns = take_turns<T>(state, executor.executor, executor.clock, runs);
  const double flops = extents.flops() * static_cast<double>(repeats) * 1e-9;
  const double peak = median(turns.peaks);
  state.counters["GFLOP/s"] = flops / turns.median_seconds(0);
  state.counters["of_peak"] = flops / turns.median_seconds(0) / peak;
  state.counters["peak"] = peak;
  state.counters["noise"] = noise(turns.seconds[0]);
  state.counters["turns"] = static_cast<double>(turns.seconds[0].size());
  if (!has_peer) return;
  state.counters["libxsmm_GFLOP/s"] = flops / turns.median_seconds(1);
  state.counters["libxsmm_of_peak"] = flops / turns.median_seconds(1) / peak;
  state.counters["of_libxsmm"] = turns.median_seconds(1) / turns.median_seconds(0);
}

}  // namespace

void add_products(const NamedExecutor& executor) {
  benchmark::AddCustomContext("libxsmm", libxsmm_target());
  std::vector<Extents> products;
  for (const Index size : {16, 32, 64, 128})
    products.push_back({ProductKind::cube, size, size, size});
  struct Head {
    Index key_dim, value_dim;
  };
  for (const Head& head : {Head{64, 64}, Head{72, 72}, Head{128, 128}, Head{128, 256}})
    for (const Index tokens : {16, 64, 100, 210}) {
      products.push_back({ProductKind::summary, head.key_dim, head.value_dim, tokens});
      products.push_back({ProductKind::readout, tokens, head.value_dim, head.key_dim});
    }
  for (const Extents& e : products) {
    const auto name = [&](const std::string& scalar) {
      return "product/" + e.name() + "/" + scalar + "/" + executor.name;
    };
    add(name("float"), [=](benchmark::State& state) { measure<float>(state, e, executor); });
    if (mhla::cpu::pair_instruction() == mhla::cpu::PairInstruction::vdpbf16ps)
      add(name("bfloat16"),
          [=](benchmark::State& state) { measure<BFloat16>(state, e, executor); });
  }
}

}  // namespace bench
