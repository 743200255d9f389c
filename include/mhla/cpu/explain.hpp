// SPDX-License-Identifier: MIT
// What a call does on the CPU, in words and numbers, before it is made.
#pragma once

#include <mhla/cpu/pipeline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// One direction of a call with tensors of T.
template <class T, class V>
std::string explain(const V& attention, const Problem& problem, bool backward, Index workspace) {
  const bool rounds = multiplies_pairs<T>(attention, problem, backward);
  const bool quadratic = takes_quadratic_path(attention, problem, backward, rounds);
  std::string text = joined(
      {backward ? "backward" : "forward", ": path ", quadratic ? "quadratic, " : "linear, "});
  if (!has_quadratic_path<V>)
    text += "the one that can run it";
  else if (attention.path != Path::automatic)
    text += "as asked for";
  else
    text += "the cheaper one by estimate";
  text += rounds && !quadratic ? "; products of bfloat16" : "; products in the accumulator type";
  if (has_quadratic_path<V>) {
    const PathCosts costs = path_costs<V>(problem, backward, rounds);
    text += joined({"\n  estimated cost of a kv head in thousand multiply-adds: linear ",
                    std::llround(costs.linear / 1e3), ", quadratic ",
                    std::llround(costs.quadratic / 1e3)});
  }
  return text + joined({"\n  workspace ", workspace, " bytes\n"});
}

}  // namespace cpu

/// Says which mhla::Path forward_into and backward_into take with this executor, and why; whether
/// products are rounded to bfloat16; the estimated cost of each path, and the workspace. Runs
/// nothing.
/// \code
/// std::cout << mhla::explain<float>(attention, call, executor);
/// \endcode
/// \throws ShapeError if attention and shape do not fit.
/// \ingroup core_calls
template <StorageScalar T, AttentionVariant V, Executor E>
std::string explain(const V& attention, const Shape& shape, const E& executor) {
  const Problem problem = checked_problem(attention, shape);
  return cpu::explain<T>(attention, problem, false,
                         forward_workspace_size<T>(attention, shape, executor)) +
         cpu::explain<T>(attention, problem, true,
                         backward_workspace_size<T>(attention, shape, executor));
}

MHLA_NAMESPACE_END
