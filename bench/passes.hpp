// SPDX-License-Identifier: MIT
// The passes that are measured: what they run, and how much work that is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "library.hpp"
#include "measurement.hpp"
#include "tensors.hpp"

namespace bench {

enum class PassKind { forward, backward, both, backward_saved, both_saved };

inline constexpr PassKind every_pass[] = {PassKind::forward, PassKind::backward, PassKind::both,
                                          PassKind::backward_saved, PassKind::both_saved};

inline std::string name_of(PassKind kind) {
  switch (kind) {
    case PassKind::forward:
      return "forward";
    case PassKind::backward:
      return "backward";
    case PassKind::both:
      return "both";
    case PassKind::backward_saved:
      return "backward_saved";
    case PassKind::both_saved:
      return "both_saved";
  }
  return "";
}

inline Work work_of(PassKind kind, const Batch& b, double element_bytes,
                    const LibraryCalls& calls) {
  const Shape& shape = b.shape;
  const bool forward = kind == PassKind::forward;
  const bool saved = kind == PassKind::backward_saved || kind == PassKind::both_saved;
  const bool both = kind == PassKind::both || kind == PassKind::both_saved;
  const bool runs_forward = forward || both;
  const auto items = static_cast<double>(b.items);
  const auto rows = items * static_cast<double>(shape.heads * shape.tokens());
  const auto key_dim = static_cast<double>(shape.key_dim);
  const auto value_dim = static_cast<double>(shape.value_dim);
  Work amount{};
  amount.items = items;
  amount.tokens = items * static_cast<double>(shape.tokens());
  if (runs_forward) {
    amount.flops += items * shape.forward_flops();
    amount.useful_flops += items * shape.useful_forward_flops();
    amount.tensor_bytes += rows * (2 * key_dim + 2 * value_dim) * element_bytes;
    amount.workspace_bytes = calls.forward_workspace;
  }
  if (!forward) {
    amount.flops += items * (saved ? shape.backward_saved_flops() : shape.backward_flops());
    amount.useful_flops += items * shape.useful_backward_flops();
    // q, k, v, dy are read and dq, dk, dv written.
    amount.tensor_bytes += rows * (4 * key_dim + 3 * value_dim) * element_bytes;
    amount.workspace_bytes = calls.backward_workspace;
  }
  if (saved) amount.state_bytes = calls.state;
  return amount;
}

inline std::function<void()> run_of(PassKind kind, const LibraryCalls& calls) {
  switch (kind) {
    case PassKind::forward:
      return calls.forward;
    case PassKind::backward:
      return calls.backward;
    case PassKind::both:
      return [calls] {
        calls.forward();
        calls.backward();
      };
    case PassKind::backward_saved:
      calls.forward_saving();
      return calls.backward_saved;
    case PassKind::both_saved:
      return [calls] {
        calls.forward_saving();
        calls.backward_saved();
      };
  }
  return {};
}

}  // namespace bench
