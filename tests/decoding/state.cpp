// SPDX-License-Identifier: MIT
// A decoder as a value: copies, forgetting, saved bytes and every refusal of foreign ones, wrong
// calls that change nothing, and no allocation once it is made.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/cpu/scattered_tensor.hpp"
#include "tests/decoding/session.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using namespace decoding;
using namespace mhla;

using Variant = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using Bytes = std::vector<std::byte>;

constexpr Variant attention{.blocks = {.block = 4}};
constexpr Shape shape{3, 4, 2, 19, 19, 4, 3, 4};  // in room for 20 tokens

template <class D>
Bytes saved(const D& decoder) {
  Bytes bytes(static_cast<std::size_t>(decoder.saved_size()));
  decoder.save({bytes.data(), decoder.saved_size()});
  return bytes;
}
template <class D>
void load(D& decoder, const Bytes& bytes) {
  decoder.load({bytes.data(), static_cast<Index>(bytes.size())});
}

// x with NaN everywhere: what a decoder is filled with that must leave nothing.
Operands<double> poison(Operands<double> x) {
  for (auto* tensor : {&x.q, &x.k, &x.v})
    for (double& element : tensor->elements()) element = std::numeric_limits<double>::quiet_NaN();
  return x;
}

// A session whose sequences have 6, 0 and 11 tokens.
Session<Variant, double> begun(const Operands<double>& x) {
  Session<Variant, double> session(attention, x);
  session.prefill(0, 6);
  session.prefill(2, 11);
  return session;
}

// Goes on to the end of every sequence.
void finish(Session<Variant, double>& session) {
  while (session.decoder.position(2) < 19) session.step();
  for (const Index s : {0, 1}) session.prefill(s, 19 - session.decoder.position(s));
}

// Fails unless load() refuses `bytes` with a message of these parts, and changes nothing.
template <class D, class... Parts>
void check_refused(D& decoder, const Bytes& bytes, const Parts&... parts) {
  const Bytes before = saved(decoder);
  const std::string message = error_message<StateError>([&] { load(decoder, bytes); });
  INFO(message);
  CHECK(says(message, "mhla: load: ", parts...));
  CHECK(saved(decoder) == before);
}

}  // namespace

TEST_CASE("decoder state: copies are independent snapshots", "[decoding]") {
  const auto x = operands<double>(attention, shape);
  const auto other = operands<double>(attention, shape, 2);
  Session<Variant, double> straight = begun(x);
  finish(straight);

  Session<Variant, double> session = begun(x);
  Session<Variant, double> copy = session;              // copied
  Session<Variant, double> assigned(attention, other);  // assigned over another state
  assigned.step(5);
  assigned.decoder = session.decoder;
  assigned.x = &x;
  assigned.y = session.y;
  Session<Variant, double> aside = session;
  aside.x = &other;  // other tokens from here on
  finish(aside);
  finish(session);
  CHECK(bitwise_equal(session.y.view(), straight.y.view()));
  CHECK(!bitwise_equal(aside.y.view(), straight.y.view()));
  finish(copy);
  CHECK(bitwise_equal(copy.y.view(), straight.y.view()));
  finish(assigned);
  CHECK(bitwise_equal(assigned.y.view(), straight.y.view()));

  Session<Variant, double> source = begun(x);
  Session<Variant, double> moved = std::move(source);
  finish(moved);
  CHECK(bitwise_equal(moved.y.view(), straight.y.view()));
  Session<Variant, double> target(attention, other);
  target = begun(x);
  Decoder<Variant, double>& itself = target.decoder;
  target.decoder = itself;
  finish(target);
  CHECK(bitwise_equal(target.y.view(), straight.y.view()));
}

