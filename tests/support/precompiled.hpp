// SPDX-License-Identifier: MIT
// What nearly every test includes, compiled once. No header of the library is among it, so that a
// change there does not compile it again.
#pragma once

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include "tests/support/catch.hpp"
