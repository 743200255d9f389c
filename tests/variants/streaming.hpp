// SPDX-License-Identifier: MIT
// A call's tokens one after the other.
#pragma once

#include <memory>
#include <mhla/decoding.hpp>
#include <vector>

#include "tests/variants/attention.hpp"
#include "tests/variants/executor.hpp"

namespace variants {

/// mhla::Decoder of variant V in scalar type T.
template <class V, class T>
class Streaming final : public AnyDecoder {
  using A = mhla::Accumulator<T>;

 public:
  static std::unique_ptr<AnyDecoder> make(const Call& call, Size sequences, Size num_slots) {
    return std::make_unique<Streaming>(call, sequences, num_slots);
  }
  Streaming(const Call& call, Size sequences, Size num_slots)
      : decoder_(attention_of<V>(call), typed<const A, 3>(call.mix),
                 {.batch = sequences,
                  .heads = call.q.extent[1],
                  .kv_heads = call.k.extent[1],
                  .key_dim = call.q.extent[3],
                  .value_dim = call.v.extent[3],
                  .num_slots = num_slots}) {}
  std::unique_ptr<AnyDecoder> copy() const override { return std::make_unique<Streaming>(*this); }
  Size capacity() const override { return decoder_.capacity(); }
  Size position(Size sequence) const override { return decoder_.position(sequence); }
  void reset(Size sequence) override {
    if (sequence == every_sequence) return decoder_.reset();
    decoder_.reset(sequence);
  }
  void feed(const Executor& executor, Size sequence, const Call& call) override {
    const auto q = typed<const T, 4>(call.q), k = typed<const T, 4>(call.k),
               v = typed<const T, 4>(call.v);
    if (sequence == every_sequence)
      return decoder_.step(executor.get(), q, k, v, typed<T, 4>(call.y));
    decoder_.prefill(executor.get(), sequence, q, k, v, typed<T, 4>(call.y));
  }
  std::vector<std::byte> save() const override {
    std::vector<std::byte> bytes(static_cast<std::size_t>(decoder_.saved_size()));
    decoder_.save({bytes.data(), std::ssize(bytes)});
    return bytes;
  }
  void load(const std::vector<std::byte>& bytes) override {
    decoder_.load({bytes.data(), std::ssize(bytes)});
  }

 private:
  mhla::Decoder<V, T> decoder_;
};

}  // namespace variants
