// SPDX-License-Identifier: MIT
// The decoder of the CUDA backend, its kernels executed on the CPU: equal to the forward pass and
// to the CPU's decoder after any prefix, the same bits whatever the pieces and the launch order,
// and steps that a graph can replay.
#include <mhla/cuda/instantiate_decoder.cuh>
// After it, so that the stand-ins were found first.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/scattered_tensor.hpp"
#include "tests/decoding/session.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using namespace decoding;
using namespace mhla;

using Plain = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, NoRotation>;
using HalfSplit = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using UnnormalizedAxial = Attention<EluPlusOne, Blocks1D, Causal, Unnormalized, AxialRotary>;
using Rowwise = Attention<Hedgehog, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using Recurrent =
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary, RecurrentMixing>;
using PlainRecurrent =
    Attention<EluPlusOne, Blocks1D, Causal, Unnormalized, NoRotation, RecurrentMixing>;

// Device memory: NaN in every array to begin with, and between guards.
class DeviceMemory {
 public:
  explicit DeviceMemory(Index bytes) : memory_(bytes + 2 * guard) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
  }
  operator WorkspaceView() const { return {memory_.data() + guard, memory_.size() - 2 * guard}; }
  bool guards_intact() const {
    const auto intact = [&](const std::byte* from) {
      return std::all_of(from, from + guard, [](std::byte b) { return b == std::byte{0xff}; });
    };
    return intact(memory_.data()) && intact(memory_.data() + memory_.size() - guard);
  }

 private:
  static constexpr Index guard = 192;
  Workspace memory_;
};

// A decoder at work on the tokens of one call; as decoding::Session of the CPU's.
template <class V, class T>
struct DeviceSession {
  const Operands<T>* x;
  HostTensor<T, 4> y;
  mutable cublasContext machine;
  CudaDevice device{nullptr, &machine};
  DeviceMemory memory;
  CudaDecoder<V, T> decoder;

  DeviceSession(const V& attention, const Operands<T>& operands, std::uint64_t seed = 1)
      : DeviceSession(attention, operands, decoder_shape(operands), seed) {}
  DeviceSession(const V& attention, const Operands<T>& operands, const DecoderShape& sizes,
                std::uint64_t seed = 1)
      : x(&operands),
        y(operands.dy),
        machine{.seed = seed},
        memory(CudaDecoder<V, T>::memory_size(attention, operands.mix, sizes)),
        decoder(attention, device, operands.mix, sizes, memory) {
    for (T& element : y.elements())
      mhla::store(element, std::numeric_limits<mhla::Accumulator<T>>::quiet_NaN());
  }
  DeviceSession(const DeviceSession&) = delete;
  ~DeviceSession() {
    CHECK(memory.guards_intact());
    CHECK(machine.products == 0);
  }

  Index sequences() const { return x->q.extent(0); }
  Index tokens() const { return x->q.extent(2); }

  void prefill(Index sequence, Index count) {
    const Index at = decoder.position(sequence);
    decoder.prefill(device, sequence, tokens_of(x->q.view(), sequence, at, count),
                    tokens_of(x->k.view(), sequence, at, count),
                    tokens_of(x->v.view(), sequence, at, count),
                    tokens_of(y.view(), sequence, at, count));
  }
  void prefill_all(Index count) {
    for (Index s = 0; s < sequences(); ++s) prefill(s, count);
  }
  // The next tokens of every sequence, from and to tensors of so many; `run` decodes them.
  template <class Run>
  void step_by(const std::vector<Index>& at, Index count, const Run& run) {
    const HostTensor<T, 4> q = collected(x->q, at, count);
    const HostTensor<T, 4> k = collected(x->k, at, count);
    const HostTensor<T, 4> v = collected(x->v, at, count);
    HostTensor<T, 4> out = collected(y, at, count);
    run(q.view(), k.view(), v.view(), out.view());
    for (Index s = 0; s < sequences(); ++s)
      copy(tokens_of(y.view(), s, at[static_cast<std::size_t>(s)], count),
           tokens_of(out.view(), s, 0, count));
  }
  std::vector<Index> positions() const {
    std::vector<Index> at;
    for (Index s = 0; s < sequences(); ++s) at.push_back(decoder.position(s));
    return at;
  }
  void step(Index count = 1) {
    step_by(positions(), count, [&](const auto& q, const auto& k, const auto& v, const auto& out) {
      decoder.step(device, q, k, v, out);
    });
  }
  void step_to_the_end(Index count = 1) {
    while (decoder.position(0) < tokens()) step(std::min(count, tokens() - decoder.position(0)));
  }