TEST_CASE("decoder state: a loaded state goes on with the same bits", "[decoding]") {
  const auto x = operands<double>(attention, shape);
  const auto poisoned = poison(x);
  Session<Variant, double> straight(attention, x);
  straight.prefill(1, 3);
  while (straight.decoder.position(1) < 19) straight.step();

  Session<Variant, double> session(attention, x);
  session.prefill(1, 3);
  for (Index at = 0; at <= 16; ++at) {
    CAPTURE(at);
    const Bytes bytes = saved(session.decoder);
    Session<Variant, double> other(attention, poisoned);
    other.step(19 - at);
    load(other.decoder, bytes);
    CHECK(saved(other.decoder) == bytes);
    CHECK(other.decoder.position(0) == at);
    CHECK(other.decoder.position(1) == at + 3);
    other.x = &x;
    other.y = session.y;
    while (other.decoder.position(1) < 19) other.step();
    CHECK(bitwise_equal(other.y.view(), straight.y.view()));
    if (at < 16) session.step();
  }

  // More bytes than needed are fine, fewer are not; either way save says how many it takes.
  Bytes larger(static_cast<std::size_t>(session.decoder.saved_size() + 5), std::byte{7});
  session.decoder.save({larger.data(), session.decoder.saved_size() + 5});
  CHECK(larger.back() == std::byte{7});
  load(session.decoder, larger);
  Bytes smaller(static_cast<std::size_t>(session.decoder.saved_size() - 1), std::byte{7});
  CHECK(says(error_message<StateError>([&] {
               session.decoder.save({smaller.data(), session.decoder.saved_size() - 1});
             }),
             "mhla: save: ", std::to_string(session.decoder.saved_size()) + " bytes are needed, ",
             std::to_string(session.decoder.saved_size() - 1) + " were given"));
  CHECK(smaller == Bytes(smaller.size(), std::byte{7}));
}

TEST_CASE("decoder state: damaged and foreign bytes are refused, and nothing changes",
          "[decoding]") {
  const auto x = operands<double>(attention, shape);
  Session<Variant, double> straight = begun(x);
  Session<Variant, double> session = straight;
  finish(straight);
  Decoder<Variant, double>& decoder = session.decoder;
  Session<Variant, double> elsewhere(attention, x);
  elsewhere.step(9);
  const Bytes good = saved(elsewhere.decoder);

  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{111},
                                 std::size_t{112}, good.size() / 2, good.size() - 1}) {
    CAPTURE(size);
    Bytes cut = good;
    cut.resize(size);
    check_refused(decoder, cut, "cut short: ", std::to_string(good.size()) + " bytes are needed, ",
                  std::to_string(size) + " were given");
  }
  Bytes foreign = good;
  std::memcpy(foreign.data(), "PNG", 3);
  check_refused(decoder, foreign, "not a decoder's saved state");
  check_refused(decoder, Bytes(good.size()), "not a decoder's saved state");
  Bytes newer = good;
  newer[8] = std::byte{2};
  check_refused(decoder, newer, "has format 2, this library reads format 1");

  // Whatever byte changes is noticed.
  Index accepted = 0;
  const Bytes before = saved(decoder);
  for (std::size_t i = 0; i < good.size(); i += i < 200 ? 1 : 37) {
    Bytes flipped = good;
    flipped[i] ^= std::byte{0x10};
    accepted += error_message<StateError>([&] { load(decoder, flipped); }) == "nothing was thrown";
  }
  CHECK(accepted == 0);
  CHECK(saved(decoder) == before);
  Bytes flipped = good;
  flipped.back() ^= std::byte{1};
  check_refused(decoder, flipped, "damaged: its checksum does not match");

  finish(session);
  CHECK(bitwise_equal(session.y.view(), straight.y.view()));
  load(decoder, good);  // and the good bytes are good
  CHECK(decoder.position(2) == 9);
}

