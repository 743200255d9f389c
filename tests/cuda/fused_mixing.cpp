// SPDX-License-Identifier: MIT
// The mixing of 16-bit summaries and of key sums, and its adjoints, against plain sums in double.
// Everything that no kernel may read is NaN, what none may write must stay as it was, and summaries
// and key sums are read and written as often as the products need them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>
#include <vector>

#include "tests/cuda/machine.hpp"
#include "tests/cuda/traffic.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
namespace fused = mhla::cuda::fused;
using fused::MixingShape;
using fused::SummaryRows;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// Half an ulp of a value rounded to T, relative to it, at the most: 8 and 11 bits are stored, one
// of them by not being there. RMS over values of any size it is 0.43 of that.
template <class T>
constexpr double rounding = std::is_same_v<T, BFloat16> ? 0x1p-8 : 0x1p-11;
// What the products leave out, relative to the sum of |m S|: of m what its two parts do not hold,
// of S the product of both low parts, each rounding^2 at the most, and float sums.
template <class T>
constexpr double products = 4 * rounding<T>* rounding<T> + 0x1p-20;
// A low part of half may be subnormal: its last bit is 2^-24.
template <class T>
constexpr double smallest = std::is_same_v<T, BFloat16> ? 0 : 0x1p-24;

template <class T>
T rounded(double value) {
  T stored;
  store(stored, static_cast<float>(value));
  return stored;
}

/// Summaries in planes, with gaps of NaN between rows, matrices, units and planes.
template <class T>
struct Summaries {
  Index units, blocks, matrices, width;
  SummaryRows<T> rows;
  std::vector<T> memory;

  Summaries(Index u, Index b, Index m, Index w, int planes)
      : units(u), blocks(b), matrices(m), width(w) {
    rows.planes = planes;
    rows.matrix_stride = width + 8;
    rows.row_stride = matrices * rows.matrix_stride + 16;
    rows.unit_stride = blocks * rows.row_stride + 8;
    rows.plane_stride = units * rows.unit_stride + 24;
    memory.assign(static_cast<std::size_t>(planes * rows.plane_stride + 8), rounded<T>(nan_value));
    rows.data = memory.data() + 8;
  }
  Summaries(const Summaries& from) { *this = from; }
  Summaries& operator=(const Summaries& from) {
    units = from.units;
    blocks = from.blocks;
    matrices = from.matrices;
    width = from.width;
    rows = from.rows;
    memory = from.memory;
    rows.data = memory.data() + 8;
    return *this;
  }

  Index size() const { return units * blocks * matrices * width * rows.planes; }
  T& at(int plane, Index unit, Index block, Index matrix, Index c) const {
    return rows.data[plane * rows.plane_stride + unit * rows.unit_stride + block * rows.row_stride +
                     matrix * rows.matrix_stride + c];
  }
  void set(Index unit, Index block, Index matrix, Index c, double value) {
    for (int plane = 0; plane < rows.planes; ++plane) {
      at(plane, unit, block, matrix, c) = rounded<T>(value);
      value -= static_cast<double>(load(at(plane, unit, block, matrix, c)));
    }
  }
  double value(Index unit, Index block, Index matrix, Index c) const {
    double sum = 0;
    for (int plane = 0; plane < rows.planes; ++plane)
      sum += static_cast<double>(load(at(plane, unit, block, matrix, c)));
    return sum;
  }
  template <class F>
  void for_each(const F& f) const {
    for (Index unit = 0; unit < units; ++unit)
      for (Index block = 0; block < blocks; ++block)
        for (Index matrix = 0; matrix < matrices; ++matrix)
          for (Index c = 0; c < width; ++c) f(unit, block, matrix, c);
  }
  void fill(std::uint64_t seed) {
    std::uint64_t counter = 0;
    for_each([&](Index unit, Index block, Index matrix, Index c) {
      set(unit, block, matrix, c, mhla::testing::Normal{}(seed, counter++) + 0.5);
    });
  }
  bool same_bits(const Summaries& other) const {
    return memory.size() == other.memory.size() &&
           std::memcmp(memory.data(), other.memory.data(), memory.size() * sizeof(T)) == 0;
  }
  /// Poison where nothing belongs.
  bool gaps_are_untouched() const {
    Summaries copy = *this;
    for (int plane = 0; plane < rows.planes; ++plane)
      for_each([&](Index unit, Index block, Index matrix, Index c) {
        copy.at(plane, unit, block, matrix, c) = rounded<T>(nan_value);
      });
    return copy.same_bits(Summaries(units, blocks, matrices, width, rows.planes));
  }
};