 private:
  static HostTensor<T, 4> collected(const HostTensor<T, 4>& from, const std::vector<Index>& at,
                                    Index count) {
    HostTensor<T, 4> to(from.extent(0), from.extent(1), count, from.extent(3));
    for (Index s = 0; s < from.extent(0); ++s)
      copy(tokens_of(to.view(), s, 0, count),
           tokens_of(from.view(), s, at[static_cast<std::size_t>(s)], count));
    return to;
  }
};

// Four blocks of five and three tokens.
const std::vector<Shape> shapes = {
    {1, 2, 2, 23, 23, 4, 4},     // a matrix for all heads
    {2, 4, 2, 23, 23, 6, 3},     // grouped query heads, more features than tokens in a block
    {1, 4, 2, 23, 23, 4, 11, 4}  // and a matrix for each
};

// The same with two states: a row more than blocks, of each head, of each head of each sequence,
// and more value columns than tokens in a block.
const std::vector<Shape> recurrent_shapes = {{1, 2, 2, 98, 98, 4, 4, 1, 21},
                                             {2, 4, 2, 33, 33, 6, 3, 4},
                                             {2, 4, 2, 33, 33, 4, 11, 8},
                                             {1, 2, 1, 33, 33, 4, 3, 2}};

// Against the forward pass after every prefix, and the CPU's decoder; always the same bits.
template <class T, class V>
void check_every_split(const V& attention, const Shape& shape) {
  CAPTURE(attention.blocks.block, shape.heads, shape.kv_heads, shape.mix_heads, shape.key_dim,
          shape.value_dim);
  const Operands<T> x = operands<T>(attention, shape);
  DeviceSession<V, T> steps(attention, x);
  steps.step_to_the_end();
  check_decoded(steps.y, forward(attention, x));
  decoding::Session<V, T> cpu(attention, x);
  cpu.step_to_the_end();
  check_decoded(steps.y, cpu.y);
  for (Index prefix = 1; prefix <= shape.query_tokens; ++prefix) {
    CAPTURE(prefix);
    DeviceSession<V, T> session(attention, x, static_cast<std::uint64_t>(prefix) + 1);
    session.prefill_all(prefix);
    session.step_to_the_end();
    CHECK(bitwise_equal(session.y.view(), steps.y.view()));
  }
}

template <class V>
void check_shapes(V attention) {
  attention.blocks.block = 5;
  for (const Shape& shape : shapes) check_every_split<double>(attention, shape);
}

constexpr HalfSplit small{.blocks = {.block = 4}, .rotation = {.theta = 100}};
constexpr Shape small_shape{3, 4, 2, 19, 19, 4, 3, 4};  // in room for 20 tokens

// Sequences of 6, 0 and 11 tokens.
void begin(DeviceSession<HalfSplit, double>& session) {
  session.prefill(0, 6);
  session.prefill(2, 11);
}
void finish(DeviceSession<HalfSplit, double>& session) {
  while (session.decoder.position(2) < 19) session.step();
  for (const Index s : {0, 1}) session.prefill(s, 19 - session.decoder.position(s));
}
HostTensor<double, 4> straight(const Operands<double>& x) {
  DeviceSession<HalfSplit, double> session(small, x);
  begin(session);
  finish(session);
  check_decoded(session.y, forward(small, x));
  return session.y;
}

}  // namespace

TEST_CASE("cuda decoding: equals forward and the CPU's decoder at every split point", "[cuda]") {
  check_shapes(Plain{.normalizer = {.epsilon = 0.25}, .scale = 0.375});
  check_shapes(HalfSplit{.rotation = {.theta = 100}});
  check_shapes(UnnormalizedAxial{.rotation = {.theta = 100}, .scale = 0.5});
  check_shapes(Rowwise{.rotation = {.theta = 100}});
}

TEST_CASE("cuda decoding: a matrix for each head of each sequence", "[cuda]") {
  check_every_split<double>(HalfSplit{.blocks = {.block = 5}}, {2, 4, 2, 23, 23, 4, 3, 8});
}