TEST_CASE("decoder state: the state of a decoder that differs in anything is refused",
          "[decoding]") {
  const auto x = operands<double>(attention, shape);
  Decoder<Variant, double> decoder(attention, x.mix, decoder_shape(x));
  const auto refused = [&](const auto& other) {
    Bytes bytes = saved(other);
    bytes.resize(std::max(bytes.size(), static_cast<std::size_t>(decoder.saved_size())));
    check_refused(decoder, bytes, "of another variant, size or mixing matrix");
  };
  const auto with = [&](const auto& variant) {
    refused(
        Decoder<std::remove_cvref_t<decltype(variant)>, double>(variant, x.mix, decoder_shape(x)));
  };
  const auto of_sizes = [&](const Variant& variant, const Shape& sizes) {
    const auto y = operands<double>(variant, sizes);
    refused(Decoder<Variant, double>(variant, y.mix, decoder_shape(y)));
  };
  // Numbers of the variant, and its types.
  with(Variant{.blocks = {.block = 4}, .normalizer = {.epsilon = 1e-5}});
  with(Variant{.blocks = {.block = 4}, .rotation = {.theta = 9999}});
  with(Variant{.blocks = {.block = 4}, .scale = 2});
  with(Attention<Relu, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>{.blocks = {.block = 4}});
  with(Attention<EluPlusOne, Blocks1D, Causal, Unnormalized, HalfSplitRotary>{
      .blocks = {.block = 4}});
  with(Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, AxialRotary>{.blocks = {.block = 4}});
  with(Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, NoRotation>{.blocks = {.block = 4}});
  {
    using Rectified = Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation>;
    Decoder<Rectified, double> one({.feature_map = {.epsilon = 1e-6}, .blocks = {.block = 4}},
                                   x.mix, decoder_shape(x));
    const Decoder<Rectified, double> two({.feature_map = {.epsilon = 1e-7}, .blocks = {.block = 4}},
                                         x.mix, decoder_shape(x));
    check_refused(one, saved(two), "of another variant, size or mixing matrix");
    load(one, saved(one));
  }
  {  // The same parameters, of two blocks or of two heads.
    using Recurrent =
        Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, mhla::RecurrentMixing>;
    const Recurrent recurrent{.blocks = {.block = 4}};
    const std::vector<double> mix{1, 0.5, 0.5, 0.9, 0.3, 0.2, 0.1, 0.7};
    const mhla::DecoderShape sizes{1, 2, 2, 4, 4};
    Decoder<Recurrent, double> one(recurrent, mhla::make_view(mix.data(), 1, 2, 4), sizes);
    const Decoder<Recurrent, double> two(recurrent, mhla::make_view(mix.data(), 2, 1, 4), sizes);
    check_refused(one, saved(two), "of another variant, size or mixing matrix");
  }
  // Sizes: batch, heads, kv_heads, key_dim, value_dim, tokens of a block, blocks, matrices.
  of_sizes(attention, {4, 4, 2, 19, 19, 4, 3, 4});
  of_sizes(attention, {3, 8, 2, 19, 19, 4, 3, 8});
  of_sizes(attention, {3, 4, 4, 19, 19, 4, 3, 4});
  of_sizes(attention, {3, 4, 2, 19, 19, 6, 3, 4});
  of_sizes(attention, {3, 4, 2, 19, 19, 4, 4, 4});
  of_sizes(Variant{.blocks = {.block = 5}}, {3, 4, 2, 25, 25, 4, 3, 4});
  of_sizes(attention, {3, 4, 2, 24, 24, 4, 3, 4});
  of_sizes(attention, {3, 4, 2, 19, 19, 4, 3, 1});
  // One entry of the mixing matrix that a sequence uses; above the diagonal there is none.
  auto other = x;
  other.mix(3, 4, 0) += 1e-9;
  refused(Decoder<Variant, double>(attention, other.mix, decoder_shape(x)));
  other = x;
  other.mix(3, 0, 4) += 1;
  const Decoder<Variant, double> same(attention, other.mix, decoder_shape(x));
  load(decoder, saved(same));
  // Another precision.
  const auto narrow = call::converted<float>(x);
  refused(Decoder<Variant, float>(attention, narrow.mix, decoder_shape(narrow)));
}

