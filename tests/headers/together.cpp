// SPDX-License-Identifier: MIT
// All headers at once. hostile_macros.cpp includes them as well, so that a function that should be
// inline and is not fails to link.
#include "include_all.inc"

int all_headers_with_hostile_macros();

int main() { return all_headers_with_hostile_macros(); }
