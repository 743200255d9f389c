// SPDX-License-Identifier: MIT
// CMake compiles precompiled.hpp along with a source file; this is it.