TEMPLATE_TEST_CASE("cuda decoding: in float, and from 16 bits", "[cuda]", float, mhla::BFloat16,
                   mhla::Half) {
  const HalfSplit attention{.blocks = {.block = 5}};
  for (const Shape& shape : shapes) check_every_split<TestType>(attention, shape);
  const PlainRecurrent recurrent{.blocks = {.block = 5}, .mixing = {.states = 2}};
  check_every_split<TestType>(recurrent, recurrent_shapes[1]);
}

TEST_CASE("cuda recurrent decoding: equals forward and the CPU's decoder at every split point",
          "[cuda][mixing]") {
  for (const Shape& shape : recurrent_shapes) {
    check_every_split<double>(Recurrent{.blocks = {.block = 5}, .mixing = {.states = 2}}, shape);
    check_every_split<double>(PlainRecurrent{.blocks = {.block = 5}, .mixing = {.states = 2}},
                              shape);
  }
  for (const Index block : {1, 2, 12})
    check_every_split<double>(Recurrent{.blocks = {.block = block}, .mixing = {.states = 3}},
                              {1, 4, 2, 19, 19, 4, 3, 4});
}

TEST_CASE("cuda decoding: sequences of different lengths, in steps of any length", "[cuda]") {
  const HalfSplit attention{.blocks = {.block = 5}};
  const auto x = operands<double>(attention, {4, 4, 2, 23, 23, 4, 3, 4});
  DeviceSession<HalfSplit, double> steps(attention, x);
  steps.step_to_the_end();
  check_decoded(steps.y, forward(attention, x));
  const std::vector<Index> prefix = {3, 0, 15, 7};
  for (const Index count : {1, 2, 7}) {
    CAPTURE(count);
    DeviceSession<HalfSplit, double> session(attention, x);
    for (Index s = 0; s < 4; ++s) session.prefill(s, prefix[static_cast<std::size_t>(s)]);
    const Index number = (23 - 15) / count;
    for (Index n = 0; n < number; ++n) session.step(count);
    for (Index s = 0; s < 4; ++s) {
      CHECK(session.decoder.position(s) == prefix[static_cast<std::size_t>(s)] + number * count);
      session.prefill(s, 23 - session.decoder.position(s));
    }
    CHECK(bitwise_equal(session.y.view(), steps.y.view()));
  }
}

TEST_CASE("cuda decoding: a step that a graph has recorded goes on where sequences are", "[cuda]") {
  const auto x = operands<double>(small, small_shape);
  const auto expected = straight(x);
  // Nothing that the host knows changes between these calls, as nothing does between replays.
  DeviceSession<HalfSplit, double> session(small, x);
  for (Index t = 0; t < 19; ++t)
    session.step_by({t, t, t}, 1, [&](const auto& q, const auto& k, const auto& v, const auto& y) {
      const long before = session.machine.launches;
      session.decoder.record_step(session.device, q, k, v, y);
      CHECK(session.machine.launches - before == 10);  // always the same ones
      CHECK(session.decoder.position(1) == 0);
    });
  CHECK(bitwise_equal(session.y.view(), expected.view()));

  // Counted, with what the host launches itself in between.
  DeviceSession<HalfSplit, double> counted(small, x);
  begin(counted);
  const auto replay = [&] {
    const std::vector<Index> at = counted.positions();
    counted.decoder.count_replay();
    counted.step_by(at, 1, [&](const auto& q, const auto& k, const auto& v, const auto& y) {
      counted.decoder.record_step(counted.device, q, k, v, y);
    });
  };
  for (Index n = 0; n < 5; ++n) replay();
  CHECK(counted.decoder.position(2) == 16);
  finish(counted);
  CHECK(bitwise_equal(counted.y.view(), expected.view()));

  // No room: refused by the host; on the device NaN, and nothing else changes.
  counted.decoder.prefill(counted.device, 1, tokens_of(x.q.view(), 1, 0, 1),
                          tokens_of(x.k.view(), 1, 0, 1), tokens_of(x.v.view(), 1, 0, 1),
                          tokens_of(counted.y.view(), 1, 0, 1));
  const std::string message = error_message<StateError>([&] { counted.decoder.count_replay(); });
  CHECK(says(message, "sequence 1 is full: 20 + 1 tokens exceed the rows of mix, for 20"));
  CHECK(counted.decoder.position(0) == 19);
  const DeviceMemory before_memory(counted.decoder.snapshot_size());
  HostTensor<double, 4> q(3, 4, 1, 4), k(3, 2, 1, 4), v(3, 2, 1, 3), y(3, 4, 1, 3);
  const auto full = counted.decoder.save(counted.device, before_memory);
  counted.decoder.record_step(counted.device, q, k, v, y.view());
  counted.decoder.record_step(counted.device, q, k, v, y.view());
  for (const double element : y.elements()) CHECK(std::isnan(element));
  counted.decoder.load(counted.device, full);
  counted.decoder.record_step(counted.device, q, k, v, y.view());
  for (Index s = 0; s < 3; ++s) CHECK(std::isnan(y(s, 0, 0, 0)) == (s == 1));
}

