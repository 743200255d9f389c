// SPDX-License-Identifier: MIT
// The library with 16-bit tensors.
#include "library_calls.hpp"

namespace bench {

template LibraryCalls library_calls(const Shape&, Tensors<mhla::BFloat16>&,
                                    const mhla::ExecutorRef&);
template LibraryCalls library_calls(const Shape&, Tensors<mhla::Half>&, const mhla::ExecutorRef&);

}  // namespace bench
