// SPDX-License-Identifier: MIT
// One header and nothing else, twice. MHLA_TEST_HEADER names it; with MHLA_TEST_EIGEN_FREE there is
// no Eigen on the include path, and none may have been found elsewhere.
#include MHLA_TEST_HEADER
#include MHLA_TEST_HEADER

#if defined(MHLA_TEST_EIGEN_FREE) && defined(EIGEN_WORLD_VERSION)
#error "this header must not include Eigen"
#endif
