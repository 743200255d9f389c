// SPDX-License-Identifier: MIT
// How a saved state identifies a variant: a number that differs if the types or values of two
// variants do.
#pragma once

#include <mhla/policy/problem.hpp>
#include <typeinfo>

MHLA_NAMESPACE_BEGIN

/// How masks and a projection count: by contents or, if the host cannot read them, by address and
/// layout, or between processes not at all.
enum class Borrowed { contents, address, nothing };

namespace fingerprint {

class Hash {
 public:
  void add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 32;
  }
  void add(const unsigned char* bytes, std::size_t count) {
    for (std::size_t done = 0; done < count; done += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + done, (std::min)(count - done, sizeof(word)));
      add(word);
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

// Its address identifies the types within one shared object, and in all unless symbols are hidden.
// Not const, since a linker may merge constants.
template <class... Types>
inline char identity = 0;

#if defined(__cpp_rtti)
template <class... Types>
struct TypeList {};
#endif

// A number that identifies types with every compiler and in all shared objects: the hash of their
// mangled name, which is unique unless a type is local to one translation unit.
template <class... Types>
std::uint64_t number_of_types() {
  static const std::uint64_t number = [] {
    Hash hash;
    const auto add_address = [&] {
      hash.add(reinterpret_cast<std::uintptr_t>(&identity<Types...>));
    };
#if defined(__cpp_rtti)
    const char* const name = typeid(TypeList<Types...>).name();
    hash.add(reinterpret_cast<const unsigned char*>(name), std::strlen(name));
    if (std::strstr(name, "_GLOBAL__N_") || std::strstr(name, "ZL")) add_address();
#else
    add_address();
#endif
    return hash.value();
  }();
  return number;
}

template <class P>
struct Bytes {
  unsigned char of[sizeof(P)];
};

#if !__has_builtin(__builtin_clear_padding)
// Whether a byte of a P is known not to be padding, which has no value in a constant expression.
template <class P, std::size_t Byte>
inline constexpr bool has_value = std::has_unique_object_representations_v<P> || requires {
  typename std::bool_constant<(__builtin_bit_cast(Bytes<P>, P{}).of[Byte] < 256)>;
};
#endif

// The bytes of a policy, zero where they are padding. (Without the builtin also if P has a pointer
// beside padding, or P{} is not constant.)
template <class P>
Bytes<P> bytes_of(P policy) {
  static_assert(std::is_trivially_copyable_v<P>);
  Bytes<P> bytes;
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&policy);
  std::memcpy(&bytes, &policy, sizeof(P));
#else
  std::memcpy(&bytes, &policy, sizeof(P));
  [&]<std::size_t... Byte>(std::index_sequence<Byte...>) {
    ((has_value<P, Byte> ? void() : void(bytes.of[Byte] = 0)), ...);
  }
  (std::make_index_sequence<sizeof(P)>());
#endif
  return bytes;
}

template <class P>
void add(Hash& hash, const P& policy) {
  if constexpr (!std::is_empty_v<P>) hash.add(bytes_of(policy).of, sizeof(P));
}

template <class Map>
void add_feature_map(Hash& hash, Map map, Borrowed borrowed) {
  if constexpr (requires { map.projection = {}; }) {
    if (borrowed != Borrowed::address) {
      const auto projection = std::exchange(map.projection, {});
      for (Index r = 0; r < projection.extent[0] && borrowed == Borrowed::contents; ++r)
        for (Index c = 0; c < projection.extent[1]; ++c) add(hash, projection(r, c));
      add(hash, projection.extent[0]);
    }
  }
  add(hash, map);
}

inline void add_masks(Hash& hash, const TokenMasks& masks, const Shape& shape, Borrowed borrowed) {
  if (borrowed == Borrowed::address) return add(hash, masks);
  if (shape.empty() || borrowed == Borrowed::nothing) return;
  for (Index n = 0; n < shape.batch; ++n) {
    for (Index t = 0; t < shape.query_tokens; ++t) hash.add(masks.takes_query(n, t));
    for (Index t = 0; t < shape.key_tokens; ++t) hash.add(masks.takes_key(n, t));
  }
}

// Feature map, normalizer, rotation, mixing and scale.
template <AttentionVariant V>
void add_values(Hash& hash, const V& attention, Borrowed borrowed) {
  add(hash, attention.normalizer);
  add(hash, attention.rotation);
  add(hash, attention.mixing);
  add(hash, attention.scale);
  add_feature_map(hash, attention.feature_map, borrowed);
}

}  // namespace fingerprint

/// The fingerprint of a checked call on tensors of T: types, grids, offsets, masks, feature map,
/// normalizer, rotation, mixing, scale, precision and path. Allocates nothing; valid within the
/// process only.
template <class T, AttentionVariant V>
MHLA_ONCE_A_CALL std::uint64_t fingerprint_of(const V& attention, const Problem& problem,
                                              Borrowed borrowed) {
  using fingerprint::add;
  fingerprint::Hash hash;
  hash.add(fingerprint::number_of_types<V, T>());
  add(hash, problem.query_grid);
  add(hash, problem.key_grid);
  add(hash, attention.precision);
  add(hash, attention.path);
  fingerprint::add_values(hash, attention, borrowed);
  if constexpr (is_packed<V>)
    for (const auto offset : attention.offsets) hash.add(static_cast<std::uint64_t>(offset));
  if constexpr (requires { attention.masks; })
    fingerprint::add_masks(hash, attention.masks, problem.shape, borrowed);
  return hash.value();
}

MHLA_NAMESPACE_END