TEST_CASE("decoder: wrong calls name what is wrong, and nothing changes", "[decoding]") {
  const auto x = operands<double>(attention, shape);
  Session<Variant, double> straight = begun(x);
  Session<Variant, double> session = straight;
  finish(straight);
  Decoder<Variant, double>& decoder = session.decoder;

  HostTensor<double, 4> q(3, 4, 2, 4), k(3, 2, 2, 4), v(3, 2, 2, 3), y(3, 4, 2, 3);
  for (auto* tensor : {&q, &k, &v, &y})
    for (double& element : tensor->elements()) element = 0.5;
  const auto refuse = [&](const auto& call, const auto&... parts) {
    const Bytes before = saved(decoder);
    const auto y_before = y;
    const std::string message = error_message<mhla::Error>(call);
    INFO(message);
    CHECK(says(message, "mhla: ", parts...));
    CHECK(saved(decoder) == before);
    CHECK(bitwise_equal(y.view(), y_before.view()));
  };
  using Tensor = HostTensor<double, 4>;
  const auto refuse_step = [&](Tensor a, Tensor b, Tensor c, Tensor d, const auto&... parts) {
    refuse([&] { decoder.step(a, b, c, d.view()); }, parts...);
  };
  refuse_step(Tensor(2, 4, 2, 4), k, v, y, "q: axis batch is 2 but must be 3");
  refuse_step(Tensor(3, 2, 2, 4), k, v, y, "q: axis heads is 2 but must be 4");
  refuse_step(Tensor(3, 4, 2, 6), k, v, y, "q: axis dim is 6 but must be 4");
  refuse_step(q, Tensor(1, 2, 2, 4), v, y, "k: axis batch is 1 but must be 3");
  refuse_step(q, Tensor(3, 4, 2, 4), v, y, "k: axis heads is 4 but must be 2");
  refuse_step(q, Tensor(3, 2, 1, 4), v, y, "k: axis tokens is 1 but must be 2");
  refuse_step(q, Tensor(3, 2, 2, 3), v, y, "k: axis dim is 3 but must be 4");
  refuse_step(q, k, Tensor(3, 4, 2, 3), y, "v: axis heads is 4 but must be 2");
  refuse_step(q, k, Tensor(3, 2, 3, 3), y, "v: axis tokens is 3 but must be 2");
  refuse_step(q, k, Tensor(3, 2, 2, 4), y, "v: axis dim is 4 but must be 3");
  refuse_step(q, k, v, Tensor(3, 2, 2, 3), "y: axis heads is 2 but must be 4");
  refuse_step(q, k, v, Tensor(3, 4, 1, 3), "y: axis tokens is 1 but must be 2");
  refuse_step(q, k, v, Tensor(3, 4, 2, 4), "y: axis dim is 4 but must be 3");

  auto nowhere = q.view();
  nowhere.data = nullptr;
  refuse([&] { decoder.step(nowhere, k, v, y.view()); }, "q: has 96 elements but a null address");

  // Fewer tokens than none.
  const auto backwards = [](auto& tensor) {
    auto view = tensor.view();
    view.extent[2] = -1;
    return view;
  };
  refuse([&] { decoder.step(backwards(q), backwards(k), backwards(v), backwards(y)); },
         "q: axis tokens is -1, which is negative");
  const auto backwards_of_one = [](auto& tensor) {
    auto view = tokens_of(tensor.view(), 1, 0, 2);
    view.extent[2] = -1'000'000;
    return view;
  };
  refuse(
      [&] {
        decoder.prefill(1, backwards_of_one(q), backwards_of_one(k), backwards_of_one(v),
                        backwards_of_one(y));
      },
      "q: axis tokens is -1000000, which is negative");

  // A destination on top of an operand, and on top of itself.
  auto overlapping = mhla::make_view(q.elements().data(), 3, 4, 2, 3);
  refuse([&] { decoder.step(q, k, v, overlapping); }, "y: shares memory with q;");
  std::vector<double> shared(3 * 4 * 2 * 4, 0.5);
  const auto in_shared = [&](Index heads, Index dim) {
    return mhla::make_view(shared.data(), 3, heads, 2, dim);
  };
  refuse([&] { decoder.step(q, in_shared(2, 4), v, in_shared(4, 3)); }, "y: shares memory with k;");
  refuse([&] { decoder.step(q, k, in_shared(2, 3), in_shared(4, 3)); }, "y: shares memory with v;");
  auto folded = y.view();
  folded.stride[1] = 0;
  refuse([&] { decoder.step(q, k, v, folded); }, "y: the strides give two elements one address");

  // A destination on top of what the feature map borrows.
  const Attention<mhla::Favor<double>, Blocks1D, Causal> random{
      .feature_map = {mhla::make_view<const double>(y.elements().data() + 30, 6, 4)},
      .blocks = {.block = 5}};
  const Tensor before = y;
  mhla::Decoder<decltype(random), double> projecting(random, x.mix, decoder_shape(x));
  CHECK(says(error_message<ShapeError>([&] { projecting.step(q, k, v, y.view()); }),
             "y: shares memory with feature_map.projection"));
  CHECK(bitwise_equal(y.view(), before.view()));

  // Between two elements.
  const auto displaced = [](auto tensor) {
    tensor.data =
        reinterpret_cast<decltype(tensor.data)>(reinterpret_cast<std::uintptr_t>(tensor.data) + 4);
    return tensor;
  };
  const char* crooked = ": the address is not a multiple of 8, the size of its elements";
  refuse([&] { decoder.step(displaced(q.view()), k, v, y.view()); }, std::string("q") + crooked);
  refuse([&] { decoder.step(q, displaced(k.view()), v, y.view()); }, std::string("k") + crooked);
  refuse([&] { decoder.step(q, k, displaced(v.view()), y.view()); }, std::string("v") + crooked);
  refuse([&] { decoder.step(q, k, v, displaced(y.view())); }, std::string("y") + crooked);

  // Sequences, slots, and no room: for one sequence only, in a step of all.
  const auto one = [](auto& tensor) { return tokens_of(tensor.view(), 0, 0, 2); };
  for (const Index s : {-1, 3}) {
    const std::string which = "sequence is " + std::to_string(s) + " but the decoder has 3";
    refuse([&] { decoder.prefill(s, one(q), one(k), one(v), one(y)); }, which);
    refuse([&] { decoder.reset(s); }, which);
    refuse([&] { static_cast<void>(decoder.position(s)); }, which);
  }
  refuse([&] { decoder.prefill(0, q, k, v, y.view()); }, "q: axis batch is 3 but must be 1");
  refuse([&] { decoder.step(executors::ThreadExecutor{2}, q, k, v, y.view()); },
         "slots: the executor has 2 but the decoder was made for 1");

  CHECK(decoder.capacity() == 20);
  HostTensor<double, 4> long_q(3, 4, 10, 4), long_k(3, 2, 10, 4), long_v(3, 2, 10, 3),
      long_y(3, 4, 10, 3);
  const auto long_y_before = long_y;
  refuse([&] { decoder.step(long_q, long_k, long_v, long_y.view()); },
         "sequence 2 is full: 11 + 10 tokens exceed the rows of mix, for 20",
         "mhla::extend makes a larger mix");
  CHECK(bitwise_equal(long_y.view(), long_y_before.view()));
  CHECK_THROWS_AS(decoder.step(long_q, long_k, long_v, long_y.view()), StateError);

  finish(session);
  CHECK(bitwise_equal(session.y.view(), straight.y.view()));
  // The last token that there is a row for, and then none.
  HostTensor<double, 4> last_q(3, 4, 1, 4), last_k(3, 2, 1, 4), last_v(3, 2, 1, 3),
      last_y(3, 4, 1, 3);
  decoder.step(last_q, last_k, last_v, last_y.view());
  refuse([&] { decoder.step(last_q, last_k, last_v, last_y.view()); },
         "sequence 0 is full: 20 + 1 tokens exceed");
  CHECK(decoder.position(0) == 20);
  HostTensor<double, 4> no_q(3, 4, 0, 4), no_k(3, 2, 0, 4), no_v(3, 2, 0, 3), no_y(3, 4, 0, 3);
  decoder.step(no_q, no_k, no_v, no_y.view());  // no token is no step
  CHECK(decoder.position(0) == 20);
}

