// SPDX-License-Identifier: MIT
// Fills the tables of a rotation, on the device, from frequencies passed as kernel arguments.
#pragma once

#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/launch.cuh>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Cosine and sine of position * frequency for a few pairs and every position.
template <class A>
struct FillAngles {
  static constexpr int at_once = 256;

  A* cosine;
  A* sine;
  Index first;
  Index pairs;
  Index count;  // of the axis
  double frequency[at_once];

  MHLA_HOST_DEVICE void operator()(Index i) const {
    using std::cos;
    using std::sin;
    const Index position = i / pairs;
    const Index j = i % pairs;
    const double angle = static_cast<double>(position) * frequency[j];
    cosine[position * count + first + j] = static_cast<A>(cos(angle));
    sine[position * count + first + j] = static_cast<A>(sin(angle));
  }
};

/// Fills them in.
template <class A, class Rotation>
void fill(const CudaDevice& device, const Rotation& rotation, const RotationTable<A>& table) {
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    for (const auto& axis : table.axis)
      for (Index first = 0; first < axis.count; first += FillAngles<A>::at_once) {
        FillAngles<A> body{axis.cosine.data, axis.sine.data, first, 0, axis.count, {}};
        while (body.pairs < FillAngles<A>::at_once && first + body.pairs < axis.count) {
          body.frequency[body.pairs] = rotation.frequency(first + body.pairs, axis.count);
          ++body.pairs;
        }
        launch(device, body.pairs * axis.positions, body);
      }
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
