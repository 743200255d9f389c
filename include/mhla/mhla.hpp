// SPDX-License-Identifier: MIT
// Everything needed to run attention over Eigen tensors on the CPU. To evaluate on an
// Eigen::ThreadPoolDevice, define EIGEN_USE_THREADS before including any Eigen header.
#pragma once

#include <mhla/attention.hpp>
#include <mhla/decoding.hpp>
#include <mhla/eigen/mixing_matrix.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/packed.hpp>
#include <mhla/policy/expand_mixing.hpp>
#include <mhla/policy/propose_blocks.hpp>
#include <mhla/stages.hpp>
#include <mhla/structured_mixing.hpp>
#include <mhla/version.hpp>
