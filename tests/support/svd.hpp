// SPDX-License-Identifier: MIT
// Eigen's singular value decomposition, for mhla/diagnostics/rank.hpp: it takes as long to compile
// as twenty tests, and is compiled once, in svd.cpp.
#pragma once

#include <Eigen/Core>
#include <Eigen/SVD>

extern template class Eigen::BDCSVD<Eigen::MatrixXd>;
