// SPDX-License-Identifier: MIT
#include <limits>
#include <mhla/core/forward_state.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using mhla::ForwardState;
using mhla::Shape;
using mhla::StateError;

TEST_CASE("forward_state: gives back what was saved for the same shape", "[core]") {
  const Shape shape{.batch = 2, .heads = 3, .kv_heads = 3};
  ForwardState<double> state;
  const auto room = state.prepare(shape, 10);
  REQUIRE(room.size == 10);
  for (double& element : room) element = 7;
  state.mark_filled();
  const auto saved = state.summaries(shape, 10);
  CHECK(saved.data == room.data);
  CHECK(saved.size == 10);
  CHECK(saved[9] == 7);
}

TEST_CASE("forward_state: nothing, a started or a foreign save is a StateError", "[core]") {
  const Shape shape{.batch = 2, .heads = 3, .kv_heads = 3};
  const Shape other{.batch = 2, .heads = 3, .kv_heads = 1};
  ForwardState<float> state;
  const auto message = [&](const Shape& wanted, mhla::Index count) {
    return error_message<StateError>([&] { static_cast<void>(state.summaries(wanted, count)); });
  };
  CHECK(says(message(shape, 10), "nothing has been saved"));
  state.prepare(shape, 10);
  CHECK(says(message(shape, 10), "nothing has been saved"));
  state.mark_filled();
  CHECK(state.summaries(shape, 10).size == 10);
  CHECK(says(message(other, 10), "another shape"));
  CHECK(says(message(shape, 11), "another shape"));
  state.prepare(other, 4);  // a new save that has not been finished
  CHECK(says(message(shape, 10), "nothing has been saved"));
  CHECK(says(message(other, 4), "nothing has been saved"));
}

TEST_CASE("forward_state: keeps its memory for smaller saves", "[core]") {
  ForwardState<float> state;
  state.reserve(1000);
  const float* memory = state.prepare({.batch = 1}, 1000).data;
  CHECK(state.prepare({.batch = 2}, 1).data == memory);
  CHECK(state.prepare({.batch = 3}, 999).data == memory);
  state.reserve(10);
  CHECK(state.prepare({.batch = 3}, 1000).data == memory);
  CHECK_THROWS_AS(state.reserve(std::numeric_limits<mhla::Index>::max() / 2), mhla::ShapeError);
}
