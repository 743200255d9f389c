// SPDX-License-Identifier: MIT
// The products that the other sources are compiled without.
#include <mhla/cpu/instantiate_kernels.hpp>