/// Matrices of mix with NaN around the corner that mixes and wherever no query sees.
struct Matrices {
  MixingShape shape;
  Index row_stride, head_stride;
  std::vector<float> memory;

  Matrices(const MixingShape& s, std::uint64_t seed)
      : shape(s), row_stride(s.key_blocks + 3), head_stride((s.query_blocks + 1) * row_stride + 1) {
    memory.assign(static_cast<std::size_t>(s.mix_heads * head_stride), nan_value);
    std::uint64_t counter = 0;
    for (Index h = 0; h < s.mix_heads; ++h)
      for (Index i = 0; i < s.query_blocks; ++i)
        for (Index b = 0; b < s.key_blocks; ++b) {
          const auto value =
              static_cast<float>(mhla::testing::Normal{}(seed + 17, counter++) * 0.3 + 0.1);
          if (sees(i, b)) at(h, i, b) = value;
        }
  }
  bool sees(Index i, Index b) const { return mhla::sees_whole_block(shape.sight, i, b); }
  float& at(Index h, Index i, Index b) {
    return memory[static_cast<std::size_t>(h * head_stride + i * row_stride + b)];
  }
  double value(Index unit, Index matrix, Index i, Index b) const {
    const Index h = shape.shared() ? 0 : unit % shape.kv_heads * shape.matrices + matrix;
    return static_cast<double>(
        memory[static_cast<std::size_t>(h * head_stride + i * row_stride + b)]);
  }
  fused::MixingMatrices view() const { return {memory.data(), head_stride, row_stride}; }
};

/// Rows of the other side that some of the rows [first, end) see.
template <class Sees>
Index rows_seen(Index first, Index end, Index inner, const Sees& sees) {
  Index count = 0;
  for (Index at = 0; at < inner; ++at) {
    bool seen = false;
    for (Index row = first; row < end; ++row) seen = seen || sees(row, at);
    count += seen;
  }
  return count;
}

struct Errors {
  double error = 0;      // sum of squares
  double reference = 0;  // sum of squares
  double worst = 0;      // error in units of its bound
  int count = 0;         // of those that should not be zero

  void add(double actual, double expected, double bound) {
    const double difference = std::abs(actual - expected);
    error += difference * difference;
    reference += expected * expected;
    count += expected != 0;
    const double ratio = difference == 0 ? 0 : difference / bound;
    worst = ratio <= worst ? worst : ratio;  // a NaN stays
    if (!(ratio <= worst)) worst = std::numeric_limits<double>::infinity();
  }
  double rms() const { return reference == 0 ? std::sqrt(error) : std::sqrt(error / reference); }
};

enum class Direction { forward, adjoint };

/// One call of mix.
template <class T>
struct Call {
  MixingShape shape;
  Direction direction = Direction::forward;
  int planes = 1;
  int result_planes = 1;
  Index max_blocks = fused::resident_thread_blocks;
  std::uint64_t seed = 1;

