// SPDX-License-Identifier: MIT
// All headers at once, with the macros defined that well-known headers define: complex.h (I),
// termios.h (B0), rpcndr.h (small), AssertMacros.h (check), sysmacros.h
// (major, minor), X.h (None, Success). Eigen stumbles over some of these itself, so it comes first.
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <unsupported/Eigen/CXX11/Tensor>

#undef I
#undef B0
#undef small
#undef check
#undef major
#undef minor
#undef None
#undef Success
#define I hostile macro
#define B0 hostile macro
#define small hostile macro
#define check(condition) hostile macro
#define major(device) hostile macro
#define minor(device) hostile macro
#define None hostile macro
#define Success hostile macro

#include "include_all.inc"

int all_headers_with_hostile_macros() { return 0; }
