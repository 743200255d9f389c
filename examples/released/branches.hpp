// SPDX-License-Identifier: MIT
// On which side of Relu's kink a pass takes the arguments of its feature maps. The gradient has a
// step there: of an argument that is nearer to 0 than its rounding error, either side's is right.
// Passes whose gradients are to be compared take the same side.
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
  bool follows = false;  ///< the sides that it knows; otherwise it learns them
  std::string part;      ///< of what is run, for a name that comes twice

  /// Arguments called `name`, where another pass has had its own of the same name. One that is on
  /// the other side is moved to 0, unless it is too far from it for that to be rounding.
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