TEST_CASE("cuda decoding: a tile that was cut for another position is NaN, not another result",
          "[cuda]") {
  const auto x = operands<double>(small, small_shape);
  DeviceSession<HalfSplit, double> session(small, x);
  session.step_by({0, 0, 0}, 1, [&](const auto& q, const auto& k, const auto& v, const auto& y) {
    session.decoder.record_step(session.device, q, k, v, y);  // and not counted
  });
  session.prefill(0, 4);  // one tile, by the host's count; the device is at token 1
  for (Index t = 0; t < 4; ++t) CHECK(std::isnan(session.y(0, 0, t, 0)));
}

TEST_CASE("cuda decoding: resets, and snapshots that nothing else reaches", "[cuda]") {
  const auto x = operands<double>(small, small_shape);
  auto poisoned = x;
  for (auto* tensor : {&poisoned.q, &poisoned.k, &poisoned.v})
    for (double& element : tensor->elements()) element = std::numeric_limits<double>::quiet_NaN();
  const auto expected = straight(x);

  for (Index tokens = 0; tokens <= 19; ++tokens) {
    CAPTURE(tokens);
    DeviceSession<HalfSplit, double> session(small, x);
    session.x = &poisoned;
    session.prefill_all(tokens);
    if (tokens % 2 == 0) {
      session.decoder.reset(session.device);
    } else {
      for (const Index s : {2, 0, 1}) session.decoder.reset(session.device, s);
    }
    for (Index s = 0; s < 3; ++s) CHECK(session.decoder.position(s) == 0);
    session.x = &x;
    begin(session);
    const DeviceMemory memory(session.decoder.snapshot_size());
    const auto snapshot = session.decoder.save(session.device, memory);
    const auto y = session.y;
    finish(session);
    CHECK(bitwise_equal(session.y.view(), expected.view()));
    session.decoder.reset(session.device, 1);  // the others stay
    session.prefill(1, 19);
    CHECK(bitwise_equal(session.y.view(), expected.view()));

    session.decoder.reset(session.device);
    session.x = &poisoned;
    session.prefill_all(tokens);
    session.x = &x;
    session.y = y;
    session.decoder.load(session.device, snapshot);
    CHECK(session.decoder.position(2) == 11);
    finish(session);
    CHECK(bitwise_equal(session.y.view(), expected.view()));

    DeviceSession<HalfSplit, double> other(small, x, 7);  // taken up by another decoder
    begin(other);
    other.decoder.load(other.device, snapshot);
    finish(other);
    CHECK(bitwise_equal(other.y.view(), expected.view()));
    CHECK(memory.guards_intact());
  }
}

TEST_CASE("cuda decoding: a NaN reaches no token before its own", "[cuda]") {
  const auto clean = operands<double>(small, {1, 2, 1, 19, 19, 4, 3});
  constexpr Index token = 14;
  const std::string where = GENERATE(as<std::string>(), "query", "key", "value");
  CAPTURE(where);
  auto poisoned = clean;
  auto& tensor = where == "query" ? poisoned.q : where == "key" ? poisoned.k : poisoned.v;
  tensor(0, 0, token, 1) = std::numeric_limits<double>::quiet_NaN();
  for (const Index count : {1, 3, 19}) {
    CAPTURE(count);
    DeviceSession<HalfSplit, double> before(small, clean);
    DeviceSession<HalfSplit, double> after(small, poisoned);
    before.step_to_the_end(count);
    after.step_to_the_end(count);
    CHECK(bitwise_equal(tokens_of(after.y.view(), 0, 0, token),
                        tokens_of(before.y.view(), 0, 0, token)));
    CHECK(std::isnan(after.y(0, 0, token, 1)));
    CHECK(std::isnan(after.y(0, 0, 18, 1)) == (where != "query"));
  }
}