namespace {

struct Thrown {};

// A feature map that throws once it has been asked for so many values.
inline std::atomic<long> values_left{std::numeric_limits<long>::max()};
struct ThrowingMap {
  template <class T>
  T value(T x) const {
    if (--values_left < 0) throw Thrown{};
    return EluPlusOne{}.value(x);
  }
  template <class T>
  T derivative(T x) const {
    return EluPlusOne{}.derivative(x);
  }
};

// Throws once `tasks` tasks are done, which are not the first ones.
struct ThrowingExecutor {
  Index tasks_done;

  static constexpr Index num_slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    for (Index i = 0; i < tasks_done; ++i) task(tasks - 1 - i, Index{0});
    throw Thrown{};
  }
};

// Calls that fail at every place they can, each followed by the same call, which does not; checks
// that it decodes what a decoder without failures does. Chunks of 19 tokens in blocks of 4 end in
// the block they begin in, or one, two or three after it.
template <class V, class Fail>
void check_strong_guarantee(const V& variant, const Fail& fail) {
  const auto x = operands<double>(variant, shape);
  for (const std::vector<Index>& chunks :
       {std::vector<Index>{1, 1, 1, 1, 1, 2, 3, 8, 1}, {3, 8, 8}, {2, 14, 3}, {6, 12, 1}}) {
    Session<V, double> expected(variant, x);
    Session<V, double> session(variant, x);
    for (const Index chunk : chunks) {
      CAPTURE(chunks, chunk, expected.decoder.position(0));
      expected.step(chunk);
      bool failed = true;
      for (Index at = 0; failed; ++at) {
        CAPTURE(at);
        const auto y = session.y;
        failed = fail(session, chunk, at);
        CHECK(session.decoder.position(0) ==
              expected.decoder.position(0) - (failed ? chunk : Index{0}));
        if (failed) session.y = y;
      }
      REQUIRE(bitwise_equal(session.y.view(), expected.y.view()));
    }
  }
}

