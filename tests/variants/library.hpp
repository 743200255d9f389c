// SPDX-License-Identifier: MIT
// The library as the laws and the attacks of fuzz/ see it: a table of variants, called on views
// whose types are known at run time. What uses them is compiled once, and not once for every
// variant, and a variant is compiled once for all who use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/tensor_view.hpp>
#include <vector>

#include "tests/variants/description.hpp"

namespace variants {

class Executor;  // executor.hpp

/// A strided tensor of any rank up to 4 (leading extents 1), or of no address.
struct View {
  void* data = nullptr;
  Extents extent{};
  Extents stride{};  // in elements
};

enum Gradient { query, key, value, mixing };

/// What a call is given, right or wrong.
struct Call {
  Numbers numbers;
  View projection;
  Grid queries, keys;
  bool own_key_blocks = false;  // key_blocks is set
  View q, k, v, mix, y, dy;
  View gradient[4];
  bool wanted[4] = {};
  bool accumulate = false;
  View query_mask, key_mask;  // [1, 1, batch, tokens]
  std::vector<std::int64_t> offsets;
  std::byte* workspace = nullptr;
  Size workspace_bytes = 0;
};

/// A forward state of either accumulator type.
struct State {
  mhla::ForwardState<float> in_float;
  mhla::ForwardState<double> in_double;
};

/// mhla::Decoder of some variant.
class AnyDecoder {
 public:
  virtual ~AnyDecoder() = default;
  virtual std::unique_ptr<AnyDecoder> copy() const = 0;
  virtual Size capacity() const = 0;
  virtual Size position(Size sequence) const = 0;
  virtual void reset(Size sequence) = 0;
  /// step, or, with a sequence, prefill.
  virtual void feed(const Executor& executor, Size sequence, const Call& call) = 0;
  virtual std::vector<std::byte> save() const = 0;
  virtual void load(const std::vector<std::byte>& bytes) = 0;
};
inline constexpr Size every_sequence = -1;

/// A variant in one scalar type.
struct Entry {
  Policies policies;
  Batch batch;
  Scalar scalar;
  Size (*forward_size)(const Call&, const Executor&);
  Size (*backward_size)(const Call&, const Executor&);
  void (*forward)(const Call&, const Executor&, State* save);
  void (*backward)(const Call&, const Executor&, const State* saved);
  /// Both passes by mhla::Stages, on so many blocks at a time; null of most.
  void (*staged)(const Call&, const Executor&, Size blocks) = nullptr;
  /// Of some Causal variants; null of others.
  std::unique_ptr<AnyDecoder> (*decoder)(const Call&, Size batch, Size num_slots) = nullptr;
};

/// All that is compiled: see in_build of product.hpp.
const std::vector<Entry>& library();
/// Null where a build has no such entry.
const Entry* find(const Policies& policies, Batch batch, Scalar scalar);

}  // namespace variants