TEST_CASE("cuda decoding: extents of zero", "[cuda]") {
  for (const Shape& shape :
       {Shape{0, 2, 1, 8, 8, 4, 3}, Shape{2, 0, 0, 8, 8, 4, 3}, Shape{2, 0, 2, 8, 8, 4, 3},
        Shape{2, 2, 1, 8, 8, 4, 0}, Shape{2, 2, 1, 8, 8, 0, 3}}) {
    CAPTURE(shape.batch, shape.heads, shape.kv_heads, shape.key_dim, shape.value_dim);
    const auto x = operands<double>(small, shape);
    DeviceSession<HalfSplit, double> session(small, x);
    for (Index t = 0; t < 8; ++t) session.step();
    check_decoded(session.y, forward(small, x));
    for (Index s = 0; s < shape.batch; ++s) CHECK(session.decoder.position(s) == 8);
  }
}

TEST_CASE("cuda decoding: a step allocates nothing", "[cuda]") {
  const auto x = operands<double>(small, small_shape);
  DeviceSession<HalfSplit, double> session(small, x);
  HostTensor<double, 4> q(3, 4, 1, 4), k(3, 2, 1, 4), v(3, 2, 1, 3), y(3, 4, 1, 3);
  const AllocationCounter counter;
  for (Index t = 0; t < 19; ++t) session.decoder.step(session.device, q, k, v, y.view());
  session.decoder.reset(session.device);
  session.prefill(1, 19);
  CHECK(counter.allocations() == 0);
}

TEST_CASE("cuda decoding: wrong calls change nothing", "[cuda]") {
  const auto x = operands<double>(small, small_shape);
  DeviceSession<HalfSplit, double> session(small, x);
  begin(session);
  auto& decoder = session.decoder;
  const CudaDevice device = session.device;
  const auto refuse = [&](const auto& call, const auto&... parts) {
    const long before = session.machine.launches;
    const std::string message = error_message<mhla::Error>(call);
    INFO(message);
    CHECK(says(message, "mhla", parts...));
    CHECK(session.machine.launches == before);
    CHECK(session.positions() == std::vector<Index>{6, 0, 11});
  };
  HostTensor<double, 4> q(3, 4, 2, 4), k(3, 2, 2, 4), v(3, 2, 2, 3), y(3, 4, 2, 3);
  HostTensor<double, 4> wrong(3, 4, 2, 5), fewer(3, 2, 1, 4);
  refuse([&] { decoder.step(device, wrong, k, v, y.view()); }, "q: axis dim is 5 but must be 4");
  refuse([&] { decoder.step(device, q, q, v, y.view()); }, "k: axis heads is 4 but must be 2");
  refuse([&] { decoder.step(device, q, fewer, v, y.view()); }, "k: axis tokens is 1 but must be 2");
  refuse([&] { decoder.step(device, q, k, k, y.view()); }, "v: axis dim is 4 but must be 3");
  refuse([&] { decoder.step(device, q, k, v, wrong.view()); }, "y: axis dim is 5");
  refuse([&] { decoder.prefill(device, 0, q, k, v, y.view()); },
         "q: axis batch is 3 but must be 1");
  refuse([&] { decoder.record_step(device, q, k, v, y.view()); },
         "q: axis tokens is 2 but must be 1", "a recorded step is one token");
  const auto backwards = [](auto view) {
    view.extent[2] = -1;
    return view;
  };
  const auto q_back = backwards(q.view()), k_back = backwards(k.view());
  const auto v_back = backwards(v.view()), y_back = backwards(y.view());
  refuse([&] { decoder.step(device, q_back, k_back, v_back, y_back); },
         "q: axis tokens is -1, which is negative");
  refuse([&] { decoder.record_step(device, q_back, k_back, v_back, y_back); },
         "q: axis tokens is -1, which is negative");
  auto folded = y.view();
  folded.stride[1] = 0;
  refuse([&] { decoder.step(device, q, k, v, folded); },
         "y: the strides give two elements one address");
  const WorkspaceView held = session.memory;
  const auto inside = [&](auto tensor) {
    tensor.data = reinterpret_cast<decltype(tensor.data)>(held.data + 64);
    return tensor;
  };
  const auto token = [](auto tensor) {
    tensor.extent[2] = 1;
    return tensor;
  };
  refuse([&] { decoder.step(device, q, k, inside(v.view()), y.view()); },
         "memory: shares memory with v;");
  refuse(
      [&] {
        decoder.record_step(device, token(q.view()), inside(token(k.view())), token(v.view()),
                            token(y.view()));
      },
      "memory: shares memory with k;");
  refuse(
      [&] {
        CudaDecoder<HalfSplit, double>(small, device, inside(x.mix.view()), decoder_shape(x), held);
      },
      "memory: shares memory with mix;");
  refuse([&] { decoder.step(device, q, k, v, inside(y.view())); }, "memory: shares memory with y;");
  for (const Index s : {-1, 3}) {
    const std::string which = "sequence is " + std::to_string(s) + " but the decoder has 3";
    refuse([&] { decoder.prefill(device, s, q, k, v, y.view()); }, which);
    refuse([&] { decoder.reset(device, s); }, which);
    refuse([&] { static_cast<void>(decoder.position(s)); }, which);
  }
  HostTensor<double, 4> long_q(3, 4, 10, 4), long_k(3, 2, 10, 4), long_v(3, 2, 10, 3),
      long_y(3, 4, 10, 3);
  refuse([&] { decoder.step(device, long_q, long_k, long_v, long_y.view()); },
         "sequence 2 is full: 11 + 10 tokens exceed the rows of mix, for 20");
  HostTensor<double, 4> no_q(3, 4, 0, 4), no_k(3, 2, 0, 4), no_v(3, 2, 0, 3), no_y(3, 4, 0, 3);
  decoder.step(device, no_q, no_k, no_v, no_y.view());  // no token is no step

  const Index bytes = decoder.snapshot_size();
  const DeviceMemory memory(bytes);
  const WorkspaceView view = memory;
  refuse(
      [&] {
        decoder.save(device, {view.data, bytes - 1});
      },
      "save: memory:", std::to_string(bytes) + " bytes are needed", "snapshot_size()");
  refuse([&] { decoder.save(device, {view.data + 8, bytes}); }, "must be a multiple of 64");
  refuse([&] { decoder.save(device, held); }, "memory: shares memory with the decoder's memory;");
  DeviceSession<HalfSplit, double> other(HalfSplit{.blocks = {.block = 5}}, x);
  const DeviceMemory of_other(other.decoder.snapshot_size());
  const auto snapshot = other.decoder.save(other.device, of_other);
  refuse([&] { decoder.load(device, snapshot); }, "load:", "of another size");
  auto own = decoder.save(device, memory);
  const auto taken = std::move(own);
  refuse([&] { decoder.load(device, own); }, "load: the snapshot was moved from");  // NOLINT
  decoder.load(device, taken);

  finish(session);
  CHECK(bitwise_equal(session.y.view(), straight(x).view()));
}

