// SPDX-License-Identifier: MIT
// The products that our programs are compiled without.
#include <mhla/cpu/instantiate_kernels.hpp>
