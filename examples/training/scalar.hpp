// SPDX-License-Identifier: MIT
// What the training programs compute in.
#pragma once

#include "../layers/parameters.hpp"

namespace training {

#ifdef MHLA_TRAINING_IN_DOUBLE  // tests, which judge gradients
using Scalar = double;
#else
using Scalar = float;
#endif

using layers::Index;
using layers::Parameter;
using layers::ParameterList;
using Matrix = layers::Matrix<Scalar>;
using Values = layers::Values<Scalar>;

}  // namespace training
