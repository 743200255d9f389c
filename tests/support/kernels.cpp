// SPDX-License-Identifier: MIT
// The products that all tests are compiled without.
#include <mhla/cpu/instantiate_kernels.hpp>
