// SPDX-License-Identifier: MIT
// On which side of Relu's kink, at 0, a pass takes the arguments of its feature maps. The gradient
// has a step there: if an argument is closer to 0 than its rounding error, the gradient of either
// side is right. Passes whose gradients are compared must take the same side.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "../layers/parameters.hpp"

namespace released {

class Branches {
 public:
  bool follows = false;  ///< takes the recorded sides; otherwise records them
  std::string part;      ///< of the run; distinguishes arguments with the same name

  /// Records the sides of the arguments called `name`, or moves those on another side than recorded
  /// to 0, unless they are too far from 0 for rounding to be the reason.
  template <class T>
  void operator()(const std::string& name, layers::Matrix<T>& x) {
    std::vector<bool>& sides = sides_[part + name];
    sides.resize(static_cast<std::size_t>(x.size()));
    const T most = x.size() == 0 ? T(0) : x.cwiseAbs().maxCoeff() * T(0x1p-10);
    for (std::size_t i = 0; i < sides.size(); ++i) {
      T& argument = x.data()[i];
      if (!follows)
        sides[i] = argument > T(0);
      else if (sides[i] != (argument > T(0)) && std::abs(argument) <= most)
        argument = sides[i] ? std::numeric_limits<T>::min() : T(0);
    }
  }
  bool operator==(const Branches& other) const { return sides_ == other.sides_; }

 private:
  std::map<std::string, std::vector<bool>> sides_;
};

}  // namespace released
