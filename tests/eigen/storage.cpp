// SPDX-License-Identifier: MIT
// Eigen's 16-bit scalars and ours: one meaning of every pattern, in one memory, under an optimizer
// that believes in types (this program alone is compiled with -O2).
#include <bit>
#include <cmath>
#include <cstdint>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>

#include "tests/support/catch.hpp"

namespace {

using mhla::BFloat16;
using mhla::Half;
using mhla::eigen::Storage;
using mhla::eigen::TensorScalar;

static_assert(std::is_same_v<Storage<Eigen::bfloat16>, BFloat16>);
static_assert(std::is_same_v<Storage<const Eigen::half>, const Half>);
static_assert(std::is_same_v<Storage<float>, float>);
static_assert(std::is_same_v<Storage<const double>, const double>);
static_assert(std::is_same_v<Storage<Half>, Half>);
static_assert(std::is_same_v<TensorScalar<BFloat16>, Eigen::bfloat16>);
static_assert(std::is_same_v<TensorScalar<Half>, Eigen::half>);
static_assert(std::is_same_v<TensorScalar<double>, double>);
static_assert(std::is_same_v<mhla::Accumulator<Eigen::bfloat16>, float>);
static_assert(std::is_same_v<mhla::Accumulator<Eigen::half>, float>);

template <class T>
std::uint16_t bits_of(const T& value) {
  return std::bit_cast<std::uint16_t>(value);
}

// What an optimizer would reorder or leave out if the two types could not share memory. Not
// inlined, so that it knows nothing of the pointers but their types.
template <class Scalar>
[[gnu::noinline]] std::uint16_t read_after_member(Scalar* theirs, Storage<Scalar>* ours,
                                                  std::uint16_t bits) {
  *theirs = Scalar(1.0f);
  ours->bits = bits;
  return Eigen::numext::bit_cast<std::uint16_t>(*theirs);
}
template <class Scalar>
[[gnu::noinline]] std::uint16_t read_after_copy(Scalar* theirs, Storage<Scalar>* ours,
                                                Storage<Scalar> value) {
  *theirs = Scalar(1.0f);
  *ours = value;
  return Eigen::numext::bit_cast<std::uint16_t>(*theirs);
}
template <class Scalar>
[[gnu::noinline]] std::uint16_t member_after_write(Scalar* theirs, Storage<Scalar>* ours,
                                                   const Scalar& value) {
  ours->bits = 0;
  *theirs = value;
  return ours->bits;
}
template <class Scalar>
[[gnu::noinline]] float load_after_write(Scalar* theirs, Storage<Scalar>* ours) {
  mhla::store(*ours, 2.0f);
  *theirs = Scalar(1.0f);
  return mhla::load(*ours);
}

}  // namespace

TEMPLATE_TEST_CASE("storage: every pattern means the same to Eigen and to us", "[eigen]",
                   Eigen::bfloat16, Eigen::half) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    auto theirs = std::bit_cast<TestType>(bits);
    const float value = static_cast<float>(theirs);
    REQUIRE(bits_of(Storage<TestType>(theirs)) == bits_of(Storage<TestType>(value)));
    const float loaded = mhla::load(*mhla::eigen::storage(&theirs));
    if (std::isnan(value)) {
      REQUIRE(std::isnan(loaded));
      continue;
    }
    REQUIRE(loaded == value);
    REQUIRE(std::signbit(loaded) == std::signbit(value));
    TestType stored(0.0f);
    mhla::store(*mhla::eigen::storage(&stored), value);
    REQUIRE(bits_of(stored) == bits);
  }
}

TEMPLATE_TEST_CASE("storage: what one type has written, the other reads", "[eigen]",
                   Eigen::bfloat16, Eigen::half) {
  TestType value(0.0f);
  Storage<TestType>* ours = mhla::eigen::storage(&value);
  const TestType two(2.0f);
  CHECK(read_after_member(&value, ours, bits_of(two)) == bits_of(two));
  CHECK(read_after_copy(&value, ours, Storage<TestType>::from_bits(bits_of(two))) == bits_of(two));
  CHECK(member_after_write(&value, ours, two) == bits_of(two));
  CHECK(load_after_write(&value, ours) == 1.0f);
}

TEMPLATE_TEST_CASE("storage: a view of Eigen's scalars is one of ours", "[eigen]", Eigen::bfloat16,
                   Eigen::half) {
  using Ours = Storage<TestType>;
  TestType values[12];
  for (int i = 0; i < 12; ++i) values[i] = TestType(static_cast<float>(i));
  const mhla::TensorView<TestType, 2> view{values, {2, 3}, {1, 4}};
  const auto stored = mhla::storage_view(view);
  static_assert(std::is_same_v<decltype(stored), const mhla::TensorView<Ours, 2>>);
  CHECK(static_cast<const void*>(stored.data) == values);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j) CHECK(mhla::load(stored(i, j)) == static_cast<float>(i + 4 * j));
  CHECK(stored.size() == 6);

  const mhla::TensorView<const TestType, 2> read_only = view;
  const auto stored_read_only = mhla::storage_view(read_only);
  static_assert(std::is_same_v<decltype(stored_read_only), const mhla::TensorView<const Ours, 2>>);
  CHECK(static_cast<const void*>(stored_read_only.data) == values);

  float number = 0;
  const auto unchanged = mhla::storage_view(mhla::make_view(&number, 1));
  static_assert(std::is_same_v<decltype(unchanged), const mhla::TensorView<float, 1>>);
  CHECK(unchanged.data == &number);
}