  bool forward() const { return direction == Direction::forward; }
  Summaries<T> source() const {
    Summaries<T> source(shape.units, forward() ? shape.key_blocks : shape.query_blocks,
                        forward() ? 1 : shape.matrices, shape.width, planes);
    source.fill(seed);
    return source;
  }
  Summaries<T> run(const Matrices& mixing, const Summaries<T>& source) const {
    Summaries<T> result(shape.units, forward() ? shape.query_blocks : shape.key_blocks,
                        forward() ? shape.matrices : 1, shape.width, result_planes);
    run_into(mixing, source, result);
    return result;
  }
  void run_into(const Matrices& mixing, const Summaries<T>& source,
                const Summaries<T>& result) const {
    const auto device = machine::device_within_a_call();
    const long launches = machine::context().launches;
    traffic::Watch watch;
    const bool in_place = source.memory.data() == result.memory.data();
    watch("source", source.memory.data(), static_cast<Index>(source.memory.size()));
    if (!in_place) watch("result", result.memory.data(), static_cast<Index>(result.memory.size()));
    fused::mix<T>(device, shape, !forward(), mixing.view(), source.rows, result.rows, max_blocks);
    const fused::MixingWork work(shape, !forward(), max_blocks);
    // A result reads what its rows see once for each tile of its rows.
    Index read = 0;
    for (Index first = 0; first < result.blocks; first += work.side)
      read += rows_seen(first, std::min(first + work.side, result.blocks), source.blocks,
                        [&](Index row, Index at) {
                          return forward() ? mixing.sees(row, at) : mixing.sees(at, row);
                        });
    const Index matrices = shape.matrices;
    watch.check("source", shape.units * matrices * read * shape.width * planes,
                in_place ? result.size() : 0);
    if (!in_place) watch.check("result", 0, result.size());
    CHECK(machine::context().launches == launches + 1);
    // A matrix that is kept is read while the kernel before may still be under way.
    const auto early = machine::context().last_kernel_bytes_read_early;
    if (!work.keeps) CHECK(early == 0);
    if (early == 0 && shape.key_blocks > 0 && shape.matrices > 0 && shape.sight == Sight::all)
      CHECK_FALSE(work.keeps);
  }

  /// What the result should be, and the sum of |m S|.
  struct Expected {
    double value = 0;
    double magnitude = 0;
    double magnitude_of_source = 0;
  };
  Expected expected(const Matrices& mixing, const Summaries<T>& source, Index unit, Index row,
                    Index matrix, Index c) const {
    Expected sum;
    const auto add = [&](Index g, Index i, Index b, double x) {
      if (!mixing.sees(i, b)) return;
      const double term = mixing.value(unit, g, i, b) * x;
      sum.value += term;
      sum.magnitude += std::abs(term);
      sum.magnitude_of_source += std::abs(x);
    };
    if (forward()) {
      for (Index b = 0; b < shape.key_blocks; ++b) add(matrix, row, b, source.value(unit, b, 0, c));
    } else {
      for (Index g = 0; g < shape.matrices; ++g)
        for (Index i = 0; i < shape.query_blocks; ++i) add(g, i, row, source.value(unit, i, g, c));
    }
    return sum;
  }
  void check_values(const Matrices& mixing, const Summaries<T>& source,
                    const Summaries<T>& result) const {
    Errors errors;
    result.for_each([&](Index unit, Index row, Index matrix, Index c) {
      const Expected e = expected(mixing, source, unit, row, matrix, c);
      const double of_result =
          result_planes == 1 ? rounding<T> * (1 + 0x1p-7) : rounding<T> * rounding<T>;
      const double bound = of_result * std::abs(e.value) + products<T> * e.magnitude +
                           smallest<T> * (e.magnitude_of_source + e.magnitude + 2);
      errors.add(result.value(unit, row, matrix, c), e.value, bound);
    });
    CHECK(errors.worst <= 1);
    // Few elements may all round badly.
    const bool few = errors.count < 256;
    CHECK(errors.rms() <= (result_planes == 1 ? rounding<T> / (few ? 1 : 2) : 0x1p-15));
  }

  void check() const {
    CAPTURE(shape.units, shape.kv_heads, shape.mix_heads, shape.matrices, shape.query_blocks,
            shape.key_blocks, shape.width, static_cast<int>(shape.sight), forward(), planes,
            result_planes, max_blocks, seed);
    const Matrices mixing(shape, seed);
    const Summaries<T> from = source();
    const Summaries<T> before = from;
    const Summaries<T> result = run(mixing, from);
    CHECK(from.same_bits(before));
    CHECK(result.gaps_are_untouched());
    check_values(mixing, from, result);
  }
};

