// SPDX-License-Identifier: MIT
// core/ and policy/ as device code sees them, then all headers in a .cu: no warning of nvcc.
#include "include_kernel.inc"

#ifdef EIGEN_WORLD_VERSION
#error "core/ and policy/ must not include Eigen"
#endif

#include "include_nvcc.inc"
