// SPDX-License-Identifier: MIT
// The library in bfloat16.
#include "library_calls.hpp"

namespace bench {

template LibraryCalls library_calls(const Shape&, Tensors<mhla::BFloat16>&,
                                    const mhla::ExecutorRef&, mhla::Precision);

}  // namespace bench
