// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <mhla/testing/host_tensor.hpp>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using mhla::BFloat16;
using mhla::Index;
using mhla::testing::HostTensor;

namespace {

bool aligned(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 64 == 0; }

}  // namespace

TEMPLATE_TEST_CASE("HostTensor: every tensor begins at a multiple of 64 bytes", "[testing]", float,
                   double, BFloat16, std::int8_t) {
  std::vector<HostTensor<TestType, 1>> tensors;  // together they leave no place to chance
  for (Index size = 1; size <= 100; ++size) tensors.emplace_back(size);
  for (Index n = 0; n < 100; ++n) {
    auto& tensor = tensors[static_cast<std::size_t>(n)];
    REQUIRE(tensor.size() == n + 1);
    CHECK(aligned(tensor.view().data));
    CHECK(aligned(std::as_const(tensor).view().data));
    CHECK(tensor.view().data == tensor.elements().data());
    const auto copy = tensor;
    CHECK(aligned(copy.view().data));
    CHECK(copy.view().data != tensor.view().data);
    CHECK(aligned(HostTensor<TestType, 1>::like(tensor.view()).view().data));
    const auto moved = std::move(tensor);
    CHECK(aligned(moved.view().data));
  }
}

TEST_CASE("HostTensor: is zero at first, row-major, and of its extents", "[testing]") {
  HostTensor<float, 3> tensor(2, 3, 5);
  CHECK(tensor.elements() == HostTensor<float, 3>::like(tensor.view()).elements());
  CHECK(tensor.elements() == std::vector<float>(30, 0.f));
  CHECK(tensor.extent(1) == 3);
  tensor(1, 2, 3) = 7;
  CHECK(tensor.elements()[1 * 15 + 2 * 5 + 3] == 7);
  CHECK(tensor.view()(1, 2, 3) == 7);
}

TEST_CASE("HostTensor: extents that no tensor has are refused", "[testing]") {
  using Tensor = HostTensor<float, 3>;
  constexpr Index huge = Index{1} << 40;
  const auto message = [](Index a, Index b, Index c) {
    return error_message<mhla::ShapeError>([&] { Tensor(a, b, c); });
  };
  CHECK(says(message(2, -1, 3), "mhla: HostTensor: axis 1 is -1, which is negative"));
  CHECK(says(message(huge, huge, 0), "mhla: HostTensor: axis 1", "too large"));
  const mhla::TensorView<float, 3> wrong{nullptr, {2, 3, -4}, {0, 0, 0}};
  CHECK(says(error_message<mhla::ShapeError>([&] { Tensor::like(wrong); }),
             "mhla: HostTensor: axis 2 is -4, which is negative"));
}