TEST_CASE("cuda decoding: a kernel that cannot be launched loses its call's sequences alone",
          "[cuda]") {
  const HalfSplit attention{.blocks = {.block = 4}};
  const auto x = operands<double>(attention, {3, 4, 2, 19, 19, 4, 3, 4});
  const auto expected = forward(attention, x);
  for (long at = 0; at < 20; ++at) {  // the launches of two tiles
    CAPTURE(at);
    DeviceSession<HalfSplit, double> session(attention, x);
    session.prefill_all(7);
    session.machine.refused_launch = session.machine.launches + at;
    CHECK_THROWS_AS(session.prefill(1, 3), mhla::CudaError);
    session.machine.refused_launch = -1;
    const DeviceMemory memory(session.decoder.snapshot_size());
    for (const std::string& message :
         {error_message<StateError>([&] { static_cast<void>(session.decoder.position(1)); }),
          error_message<StateError>([&] { session.prefill(1, 1); }),
          error_message<StateError>([&] { session.decoder.count_replay(); }),
          error_message<StateError>([&] { session.decoder.save(session.device, memory); })})
      CHECK(says(message, "mhla: sequence 1 was lost", "reset it, or load a snapshot"));
    CHECK(session.decoder.position(0) == 7);
    session.decoder.reset(session.device, 1);
    session.prefill(1, 7);
    session.step_to_the_end();
    check_decoded(session.y, expected);
  }
}

