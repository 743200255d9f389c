// SPDX-License-Identifier: MIT
// Reproducible random tensors. An element depends only on the seed and its row-major index: not on
// strides, the platform's library, or other tensors.
#pragma once

#include <mhla/testing/host_tensor.hpp>

MHLA_NAMESPACE_BEGIN

namespace testing {

/// \addtogroup testing
/// \{

/// The finalizer of splitmix64: a bijection whose output bits each depend on every input bit.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// 64 random bits, number `counter` of stream `seed`.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  return mix_bits(mix_bits(seed) + 0x9e3779b97f4a7c15u * (counter + 1));
}

/// A random integer in [0, bound), for bound in [1, 2^32).
constexpr Index random_index(std::uint64_t seed, std::uint64_t counter, Index bound) {
  const std::uint64_t high = random_bits(seed, counter) >> 32;
  return static_cast<Index>((high * static_cast<std::uint64_t>(bound)) >> 32);
}

// A distribution is a function of (seed, counter). Its values are exact in float and the same on
// every platform.

/// Uniform on [low, high).
struct Uniform {
  float low = 0;   ///< inclusive
  float high = 1;  ///< exclusive

  /// Number `counter` of stream `seed`.
  constexpr double operator()(std::uint64_t seed, std::uint64_t counter) const {
    const double unit = static_cast<double>(random_bits(seed, counter) >> 41) / 8388608.0;
    const auto wide_low = static_cast<double>(low);
    const double in_range = wide_low + (static_cast<double>(high) - wide_low) * unit;
    return static_cast<double>(static_cast<float>(in_range));
  }
};

/// Mean 0, variance 1: the sum of twelve uniform 16-bit integers, centred. No tails beyond 6.
struct Normal {
  /// Number `counter` of stream `seed`.
  constexpr double operator()(std::uint64_t seed, std::uint64_t counter) const {
    Index sum = -6 * 65535;
    for (std::uint64_t word = 0; word < 3; ++word)
      for (std::uint64_t bits = random_bits(seed, 3 * counter + word), i = 0; i < 4; ++i)
        sum += static_cast<Index>((bits >> (16 * i)) & 0xffffu);
    return static_cast<double>(sum) / 65536.0;
  }
};

/// Normal values moved away from 0 by 0.25, where maps with a kink at 0 are smooth.
struct AwayFromKink {
  /// Number `counter` of stream `seed`.
  constexpr double operator()(std::uint64_t seed, std::uint64_t counter) const {
    const double x = Normal{}(seed, counter);
    return x < 0 ? x - 0.25 : x + 0.25;
  }
};

/// The magnitudes of AwayFromKink: at least 0.25.
struct Positive {
  /// Number `counter` of stream `seed`.
  constexpr double operator()(std::uint64_t seed, std::uint64_t counter) const {
    const double x = AwayFromKink{}(seed, counter);
    return x < 0 ? -x : x;
  }
};

/// Another distribution's values rounded to bfloat16, so that 16-bit tensors (also of Half, within
/// its range) can hold the same values as a double tensor.
template <class Distribution>
struct ExactInBFloat16 {
  Distribution distribution{};  ///< what is rounded

  /// Number `counter` of stream `seed`.
  double operator()(std::uint64_t seed, std::uint64_t counter) const {
    BFloat16 rounded{};
    store(rounded, static_cast<float>(distribution(seed, counter)));
    return static_cast<double>(load(rounded));
  }
};

/// Fills a view with the values (seed, 0), (seed, 1), ... in row-major order of its index.
template <class Distribution, class T, int Rank>
requires StorageScalar<T>
void fill_random(const Distribution& distribution, std::uint64_t seed,
                 const TensorView<T, Rank>& view) {
  std::uint64_t counter = 0;
  for_each_element(
      [&](T& element) {
        store(element, static_cast<Accumulator<T>>(distribution(seed, counter++)));
      },
      view);
}

/// A tensor of random elements:
/// `random_tensor<float>(Normal{}, seed, batch, heads, tokens, key_dim)`.
template <class T, class Distribution, class... Extents>
HostTensor<T, int(sizeof...(Extents))> random_tensor(const Distribution& distribution,
                                                     std::uint64_t seed, Extents... extents) {
  HostTensor<T, int(sizeof...(Extents))> tensor(extents...);
  fill_random(distribution, seed, tensor.view());
  return tensor;
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void fill_random,
                  "mhla: call fill_random(distribution, seed, view) with a view to write to, of "
                  "float, double, BFloat16 or Half: of a HostTensor write x.view()")
/// \endcond

/// \}

}  // namespace testing

MHLA_NAMESPACE_END
