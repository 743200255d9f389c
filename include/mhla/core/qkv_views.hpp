// SPDX-License-Identifier: MIT
// Views of q, k and v in one buffer, in the orders in which code bases keep them.
#pragma once

#include <mhla/core/any_argument.hpp>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup core_calls
/// \{

/// The order of q, k and v in a buffer; the last axis is contiguous, and nothing lies between.
enum class QkvOrder {
  tokens_first,  ///< [batch, tokens, 3, heads, dim]: a projection to 3 * heads * dim (GPT-2, timm)
  parts_first,   ///< [3, batch, heads, tokens, dim]: three tensors end to end
  heads_first    ///< [batch, tokens, heads, 3, dim]: q, k and v of each head together (Megatron-LM)
};

/// Views [batch, heads, tokens, dim].
template <class T>
struct QkvViews {
  TensorView<T, 4> q, k, v;
};

/// q, k and v, or their gradients, in the buffer `qkv`; nothing is copied.
/// \code
/// // rows: [tokens, 3 * heads * dim]
/// const auto [q_of_rows, k_of_rows, v_of_rows] = mhla::qkv_views(rows.data(), tokens, heads, dim);
/// \endcode
template <class T>
MHLA_HOST_DEVICE constexpr QkvViews<T> qkv_views(T* qkv, Index tokens, Index heads, Index dim,
                                                 Index batch = 1,
                                                 QkvOrder order = QkvOrder::tokens_first) {
  const Index width = heads * dim;
  if (order == QkvOrder::parts_first) {
    const Index part = batch * tokens * width;
    return {make_view(qkv, batch, heads, tokens, dim),
            make_view(qkv + part, batch, heads, tokens, dim),
            make_view(qkv + 2 * part, batch, heads, tokens, dim)};
  }
  const bool by_head = order == QkvOrder::heads_first;
  const Index next_part = by_head ? dim : width;
  const auto view = [&](T* data) -> TensorView<T, 4> {
    return {data,
            {batch, heads, tokens, dim},
            {tokens * 3 * width, by_head ? 3 * dim : dim, 3 * width, 1}};
  };
  return {view(qkv), view(qkv + next_part), view(qkv + 2 * next_part)};
}

/// \cond INTERNAL
using AnyQkvViews = QkvViews<float>;
MHLA_ANY_CALL(constexpr AnyQkvViews qkv_views, {
  static_assert(no_such_call<Given...>,
                "mhla: call qkv_views(data, tokens, heads, dim, batch = 1, order = "
                "mhla::QkvOrder::tokens_first) with a pointer, as x.data() of a std::vector");
  return {};
})
/// \endcond

/// \}

MHLA_NAMESPACE_END
