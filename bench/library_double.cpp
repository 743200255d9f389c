// SPDX-License-Identifier: MIT
// The library in double.
#include "library_calls.hpp"

namespace bench {

template LibraryCalls library_calls(const Shape&, Tensors<double>&, const mhla::ExecutorRef&,
                                    mhla::Precision);

}  // namespace bench
