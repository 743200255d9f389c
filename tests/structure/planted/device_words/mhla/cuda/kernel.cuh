// SPDX-License-Identifier: MIT
// A planted fault: see tests/structure/CMakeLists.txt.
#pragma once

inline void stray() {
  asm volatile("" ::: "memory");
  kernel<<<1, 1>>>(threadIdx.x);
}
