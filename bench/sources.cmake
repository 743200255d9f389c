# SPDX-License-Identifier: MIT
# The sources of bench_attention beside attention.cpp, for bench/ and for the test that they compile.
set(MHLA_BENCH_ATTENTION_SOURCES
  ceilings.cpp layouts.cpp library_bfloat16.cpp library_double.cpp library_float.cpp library_half.cpp
  passes.cpp peers.cpp pieces.cpp products.cpp sequences.cpp storage.cpp threads.cpp)