MixingShape shape_of(Index query_blocks, Index key_blocks, Index width) {
  MixingShape shape;
  shape.units = 1;
  shape.query_blocks = query_blocks;
  shape.key_blocks = key_blocks;
  shape.width = width;
  return shape;
}
MixingShape causal(MixingShape shape, Index lag) {
  shape.sight = lag == 0 ? Sight::past_blocks : Sight::past_tokens;
  return shape;
}
MixingShape per_head(MixingShape shape, Index batch, Index kv_heads, Index matrices) {
  shape.units = batch * kv_heads;
  shape.kv_heads = kv_heads;
  shape.matrices = matrices;
  shape.mix_heads = kv_heads * matrices;
  return shape;
}

// The types' kernels differ in the products and in rounding.
#ifdef MHLA_FULL_PRODUCT
#define ALL_TYPES BFloat16, Half
#else
#define ALL_TYPES BFloat16
#endif

constexpr Direction both[] = {Direction::forward, Direction::adjoint};

}  // namespace

TEMPLATE_TEST_CASE("Mixing and its adjoint are the sums they should be", "", BFloat16, Half) {
  struct Blocks {
    Index queries, keys, width;
  };
  for (const auto& [queries, keys, width] :
       {Blocks{1, 1, 8}, Blocks{5, 5, 264}, Blocks{16, 16, 72}, Blocks{33, 33, 64},
        Blocks{105, 105, 72}, Blocks{130, 130, 72}, Blocks{5, 16, 520}, Blocks{33, 7, 136},
        Blocks{105, 33, 8}, Blocks{16, 130, 64}, Blocks{130, 5, 8}})
    for (const Direction direction : both)
      for (const int planes : {1, 2}) {
        if (std::is_same_v<TestType, Half> && queries * keys > 4000) continue;  // BFloat16's code
        Call<TestType>{shape_of(queries, keys, width), direction, planes, planes}.check();
      }
}

TEMPLATE_TEST_CASE("Causal blocks see those before them", "", BFloat16, Half) {
  for (const Index lag : {0, 1})
    for (const Index blocks : {1, 5, 16, 33, 105, 130})
      for (const Direction direction : both) {
        if (std::is_same_v<TestType, Half> && blocks > 33) continue;  // BFloat16's code
        const int planes = blocks % 2 == 0 ? 1 : 2;
        Call<TestType>{causal(shape_of(blocks, blocks, 72), lag), direction, planes, planes}
            .check();
      }
  // Of other shapes than the library's own.
  for (const Direction direction : both) {
    Call<TestType>{causal(shape_of(20, 33, 8), 1), direction}.check();
    Call<TestType>{causal(shape_of(150, 20, 8), 0), direction}.check();
    Call<TestType>{causal(shape_of(33, 40, 8), 20), direction}.check();
  }
}

TEMPLATE_TEST_CASE("Every unit is mixed by the matrix of its head", "", ALL_TYPES) {
  for (const Direction direction : both)
    for (const auto& [batch, kv_heads, matrices] :
         {std::array<Index, 3>{2, 3, 1}, {2, 2, 3}, {1, 1, 2}})
      // So few thread blocks that each goes through several tiles, units and matrices.
      for (const Index max_blocks : {1, 5}) {
        Call<TestType>{per_head(shape_of(5, 6, 264), batch, kv_heads, matrices), direction, 1, 1,
                       max_blocks}
            .check();
        for (const Index lag : {0, 1})
          Call<TestType>{causal(per_head(shape_of(34, 34, 72), batch, kv_heads, matrices), lag),
                         direction, 2, 2, max_blocks}
              .check();
      }
  auto shared = shape_of(6, 5, 264);
  shared.units = 7;
  shared.kv_heads = 7;
  for (const Direction direction : both)
    for (const Index max_blocks : {1, 3, 264})
      Call<TestType>{shared, direction, 1, 1, max_blocks}.check();
}

