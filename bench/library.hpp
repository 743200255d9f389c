// SPDX-License-Identifier: MIT
// The library's calls on the tensors of a shape, without its templates: they are compiled in
// library_float.cpp, library_double.cpp, library_bfloat16.cpp and library_half.cpp, once for all
// benchmarks.
#pragma once

#include <functional>
#include <mhla/core/executor.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/policy/variant.hpp>

#include "shapes.hpp"
#include "tensors.hpp"

namespace bench {

/// Calls on tensors and an executor that must outlive them, with workspaces of their own.
struct LibraryCalls {
  std::function<void()> forward;
  std::function<void()> forward_saving;  ///< keeps the summaries ...
  std::function<void()> backward;
  std::function<void()> backward_saved;  ///< ... that this one takes
  double forward_workspace;              // bytes
  double backward_workspace;
  double state;
};

template <class T>
LibraryCalls library_calls(const Shape& shape, Tensors<T>& tensors,
                           const mhla::ExecutorRef& executor,
                           mhla::Precision precision = mhla::Precision::exact);

extern template LibraryCalls library_calls(const Shape&, Tensors<float>&, const mhla::ExecutorRef&,
                                           mhla::Precision);
extern template LibraryCalls library_calls(const Shape&, Tensors<double>&, const mhla::ExecutorRef&,
                                           mhla::Precision);
extern template LibraryCalls library_calls(const Shape&, Tensors<mhla::BFloat16>&,
                                           const mhla::ExecutorRef&, mhla::Precision);
extern template LibraryCalls library_calls(const Shape&, Tensors<mhla::Half>&,
                                           const mhla::ExecutorRef&, mhla::Precision);

/// The shapes that every scalar is compiled for; float and bfloat16 have all.
inline bool runs_in_every_scalar(const Shape& shape) {
  return shape.model == Model::key_sum || shape.model == Model::language;
}

}  // namespace bench
