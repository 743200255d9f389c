// SPDX-License-Identifier: MIT
// A random case: a variant, a problem for the oracle, and the same in memory for the library.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "tests/fuzz/draw.hpp"
#include "tests/fuzz/scalar.hpp"
#include "tests/variants/library.hpp"

namespace fuzz {

/// What a case is asked to be.
enum class Wish { anything, decodable };

struct Case {
  const Entry* entry = nullptr;
  Problem problem;
  Grid queries, keys;                 // of the call; packed: of the longest sequence
  std::vector<std::int64_t> offsets;  // of packed sequences
  bool own_key_blocks = false;
  std::array<Dense<double>, 4> initial;  // what dq, dk, dv and dmix hold before
  std::array<bool, 4> wanted{};
  bool accumulate = false;
  // Axes along which q, k, v, mix and dy are the same, and may have stride 0.
  std::array<std::array<bool, 4>, 5> expanded{};

  Precision precision() const {
    const Format format = format_of(accumulator_of(entry->scalar));
    if (!problem.numbers.fast) return {format.roundoff(), format.smallest(), format.largest};
    // A term has up to 8 factors that Precision::fast rounds, and those below the normal numbers
    // are taken for 0.
    const double of_factors = 8 * format_of(entry->scalar).roundoff();
    return {format.roundoff(), 1e-30, format.largest, of_factors};
  }
};

Case random_case(Draw& draw, Wish wish);
/// Whether Precision::fast rounds what gradients are differences of: these have errors relative to
/// what is taken out of values before, and no bounds of their own.
bool rounds_gradients(const Case& random);
std::string description_of(const Case& random);

/// Memory of a call, every byte of it known: what is no element of a destination must stay.
class Memory {
 public:
  /// Room for a tensor somewhere in a new buffer; with `expanded` axes of stride 0. Dense without
  /// `draw`.
  View place(Scalar scalar, const Extents& extent, const std::array<bool, 4>& expanded, Draw* draw);
  /// Tensors [batch, heads, tokens, dim] side by side in [batch, tokens, tensor, heads, dim].
  std::vector<View> interleave(Scalar scalar, const Extents& extent, Size tensors);
  /// A byte for each.
  std::byte* bytes(const std::vector<bool>& values);
  /// Freezes; bytes at a multiple of 64 that may change, and as many before and after them that may
  /// not.
  std::byte* workspace(Size bytes);

  /// From here on only `destinations` may change.
  void freeze();
  void may_change(Scalar scalar, const View& destination);
  /// Whether nothing else has.
  bool intact() const;

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;  // exactly as many: sanitizers see the next one
    Size size;
    std::vector<std::byte> before;
    std::vector<bool> open;  // bytes that may change
  };
  std::byte* new_buffer(Size bytes);

  std::deque<Buffer> buffers_;
};

/// f(offset in elements, a, b, c, d) for every element of a view.
template <class F>
void for_each_element(const View& view, const F& f) {
  for (Size a = 0; a < view.extent[0]; ++a)
    for (Size b = 0; b < view.extent[1]; ++b)
      for (Size c = 0; c < view.extent[2]; ++c)
        for (Size d = 0; d < view.extent[3]; ++d)
          f(a * view.stride[0] + b * view.stride[1] + c * view.stride[2] + d * view.stride[3], a, b,
            c, d);
}
void write(Scalar scalar, const Dense<double>& values, const View& view);
Dense<double> read(Scalar scalar, const View& view);

/// A case in memory.
struct Placed {
  Memory memory;
  Call call;
};
/// In order and dense without `draw`, anywhere otherwise.
Placed place(const Case& random, Draw* draw);

}  // namespace fuzz