TEST_CASE("cuda decoding: memory that CUDA does not know, and crooked addresses, change nothing",
          "[cuda]") {
  struct Unknown {
    explicit Unknown(const void* address) { stand_in::runtime().unknown = {{address, 1}}; }
    ~Unknown() { stand_in::runtime() = {}; }
  };
  const auto x = operands<double>(small, small_shape);
  DeviceSession<HalfSplit, double> session(small, x);
  begin(session);
  auto& decoder = session.decoder;
  const CudaDevice device = session.device;
  HostTensor<double, 4> q(3, 4, 1, 4), k(3, 2, 1, 4), v(3, 2, 1, 3), y(3, 4, 1, 3);
  const DeviceMemory aside(decoder.snapshot_size());
  const WorkspaceView memory = session.memory, saved = aside;
  const auto snapshot = decoder.save(device, aside);
  const std::vector<std::byte> at_first(memory.data, memory.data + memory.size);
  const auto refuse = [&](const char* name, const void* address, const auto& call) {
    CAPTURE(name);
    const Unknown unknown(address);
    const long before = session.machine.launches;
    const std::string message = error_message<mhla::CudaError>(call);
    INFO(message);
    CHECK(says(message, std::string("mhla: ") + name + ": ", "not in memory that CUDA knows"));
    CHECK(session.machine.launches == before);
    CHECK(session.positions() == std::vector<Index>{6, 0, 11});
    CHECK(std::equal(at_first.begin(), at_first.end(), memory.data));
    for (const double element : y.elements()) CHECK(element == 0);
  };
  const auto step = [&] { decoder.step(device, q, k, v, y.view()); };
  const auto record = [&] { decoder.record_step(device, q, k, v, y.view()); };
  const std::pair<const char*, const HostTensor<double, 4>*> tensors[] = {
      {"q", &q}, {"k", &k}, {"v", &v}, {"y", &y}};
  for (const auto& [name, tensor] : tensors) {
    refuse(name, tensor->view().data, step);
    refuse(name, tensor->view().data, record);
    refuse(name, tensor->view().data, [&] {
      decoder.prefill(device, 0, tokens_of(q.view(), 0, 0, 1), tokens_of(k.view(), 0, 0, 1),
                      tokens_of(v.view(), 0, 0, 1), tokens_of(y.view(), 0, 0, 1));
    });
  }
  refuse("memory", saved.data, [&] { decoder.save(device, aside); });
  refuse("memory", saved.data, [&] { decoder.load(device, snapshot); });
  refuse("memory", memory.data, [&] { decoder.save(device, aside); });
  refuse("memory", memory.data, [&] { decoder.load(device, snapshot); });
  refuse("memory", nullptr, [&] { decoder.save(device, {nullptr, saved.size}); });

  // A decoder's own.
  using Decoder = CudaDecoder<HalfSplit, double>;
  const DecoderShape sizes = decoder_shape(x);
  const DeviceMemory other(memory.size);
  const WorkspaceView view = other;
  refuse("memory", view.data, [&] { Decoder(small, device, x.mix, sizes, other); });
  refuse("memory", nullptr, [&] { Decoder(small, device, x.mix, sizes, {nullptr, view.size}); });
  refuse("mix", x.mix.view().data, [&] { Decoder(small, device, x.mix, sizes, other); });
  CHECK(other.guards_intact());

  const auto crooked = [&](const char* name, const auto& call) {
    const long before = session.machine.launches;
    const std::string message = error_message<ShapeError>(call);
    INFO(message);
    CHECK(says(message, std::string("mhla: ") + name + ": the address is not a multiple of 8"));
    CHECK(session.machine.launches == before);
    CHECK(session.positions() == std::vector<Index>{6, 0, 11});
  };
  const auto displaced = [](auto tensor) {
    tensor.data =
        reinterpret_cast<decltype(tensor.data)>(reinterpret_cast<std::uintptr_t>(tensor.data) + 4);
    return tensor;
  };
  crooked("q", [&] { decoder.step(device, displaced(q.view()), k, v, y.view()); });
  crooked("k", [&] { decoder.step(device, q, displaced(k.view()), v, y.view()); });
  crooked("v", [&] { decoder.step(device, q, k, displaced(v.view()), y.view()); });
  crooked("y", [&] { decoder.step(device, q, k, v, displaced(y.view())); });
  crooked("y", [&] { decoder.record_step(device, q, k, v, displaced(y.view())); });
  crooked("mix", [&] { Decoder(small, device, displaced(x.mix.view()), sizes, other); });

  finish(session);
  CHECK(bitwise_equal(session.y.view(), straight(x).view()));
}