TEMPLATE_TEST_CASE("What is not finite reaches those that see it, and nobody else", "", ALL_TYPES) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Index lag : {0, 1})
    for (const Index blocks : {20, 40, 140})
      for (const Direction direction : both)
        for (const int planes : {1, 2}) {
          if (blocks == 140 && planes == 1) continue;
          const auto shape = causal(shape_of(blocks, blocks, 72), lag);
          const Call<TestType> call{shape, direction, planes, planes};
          CAPTURE(lag, blocks, call.forward(), planes);
          const Matrices mixing(shape, 1);
          Summaries<TestType> source = call.source();
          const Summaries<TestType> expected = call.run(mixing, source);
          const Index places[] = {0, blocks / 2, blocks - 1};
          const float values[] = {nan_value, infinity, -infinity};
          for (int k = 0; k < 3; ++k) {
            const Index place = places[k];
            // Another column for each, one to the left and one to the right of a pair.
            source = call.source();
            const Index column = 11 + 13 * k;
            source.set(0, place, 0, column, static_cast<double>(values[k]));
            const Summaries<TestType> result = call.run(mixing, source);
            int wrong = 0;
            int seen = 0;
            result.for_each([&](Index, Index row, Index, Index c) {
              const bool sees = c == column && (call.forward() ? mixing.sees(row, place)
                                                               : mixing.sees(place, row));
              seen += sees;
              const double value = result.value(0, row, 0, c);
              wrong += sees ? std::isfinite(value) : value != expected.value(0, row, 0, c);
            });
            CHECK(wrong == 0);
            const Index sight = call.forward() ? blocks - place - lag : place + 1 - lag;
            CHECK(seen == std::max(Index{0}, sight));
          }
        }
}

TEMPLATE_TEST_CASE("Bits depend neither on scheduling nor on the number of thread blocks", "",
                   ALL_TYPES) {
  for (const auto& shape : {per_head(shape_of(20, 20, 264), 2, 2, 1),
                            causal(per_head(shape_of(40, 40, 72), 1, 2, 1), 1),
                            causal(per_head(shape_of(140, 140, 72), 1, 1, 2), 0)})
    for (const Direction direction : both) {
      const Matrices mixing(shape, 1);
      const Call<TestType> call{shape, direction, 2, 2};
      const Summaries<TestType> source = call.source();
      const Summaries<TestType> expected = call.run(mixing, source);
      for (const std::uint64_t seed : {2u, 3u})
        for (const Index max_blocks : {1, 2}) {
          machine::context().seed = seed;
          Call<TestType> other = call;
          other.max_blocks = max_blocks;
          CHECK(other.run(mixing, source).same_bits(expected));
        }
    }
}

namespace {

/// One call of mix_matrix_gradient.
template <class T>
struct GradientCall {
  static constexpr int planes = 2;
  MixingShape shape;
  Index splits = fused::MixingGradientWork(shape).splits;

  std::vector<float> run(const Summaries<T>& grad_mixed, const Summaries<T>& summaries,
                         std::vector<float> parts) const {
    const auto device = machine::device_within_a_call();
    const SummaryRows<T> a = grad_mixed.rows;
    const SummaryRows<T> b = summaries.rows;
    const long launches = machine::context().launches;
    traffic::Watch watch;
    watch("dS~", grad_mixed.memory.data(), static_cast<Index>(grad_mixed.memory.size()));
    watch("S", summaries.memory.data(), static_cast<Index>(summaries.memory.size()));
    fused::mix_matrix_gradient<T, 2>(device, shape, splits, a, b, view(parts));
    // Tiles that see each other.
    const Index side = fused::MixingGradientWork(shape).side;
    Index of_queries = 0, of_keys = 0;
    for (Index i = 0; i < shape.query_blocks; i += side)
      for (Index at = 0; at < shape.key_blocks; at += side) {
        const Index queries = std::min(side, shape.query_blocks - i);
        if (!mhla::sees_whole_block(shape.sight, i + queries - 1, at)) continue;
        of_queries += queries;
        of_keys += std::min(side, shape.key_blocks - at);
      }
    const Index row = shape.units * shape.matrices * shape.width * planes;
    watch.check("dS~", of_queries * row, 0);
    watch.check("S", of_keys * row, 0);
    CHECK(machine::context().launches == launches + 1);
    return parts;
  }
  Index row_stride() const { return shape.key_blocks + 2; }
  Index matrix_stride() const { return (shape.query_blocks + 1) * row_stride(); }
  Index split_stride() const { return shape.units * shape.matrices * matrix_stride(); }
  std::size_t size() const { return static_cast<std::size_t>(splits * split_stride()); }
  fused::MixingGradients view(std::vector<float>& parts) const {
    return {parts.data(), split_stride(), shape.matrices * matrix_stride(), matrix_stride(),
            row_stride()};
  }

