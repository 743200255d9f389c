// SPDX-License-Identifier: MIT
// What examples/other_code_bases/graph_op.cpp reads of a graph library's tensor.
#pragma once

#include <cstddef>
#include <cstdint>

struct ggml_tensor {
  std::int64_t ne[4];  // elements of each axis, the contiguous one first
  std::size_t nb[4];   // bytes from one to the next
  void* data;
};
