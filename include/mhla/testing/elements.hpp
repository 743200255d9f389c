// SPDX-License-Identifier: MIT
// Visits the elements of views of equal extents together, whatever their strides.
#pragma once

#include <mhla/core/shape.hpp>

MHLA_NAMESPACE_BEGIN

namespace testing {

/// \addtogroup testing
/// \{

/// Calls f(element of the first view, element of the second, ...) in row-major order of the index.
/// \throws ShapeError, before the first call, where extents differ or are negative.
template <class F, int Rank, class First, class... Others>
void for_each_element(F f, const TensorView<First, Rank>& first,
                      const TensorView<Others, Rank>&... others) {
  for (int axis = 0; axis < Rank; ++axis)
    require_tensor("first view", {{std::to_string(axis).c_str(), first.extent[axis]}});
  for (int axis = 0; axis < Rank; ++axis)
    (require_extent("second view", std::to_string(axis).c_str(), others.extent[axis],
                    first.extent[axis], "both views need the same extents"),
     ...);
  Index at[TensorView<First, Rank>::axes] = {};
  const auto offset = [&](const auto& view) {
    Index sum = 0;
    for (int axis = 0; axis < Rank; ++axis) sum += at[axis] * view.stride[axis];
    return sum;
  };
  for (Index i = first.size(); i > 0; --i) {
    f(first.data[offset(first)], others.data[offset(others)]...);
    for (int axis = Rank - 1; axis >= 0 && ++at[axis] == first.extent[axis]; --axis) at[axis] = 0;
  }
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void for_each_element,
                  "mhla: call for_each_element(f, view, views...) with views of one rank: of a "
                  "HostTensor write x.view()")
/// \endcond

/// \}

}  // namespace testing

MHLA_NAMESPACE_END