  void check() const {
    CAPTURE(shape.units, shape.matrices, shape.query_blocks, shape.key_blocks, shape.width,
            static_cast<int>(shape.sight), splits);
    Summaries<T> grad_mixed(shape.units, shape.query_blocks, shape.matrices, shape.width, planes);
    Summaries<T> summaries(shape.units, shape.key_blocks, 1, shape.width, planes);
    grad_mixed.fill(5);
    summaries.fill(6);
    std::vector<float> before(size());
    for (std::size_t i = 0; i < before.size(); ++i) before[i] = static_cast<float>(i % 7);
    const std::vector<float> parts = run(grad_mixed, summaries, before);
    Errors errors;
    for (Index unit = 0; unit < shape.units; ++unit)
      for (Index g = 0; g < shape.matrices; ++g)
        for (Index i = 0; i < shape.query_blocks + 1; ++i)
          for (Index b = 0; b < row_stride(); ++b) {
            const auto at = static_cast<std::size_t>((unit * shape.matrices + g) * matrix_stride() +
                                                     i * row_stride() + b);
            double found = 0, sum = 0;
            bool changed = false;
            for (Index split = 0; split < splits; ++split) {
              const auto of_split = at + static_cast<std::size_t>(split * split_stride());
              found += static_cast<double>(parts[of_split]);
              sum += static_cast<double>(before[of_split]);
              changed = changed || parts[of_split] != before[of_split];
            }
            double magnitude = sum;
            const bool inside = i < shape.query_blocks && b < shape.key_blocks;
            if (!inside || !mhla::sees_whole_block(shape.sight, i, b)) {
              if (changed) FAIL("written where no query sees");
              continue;
            }
            for (Index c = 0; c < shape.width; ++c) {
              const double term = grad_mixed.value(unit, i, g, c) * summaries.value(unit, b, 0, c);
              sum += term;
              magnitude += std::abs(term);
            }
            errors.add(found, sum, products<T> * magnitude);
          }
    CHECK(errors.worst <= 1);
    CHECK(errors.rms() <= 0x1p-15);
    machine::context().seed = 7;
    CHECK(run(grad_mixed, summaries, before) == parts);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("The gradient of a matrix is what its summaries' products are", "", BFloat16,
                   Half) {
  GradientCall<TestType>{shape_of(1, 1, 8)}.check();
  GradientCall<TestType>{shape_of(16, 5, 1160)}.check();
  GradientCall<TestType>{shape_of(33, 105, 328)}.check();
  GradientCall<TestType>{causal(shape_of(16, 16, 328), 1)}.check();
  GradientCall<TestType>{shape_of(5, 6, 72), 4}.check();  // more splits than steps
  GradientCall<TestType>{per_head(shape_of(5, 6, 264), 2, 2, 2)}.check();
  if (std::is_same_v<TestType, Half>) return;  // BFloat16's code
  for (const Index lag : {0, 1}) {
    GradientCall<TestType>{causal(shape_of(130, 130, 72), lag)}.check();
    GradientCall<TestType>{causal(per_head(shape_of(65, 65, 136), 1, 1, 2), lag)}.check();
  }
}

namespace {

/// Key sums with gaps of NaN between rows, matrices and units.
struct KeySums {
  Index units, blocks, matrices, width;
  fused::SummaryRows<float> rows;
  std::vector<float> memory;

  KeySums(Index u, Index b, Index m, Index w) : units(u), blocks(b), matrices(m), width(w) {
    rows.matrix_stride = width + 4;
    rows.row_stride = matrices * rows.matrix_stride + 8;
    rows.unit_stride = blocks * rows.row_stride + 4;
    memory.assign(static_cast<std::size_t>(units * rows.unit_stride + 8), nan_value);
    const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % 16 / sizeof(float);
    rows.data = memory.data() + (4 - past) % 4;
  }
  KeySums(const KeySums&) = delete;
  KeySums& operator=(const KeySums&) = delete;

  float& at(Index unit, Index block, Index matrix, Index c) const {
    return rows
        .data[unit * rows.unit_stride + block * rows.row_stride + matrix * rows.matrix_stride + c];
  }
  template <class F>
  void for_each(const F& f) const {
    for (Index unit = 0; unit < units; ++unit)
      for (Index block = 0; block < blocks; ++block)
        for (Index matrix = 0; matrix < matrices; ++matrix)
          for (Index c = 0; c < width; ++c) f(unit, block, matrix, c);
  }
  void fill(std::uint64_t seed) const {
    std::uint64_t counter = 0;
    for_each([&](Index unit, Index block, Index matrix, Index c) {
      at(unit, block, matrix, c) =
          static_cast<float>(mhla::testing::Normal{}(seed, counter++) + 0.5);
    });
  }
  void check_gaps() const {
    std::vector<float> copy = memory;
    for_each([&](Index unit, Index block, Index matrix, Index c) {
      copy[static_cast<std::size_t>(&at(unit, block, matrix, c) - memory.data())] = nan_value;
    });
    const std::vector<float> untouched(memory.size(), nan_value);
    CHECK(std::memcmp(copy.data(), untouched.data(), copy.size() * sizeof(float)) == 0);
  }
};

/// z~, dz and dm of one shape, whose width is that of a key sum.
struct KeySumCall {
  MixingShape shape;
  std::uint64_t seed = 1;

  KeySums of_keys() const { return {shape.units, shape.key_blocks, 1, shape.width}; }
  KeySums of_queries() const {
    return {shape.units, shape.query_blocks, shape.matrices, shape.width};
  }
  /// Element c of a row of m z, or of m^T dz~, and the sum of |m z|.
  std::array<double, 2> expected(const Matrices& mixing, const KeySums& source, bool adjoint,
                                 Index unit, Index row, Index matrix, Index c) const {
    std::array<double, 2> sum{};
    const auto add = [&](Index g, Index i, Index b, float x) {
      if (!mixing.sees(i, b)) return;
      const double term = mixing.value(unit, g, i, b) * static_cast<double>(x);
      sum[0] += term;
      sum[1] += std::abs(term);
    };
    if (!adjoint) {
      for (Index b = 0; b < shape.key_blocks; ++b) add(matrix, row, b, source.at(unit, b, 0, c));
    } else {
      for (Index g = 0; g < shape.matrices; ++g)
        for (Index i = 0; i < shape.query_blocks; ++i) add(g, i, row, source.at(unit, i, g, c));
    }
    return sum;
  }
  void check_product(const Matrices& mixing, const KeySums& source, const KeySums& result,
                     bool adjoint) const {
    const auto device = machine::device_within_a_call();
    traffic::Watch watch;
    watch("source", source.memory.data(), static_cast<Index>(source.memory.size()));
    watch("result", result.memory.data(), static_cast<Index>(result.memory.size()));
    fused::mix_key_sums(device, shape, adjoint, mixing.view(), source.rows, result.rows);
    // Threads of eight rows each read what the rows of their tile see.
    const Index side = fused::MixKeySums(shape, adjoint, {}, {}, {}).rows;
    Index read = 0;
    for (Index first = 0; first < result.blocks; first += side) {
      const Index end = std::min(first + side, result.blocks);
      read += mhla::ceil_div(end - first, Index{8}) *
              rows_seen(first, end, source.blocks, [&](Index row, Index at) {
                return adjoint ? mixing.sees(at, row) : mixing.sees(row, at);
              });
    }
    watch.check("source", shape.units * shape.matrices * read * shape.width, 0);
    watch.check("result", 0, shape.units * result.blocks * result.matrices * shape.width);
    Errors errors;
    result.for_each([&](Index unit, Index row, Index matrix, Index c) {
      const auto [value, magnitude] = expected(mixing, source, adjoint, unit, row, matrix, c);
      errors.add(static_cast<double>(result.at(unit, row, matrix, c)), value, 0x1p-20 * magnitude);
    });
    CHECK(errors.worst <= 1);
    result.check_gaps();
  }
  void check_gradient(const KeySums& grad_mixed, const KeySums& key_sums) const {
    const Index row_stride = shape.key_blocks + 2;
    const Index matrix_stride = (shape.query_blocks + 1) * row_stride;
    std::vector<float> parts(static_cast<std::size_t>(shape.units * shape.matrices * matrix_stride),
                             0.25f);
    const auto device = machine::device_within_a_call();
    traffic::Watch watch;
    watch("dz~", grad_mixed.memory.data(), static_cast<Index>(grad_mixed.memory.size()));
    watch("z", key_sums.memory.data(), static_cast<Index>(key_sums.memory.size()));
    watch("dm", parts.data(), static_cast<Index>(parts.size()));
    const fused::AddKeySumProducts body{
        shape,
        grad_mixed.rows,
        key_sums.rows,
        {parts.data(), 0, shape.matrices * matrix_stride, matrix_stride, row_stride}};
    cuda::machine::run(device, body.blocks(), body);
    Index pairs = 0;
    for (Index i = 0; i < shape.query_blocks; ++i)
      for (Index b = 0; b < shape.key_blocks; ++b)
        pairs += mhla::sees_whole_block(shape.sight, i, b);
    pairs *= shape.units * shape.matrices;
    watch.check("dz~", pairs * shape.width, 0);
    watch.check("z", pairs * shape.width, 0);
    watch.check("dm", pairs, pairs);
    Errors errors;
    for (std::size_t at = 0; at < parts.size(); ++at) {
      const auto part = static_cast<Index>(at) / matrix_stride;
      const Index i = static_cast<Index>(at) % matrix_stride / row_stride;
      const Index b = static_cast<Index>(at) % row_stride;
      double sum = 0.25, magnitude = 0.25;
      if (i < shape.query_blocks && b < shape.key_blocks &&
          mhla::sees_whole_block(shape.sight, i, b))
        for (Index c = 0; c < shape.width; ++c) {
          const Index unit = part / shape.matrices;
          const double term =
              static_cast<double>(grad_mixed.at(unit, i, part % shape.matrices, c)) *
              static_cast<double>(key_sums.at(unit, b, 0, c));
          sum += term;
          magnitude += std::abs(term);
        }
      errors.add(static_cast<double>(parts[at]), sum, 0x1p-20 * magnitude);
    }
    CHECK(errors.worst <= 1);
  }
  void check() const {
    CAPTURE(shape.units, shape.kv_heads, shape.mix_heads, shape.matrices, shape.query_blocks,
            shape.key_blocks, shape.width, static_cast<int>(shape.sight), seed);
    const Matrices mixing(shape, seed);
    const KeySums key_sums = of_keys();
    const KeySums grad_mixed = of_queries();
    key_sums.fill(seed + 1);
    grad_mixed.fill(seed + 2);
    check_product(mixing, key_sums, of_queries(), false);
    check_product(mixing, grad_mixed, of_keys(), true);
    check_gradient(grad_mixed, key_sums);
  }
};

}  // namespace

TEST_CASE("Key sums are mixed, and their gradients are, as summaries are") {
  for (const Index width : {32, 64, 72, 96, 128, 256})
    for (const auto& [queries, keys] :
         {std::array<Index, 2>{1, 1}, {5, 6}, {33, 16}, {40, 150}, {150, 40}})
      if (width == 72 || queries + keys < 100) KeySumCall{shape_of(queries, keys, width)}.check();
  for (const Index lag : {0, 1})
    for (const Index blocks : {1, 8, 17, 33, 140})
      KeySumCall{causal(shape_of(blocks, blocks, blocks % 2 == 0 ? 64 : 136), lag)}.check();
  for (const auto& [batch, kv_heads, matrices] :
       {std::array<Index, 3>{2, 3, 1}, {2, 2, 3}, {1, 1, 2}}) {
    KeySumCall{per_head(shape_of(9, 6, 72), batch, kv_heads, matrices)}.check();
    KeySumCall{causal(per_head(shape_of(34, 34, 32), batch, kv_heads, matrices), 1)}.check();
  }
  auto shared = shape_of(6, 5, 64);
  shared.units = shared.kv_heads = 7;
  KeySumCall{shared}.check();
  // A kv head that no query head reads: gradients of zero.
  auto unread = shape_of(5, 6, 72);
  unread.matrices = 0;
  KeySumCall{unread}.check();
}
