// SPDX-License-Identifier: MIT
// How far a NaN reaches: in a query its row of y (under MixedProduct its offset in all blocks), in
// a key its head, in a value that column of its head. All else keeps its bits, also in the tails of
// vectors.
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/cpu/call.hpp"

namespace {

using namespace mhla;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr Index block = 4;
constexpr Index batch = 1, head = 2, kv_head = 1, token = 9;  // token 1 of block 2

// y, and the elements of y that may be NaN and then must be.
template <class V, class Poisoned>
void check_reach(const V& attention, const call::Operands<float>& clean,
                 const call::Operands<float>& poisoned, const Poisoned& is_poisoned) {
  const auto before = call::forward(attention, clean);
  const auto after = call::forward(attention, poisoned);
  Index wrong = 0;
  for (Index n = 0; n < after.extent(0); ++n)
    for (Index h = 0; h < after.extent(1); ++h)
      for (Index t = 0; t < after.extent(2); ++t)
        for (Index c = 0; c < after.extent(3); ++c)
          wrong += is_poisoned(n, h, t, c) ? !std::isnan(after(n, h, t, c))
                                           : after(n, h, t, c) != before(n, h, t, c);
  CHECK(wrong == 0);
}

// Two query heads per kv head, so that query head 2 reads kv head 1.
template <class Normalizer>
void check_normalizer(Index key_dim, Index value_dim) {
  CAPTURE(key_dim, value_dim);
  using V = Attention<Relu, Blocks1D, Bidirectional, Normalizer>;
  constexpr bool mixes_products = std::is_same_v<Normalizer, MixedProduct>;
  const auto attention = call::by_each_path(V{.blocks = {.block = block}});
  const auto clean = call::operands<float>(attention, Shape{2, 4, 2, 20, 20, key_dim, value_dim});

  for (const Index c : {Index{0}, key_dim / 2, key_dim - 1}) {
    auto query = clean;
    query.q(batch, head, token, c) = not_a_number;
    check_reach(attention, clean, query, [](Index n, Index h, Index t, Index) {
      return n == batch && h == head && (mixes_products ? t % block == token % block : t == token);
    });
    auto key = clean;
    key.k(batch, kv_head, token, c) = not_a_number;
    check_reach(attention, clean, key,
                [](Index n, Index h, Index, Index) { return n == batch && h / 2 == kv_head; });
  }
  for (const Index c : {Index{0}, value_dim / 2, value_dim - 1}) {
    auto value = clean;
    value.v(batch, kv_head, token, c) = not_a_number;
    check_reach(attention, clean, value, [c](Index n, Index h, Index, Index e) {
      return n == batch && h / 2 == kv_head && e == c;
    });
  }
}

template <class Normalizer>
void check_dims() {
  for (const Index dim : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    check_normalizer<Normalizer>(dim, 5);
    check_normalizer<Normalizer>(5, dim);
    check_normalizer<Normalizer>(dim, dim);
  }
}

// Which gradients hold a NaN: for each (batch, head) of each gradient.
bool holds_nan(const call::HostTensor<float, 4>& tensor, Index n, Index h) {
  for (Index t = 0; t < tensor.extent(2); ++t)
    for (Index c = 0; c < tensor.extent(3); ++c)
      if (std::isnan(tensor(n, h, t, c))) return true;
  return false;
}

}  // namespace

TEST_CASE("nan: MixedKeySum keeps a NaN where it belongs", "[cpu]") { check_dims<MixedKeySum>(); }
TEST_CASE("nan: MixedProduct keeps a NaN where it belongs", "[cpu]") { check_dims<MixedProduct>(); }
TEST_CASE("nan: Unnormalized keeps a NaN where it belongs", "[cpu]") { check_dims<Unnormalized>(); }

TEST_CASE("nan: gradients of other heads and batches keep their bits", "[cpu]") {
  const auto attention = call::by_each_path(Attention<Relu, Blocks1D>{.blocks = {.block = block}});
  const auto clean = call::operands<float>(attention, Shape{2, 4, 2, 20, 20, 5, 7, 4});
  const auto before = call::backward(attention, clean);
  auto poisoned = clean;
  const std::string what = GENERATE(as<std::string>(), "query", "key", "value", "grad_output");
  CAPTURE(what);
  if (what == "query") poisoned.q(batch, head, token, 4) = not_a_number;
  if (what == "key") poisoned.k(batch, kv_head, token, 4) = not_a_number;
  if (what == "value") poisoned.v(batch, kv_head, token, 6) = not_a_number;
  if (what == "grad_output") poisoned.dy(batch, head, token, 6) = not_a_number;
  const auto after = call::backward(attention, poisoned);
  Index wrong = 0;
  const auto compare = [&](const auto& now, const auto& then, Index group) {
    for (Index n = 0; n < now.extent(0); ++n)
      for (Index h = 0; h < now.extent(1); ++h)
        for (Index t = 0; t < now.extent(2); ++t)
          for (Index c = 0; c < now.extent(3); ++c)
            if (n != batch || h / group != kv_head) wrong += now(n, h, t, c) != then(n, h, t, c);
  };
  compare(after.query, before.query, 2);
  compare(after.key, before.key, 1);
  compare(after.value, before.value, 1);
  CHECK(wrong == 0);
  CHECK(holds_nan(after.query, batch, head));
  CHECK(holds_nan(after.key, batch, kv_head));
  for (const Index h : {0, 1})  // matrices of heads that read another kv head
    for (Index i = 0; i < 5; ++i)
      for (Index b = 0; b < 5; ++b) CHECK(after.mix(h, i, b) == before.mix(h, i, b));
  CHECK(std::isnan(after.mix(head, token / block, 0)));
}
