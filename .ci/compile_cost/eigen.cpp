// SPDX-License-Identifier: MIT
#include <unsupported/Eigen/CXX11/Tensor>
