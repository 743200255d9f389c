// SPDX-License-Identifier: MIT
#include <cstdint>
#include <limits>
#include <mhla/core/forward_state.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;

namespace {

constexpr Shape shape{.batch = 2, .heads = 3, .kv_heads = 3};
constexpr std::uint64_t variant = 5;

// A state that holds `count` elements, all equal to `count`.
ForwardState<double> saved_state(mhla::Index count) {
  ForwardState<double> state;
  for (double& element : state.prepare(shape, variant, count)) element = static_cast<double>(count);
  state.mark_filled();
  return state;
}
bool holds(const ForwardState<double>& state, mhla::Index count) {
  const auto saved = state.summaries(shape, variant);
  return saved.size == count && saved[count - 1] == static_cast<double>(count);
}
template <class A>
std::string refusal(const ForwardState<A>& state, const Shape& wanted = shape,
                    std::uint64_t wanted_variant = variant) {
  return error_message<StateError>(
      [&] { static_cast<void>(state.summaries(wanted, wanted_variant)); });
}

}  // namespace

TEST_CASE("forward_state: gives back what was saved for the same call", "[core]") {
  ForwardState<double> state;
  const auto room = state.prepare(shape, variant, 10);
  REQUIRE(room.size == 10);
  for (double& element : room) element = 7;
  state.mark_filled();
  const auto saved = state.summaries(shape, variant);
  CHECK(saved.data == room.data);
  CHECK(saved.size == 10);
  CHECK(saved[9] == 7);
}

TEST_CASE("forward_state: nothing, a started or a foreign save is a StateError", "[core]") {
  const Shape other{.batch = 2, .heads = 3, .kv_heads = 1};
  ForwardState<float> state;
  CHECK(says(refusal(state), "nothing has been saved"));
  state.prepare(shape, variant, 10);
  CHECK(says(refusal(state), "nothing has been saved"));
  state.mark_filled();
  CHECK(state.summaries(shape, variant).size == 10);
  CHECK(says(refusal(state, other), "another shape or variant"));
  CHECK(
      says(refusal(state, shape, variant + 1), "another shape or variant", "rotation", "save it"));
  state.prepare(other, variant, 4);  // a new save that has not been finished
  CHECK(says(refusal(state), "nothing has been saved"));
  CHECK(says(refusal(state, other), "nothing has been saved"));
}

TEST_CASE("forward_state: nothing is saved in a state that was moved from", "[core]") {
  ForwardState<double> first = saved_state(10);
  ForwardState<double> second = std::move(first);
  CHECK(holds(second, 10));
  CHECK(says(refusal(first), "nothing has been saved"));  // NOLINT: the point of it
  first = saved_state(20);
  std::swap(first, second);
  CHECK(holds(first, 10));
  CHECK(holds(second, 20));
  first = std::move(second);
  CHECK(holds(first, 20));
  CHECK(says(refusal(second), "nothing has been saved"));  // NOLINT
  ForwardState<double>& itself = first;
  first = std::move(itself);
  CHECK(holds(first, 20));
  second = saved_state(30);  // and it can be used again
  CHECK(holds(second, 30));
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<ForwardState<double>>);
  STATIC_REQUIRE_FALSE(std::is_copy_assignable_v<ForwardState<double>>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<ForwardState<double>>);
}
