// SPDX-License-Identifier: MIT
// The library in float.
#include "library_calls.hpp"

namespace bench {

template LibraryCalls library_calls(const Shape&, Tensors<float>&, const mhla::ExecutorRef&,
                                    mhla::Precision);

}  // namespace bench