template <class Normalizer, class Rotation, class Mixing = mhla::DenseMixing>
using Throwing = Attention<ThrowingMap, Blocks1D, Causal, Normalizer, Rotation, Mixing>;

}  // namespace

TEMPLATE_TEST_CASE("decoder: a call whose feature map throws has changed nothing", "[decoding]",
                   (Throwing<MixedKeySum, HalfSplitRotary>), (Throwing<Unnormalized, NoRotation>),
                   (Throwing<MixedKeySum, NoRotation, mhla::RecurrentMixing>)) {
  TestType variant{.blocks = {.block = 4}};
  if constexpr (requires { variant.mixing.states; }) variant.mixing.states = 2;
  const auto fail = [](auto& session, Index chunk, Index at) {
    values_left = 5 * at;
    bool failed = false;
    try {
      session.step(chunk);
    } catch (const Thrown&) {
      failed = true;
    }
    values_left = std::numeric_limits<long>::max();
    return failed;
  };
  check_strong_guarantee(variant, fail);
}

TEST_CASE("decoder: a call whose executor throws has changed nothing", "[decoding]") {
  const auto fail = [](auto& session, Index chunk, Index at) {
    const Index tasks = 6;
    try {
      if (at > tasks) {
        session.step(chunk);
      } else {
        session.step(chunk, ThrowingExecutor{at});
      }
    } catch (const Thrown&) {
      return true;
    }
    return false;
  };
  check_strong_guarantee(attention, fail);
}

