// SPDX-License-Identifier: MIT
// The MLP layer: x + swiglu(RMSNorm(x)).
#pragma once

#include <string>

#include "../layers/mlp.hpp"
#include "../layers/norms.hpp"
#include "scalar.hpp"

namespace training {

struct MlpActivations {
  Matrix input;
  Matrix normed;
  layers::GatedMlpActivations<Scalar> inner;
};

class MlpLayer {
 public:
  MlpLayer(ParameterList& list, const std::string& name, Index width, Index hidden, double out_gain)
      : norm_(list, name + ".norm", width), mlp_(list, name, width, hidden, out_gain) {}

  /// Adds the layer's result to x.
  void forward(const Values& values, Matrix& x, MlpActivations& a) const;
  /// dx is the gradient of the sum on entry, of the layer's input afterwards.
  void backward(const Values& values, const MlpActivations& a, Matrix& dx, Values& gradient) const;

 private:
  layers::RmsNorm norm_;
  layers::GatedMlp mlp_;
};

}  // namespace training
