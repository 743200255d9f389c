// SPDX-License-Identifier: MIT
// Which tokens of a padded batch take part.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup batches
/// \{

/// Masks of a call, each [batch, tokens] of its side, nonzero where a token takes part; a mask
/// without data keeps every token. A masked key contributes to no sum, even if it holds NaN; a
/// masked query has output 0 and gradient 0. Blocks and positions are unchanged.
struct TokenMasks {
  TensorView<const std::uint8_t, 2> query;  ///< [batch, query tokens]
  TensorView<const std::uint8_t, 2> key;    ///< [batch, key tokens]

  /// Whether a query takes part.
  bool takes_query(Index batch, Index token) const { return takes(query, batch, token); }
  /// Whether a key takes part.
  bool takes_key(Index batch, Index token) const { return takes(key, batch, token); }
  /// Whether there is a mask at all.
  bool any() const { return query.data != nullptr || key.data != nullptr; }

  /// \throws ShapeError unless both masks fit a call of `shape`.
  void require_fit(const Shape& shape) const {
    require_fit(query, "masks.query", shape.batch, shape.query_tokens);
    require_fit(key, "masks.key", shape.batch, shape.key_tokens);
  }
  /// \throws ShapeError unless queries and keys have one mask.
  void require_one() const {
    if (query.data != key.data || query.stride[0] != key.stride[0] ||
        query.stride[1] != key.stride[1])
      throw ShapeError(
          "mhla: masks: Causal and BlockCausal attend to their own tokens: queries and keys need "
          "one mask");
  }
  /// \throws ShapeError unless a mask fits `batch` items of `tokens` tokens.
  static void require_fit(const TensorView<const std::uint8_t, 2>& mask, const char* argument,
                          Index batch, Index tokens) {
    if (mask.data == nullptr) return;
    require_extent(argument, "batch", mask.extent[0], batch, "a mask is [batch, tokens]");
    require_extent(argument, "tokens", mask.extent[1], tokens, "a mask is [batch, tokens]");
  }

 private:
  static bool takes(const TensorView<const std::uint8_t, 2>& mask, Index batch, Index token) {
    return mask.data == nullptr || mask(batch, token) != 0;
  }
};

/// \}

MHLA_NAMESPACE_END
