// SPDX-License-Identifier: MIT
// Which tokens of a padded batch take part.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// Masks of a call, each [batch, tokens] of its side, nonzero where a token takes part; a mask
/// without data takes every token. A masked key contributes to no sum whatever it holds, NaN
/// included; a masked query has output 0 and no gradient. Blocks and positions stay where they are.
struct TokenMasks {
  TensorView<const std::uint8_t, 2> query;
  TensorView<const std::uint8_t, 2> key;

  bool takes_query(Index batch, Index token) const { return takes(query, batch, token); }
  bool takes_key(Index batch, Index token) const { return takes(key, batch, token); }
  bool any() const { return query.data != nullptr || key.data != nullptr; }

  /// Throws ShapeError unless both masks fit a call of `shape`.
  void require_fit(const Shape& shape) const {
    require_fit(query, "masks.query", shape.batch, shape.query_tokens);
    require_fit(key, "masks.key", shape.batch, shape.key_tokens);
  }

 private:
  static bool takes(const TensorView<const std::uint8_t, 2>& mask, Index batch, Index token) {
    return mask.data == nullptr || mask(batch, token) != 0;
  }
  static void require_fit(const TensorView<const std::uint8_t, 2>& mask, const char* argument,
                          Index batch, Index tokens) {
    if (mask.data == nullptr) return;
    require_extent(argument, "batch", mask.extent[0], batch, "a mask is [batch, tokens]");
    require_extent(argument, "tokens", mask.extent[1], tokens, "a mask is [batch, tokens]");
  }
};

MHLA_NAMESPACE_END
