// SPDX-License-Identifier: MIT
// How a model is run, whatever it is.
#pragma once

#include <cmath>
#include <cstdint>
#include <mhla/fork_join.hpp>
#include <string>

#include "../layers/mhla_attention.hpp"
#include "branches.hpp"

namespace released {

struct RunContext {
  const mhla::ForkJoin& team;
  layers::Storage storage = layers::Storage::as_computed;
  Branches* branches = nullptr;  ///< shared by runs that are compared
  std::uint64_t moved = 0;       ///< seed of random moves of operands by one rounding; 0: none

  /// The base of frequencies, computed in double; in a moved run its logarithm is one rounding off.
  double frequency_base(double base) const {
    return moved == 0 ? base : base * (1 + (moved % 2 == 0 ? 0x1p-52 : -0x1p-52) * std::log(base));
  }
  /// Call it with the arguments of Relu in attention's feature maps.
  template <class T>
  void at_kink(const std::string& name, layers::Matrix<T>& x) const {
    if (branches != nullptr) (*branches)(name, x);
  }
  template <class T>
  void at_kink(const std::string& name, layers::Matrix<T>& q, layers::Matrix<T>& k) const {
    at_kink(name + ".q", q);
    at_kink(name + ".k", k);
  }
};

}  // namespace released
