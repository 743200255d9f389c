// SPDX-License-Identifier: MIT
// What all variants of the extension share, compiled once.
#include <mhla/cpu/instantiate_kernels.hpp>
