// SPDX-License-Identifier: MIT
// PyTorch's threads, of which there is one.
#pragma once

#include <cstdint>

namespace at {
inline int get_num_threads() { return 1; }
inline int get_thread_num() { return 0; }
template <class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t /*grain*/, const F& f) {
  if (begin < end) f(begin, end);
}
}  // namespace at
