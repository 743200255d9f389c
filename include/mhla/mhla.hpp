// SPDX-License-Identifier: MIT
// Everything needed to run attention over Eigen tensors on the CPU. To evaluate on an
// Eigen::ThreadPoolDevice, define EIGEN_USE_THREADS before including any Eigen header.
#pragma once

#include <mhla/attention.hpp>
#include <mhla/eigen/mixing_matrix.hpp>
#include <mhla/version.hpp>
#include <mhla/views.hpp>
