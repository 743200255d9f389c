// SPDX-License-Identifier: MIT
// Calls process the batch in parts, so that panels and summaries take bounded memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/limits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Batch items processed at once, where `items` of them take bytes_of(items) of workspace.
template <class BytesOf>
Index items_in_part(Index batch, const BytesOf& bytes_of) {
  if (batch <= 1) return batch;
  const Index one = bytes_of(Index{1});
  const Index more = bytes_of(Index{2}) - one;
  const Index room =
      one < affordable_bytes ? (affordable_bytes - one) / std::max(Index{1}, more) : 0;
  return std::min(batch, 1 + room);
}

/// Items [first, first + count) of a tensor's batch.
template <class T>
TensorView<T, 4> items(TensorView<T, 4> tensor, Index first, Index count) {
  if (tensor.data != nullptr) tensor.data += first * tensor.stride[0];
  tensor.extent[0] = count;
  return tensor;
}
inline TensorView<const std::uint8_t, 2> items(TensorView<const std::uint8_t, 2> mask,
                                               Index first) {
  if (mask.data != nullptr) mask.data += first * mask.stride[0];
  return mask;
}

/// The plan for items [first, first + count) of a larger plan's.
template <class PlanType>
PlanType plan_of_items(PlanType plan, Index first, Index count) {
  plan.extents.queries.batch = plan.extents.keys.batch = count;
  plan.extents.queries.table.mask = items(plan.extents.queries.table.mask, first);
  plan.extents.keys.table.mask = items(plan.extents.keys.table.mask, first);
  return plan;
}

}  // namespace cuda

MHLA_NAMESPACE_END
