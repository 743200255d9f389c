// SPDX-License-Identifier: MIT
// The library in half.
#include "library_calls.hpp"

namespace bench {

template LibraryCalls library_calls(const Shape&, Tensors<mhla::Half>&, const mhla::ExecutorRef&,
                                    mhla::Precision);

}  // namespace bench