TEST_CASE("decoder: a decoder that cannot be is not made", "[decoding]") {
  const auto refuse = [](const Variant& variant, const HostTensor<double, 3>& mix,
                         const DecoderShape& sizes, const auto&... parts) {
    const std::string message =
        error_message<ShapeError>([&] { Decoder<Variant, double>(variant, mix, sizes); });
    INFO(message);
    CHECK(says(message, "mhla: ", parts...));
  };
  using Mix = HostTensor<double, 3>;
  const DecoderShape sizes{2, 4, 2, 6, 3};
  refuse(attention, Mix(1, 3, 4), sizes, "mix: axis key blocks is 4 but must be 3");
  refuse(attention, Mix(2, 3, 3), sizes, "mix: axis heads is 2 but must be 1 (shared), 4 (one");
  refuse(attention, Mix(1, 3, 3), {2, 4, 3, 6, 3}, "must be a multiple of the heads of k and v");
  refuse(attention, Mix(1, 3, 3), {2, 4, 2, 5, 3}, "rotation:", "must be even");
  refuse(attention, Mix(1, 3, 3), {-1, 4, 2, 6, 3}, "q: axis batch is -1");
  refuse(attention, Mix(1, 3, 3), {2, 4, 2, 6, -3}, "negative");
  refuse(attention, Mix(1, 3, 3), {2, 4, 2, 6, 3, 0}, "num_slots is 0 but must be at least 1");
  refuse(Variant{}, Mix(1, 3, 3), sizes, "blocks.block is 0");
  refuse(Variant{.blocks = {.block = -2}}, Mix(1, 3, 3), sizes, "blocks.block is -2");

  CHECK(says(error_message<ShapeError>([&] {
               Decoder<Variant, double>(
                   attention, mhla::make_view(static_cast<const double*>(nullptr), 1, 3, 3), sizes);
             }),
             "mhla: mix: has 9 elements but a null address"));
  using Random = mhla::Attention<mhla::Favor<double>, mhla::Blocks1D, mhla::Causal>;
  const Random random{.feature_map = {mhla::make_view(static_cast<const double*>(nullptr), 4, 6)},
                      .blocks = {.block = 4}};
  CHECK(
      says(error_message<ShapeError>([&] { Decoder<Random, double>(random, Mix(1, 3, 3), sizes); }),
           "mhla: feature_map.projection: has 24 elements but a null address"));

  // What no memory holds, at once; empty or not.
  constexpr Index huge = Index{1} << 62;
  const char* large = "too large";
  refuse(attention, Mix(1, 3, 3), {huge, 4, 2, 6, 3}, "q: axis batch", large);
  refuse(attention, Mix(1, 3, 3), {huge, 0, 0, 0, 0}, "q: axis batch", large);
  refuse(attention, Mix(1, 3, 3), {1, 0, huge, 0, 0}, "k: axis heads", large);
  refuse(attention, Mix(1, 3, 3), {1, huge, huge, 0, 0}, "q: axis heads", large);
  refuse(attention, Mix(1, 3, 3), {2, 4, 2, 6, 3, huge}, "overflows 64 bits");
  refuse(attention, Mix(1, 3, 3), {1, 1, 1, 0, 0, huge}, "overflows 64 bits");
  refuse(Variant{.blocks = {.block = huge}}, Mix(1, 0, 0), sizes, "blocks: axis block", large);

  // As many heads of nothing as there may be: no state, and steps that take no time.
  constexpr Index many = Index{1} << 50;
  Decoder<Variant, double> hollow(attention, Mix(1, 3, 3), {1, many, many, 0, 0});
  const auto nothing = mhla::make_view(static_cast<double*>(nullptr), 1, many, 5, 0);
  hollow.step(nothing, nothing, nothing, nothing);
  CHECK(hollow.position(0) == 5);
  CHECK(hollow.saved_size() < 1000);

  // Without a row of mix there is no room, which is no mistake yet.
  Decoder<Variant, double> empty(attention, Mix(1, 0, 0), sizes);
  CHECK(empty.capacity() == 0);
  HostTensor<double, 4> q(2, 4, 1, 6), k(2, 2, 1, 6), v(2, 2, 1, 3), y(2, 4, 1, 3);
  CHECK_THROWS_AS(empty.step(q, k, v, y.view()), StateError);
}

TEST_CASE("decoder: nothing is allocated once it is made", "[decoding]") {
  // Sizes around what Eigen packs on the stack; blocks of one token and longer than a tile.
  for (const auto& [block, sizes] :
       std::vector<std::pair<Index, Shape>>{{4, {2, 4, 2, 19, 19, 8, 5, 4}},
                                            {1, {1, 2, 1, 6, 6, 4, 3}},
                                            {70, {1, 2, 1, 150, 150, 4, 3}},
                                            {300, {1, 1, 1, 610, 610, 4, 3}},
                                            {6, {1, 1, 1, 20, 20, 258, 257}}}) {
    CAPTURE(block, sizes.key_dim, sizes.value_dim);
    const Variant variant{.blocks = {.block = block}};
    const auto x = operands<double>(variant, sizes);
    auto y = x.dy;
    Decoder<Variant, double> decoder(variant, x.mix, decoder_shape(x));
    Bytes bytes(static_cast<std::size_t>(decoder.saved_size()));
    const auto now = [&](auto view) {
      view.data += decoder.position(0) * view.stride[2];
      view.extent[2] = 1;
      return view;
    };
    const AllocationCounter counter;
    decoder.prefill(0, tokens_of(x.q.view(), 0, 0, sizes.query_tokens),
                    tokens_of(x.k.view(), 0, 0, sizes.query_tokens),
                    tokens_of(x.v.view(), 0, 0, sizes.query_tokens),
                    tokens_of(y.view(), 0, 0, sizes.query_tokens));
    const long by_prefill = counter.allocations();
    decoder.reset();
    while (decoder.position(0) < sizes.query_tokens)
      decoder.step(now(x.q.view()), now(x.k.view()), now(x.v.view()), now(y.view()));
    const long by_steps = counter.allocations();
    decoder.save({bytes.data(), decoder.saved_size()});
    decoder.load({bytes.data(), decoder.saved_size()});
    const long by_bytes = counter.allocations();
    CHECK(by_prefill == 0);
    CHECK(by_steps == 0);
    CHECK(by_bytes == 0);
  }
}
