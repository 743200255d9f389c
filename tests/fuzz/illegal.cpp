// SPDX-License-Identifier: MIT
// Calls with one mistake: the documented error, and every destination as it was.
#include <algorithm>
#include <limits>
#include <mhla/core/error.hpp>

#include "tests/fuzz/attack.hpp"

namespace fuzz {

namespace {

/// What may come of a call; a mistake allows one, or several.
enum Outcome : unsigned { shape_error = 1, workspace_error = 2, state_error = 4, no_error = 8 };

bool empty(const View& view) {
  return view.extent[0] * view.extent[1] * view.extent[2] * view.extent[3] == 0;
}

// A legal call to make a mistake in, forward or backward.
struct Attempt {
  const Case& random;
  Placed& placed;
  bool backward;
  Tally& tally;
  State state = {};
  bool saved = false;

  Call& call() { return placed.call; }
  // A tensor that the call takes part in, and whether it is written.
  View& any_operand(Draw& draw) {
    View* const operands[] = {&call().q, &call().k, &call().v, &call().mix, &call().dy};
    return *operands[draw.below(backward ? 5 : 4)];
  }
  View& any_destination(Draw& draw) {
    if (!backward) return call().y;
    while (true) {
      const Size i = draw.below(4);
      if (call().wanted[i]) return call().gradient[i];
    }
  }
  View& any_tensor(Draw& draw) {
    return draw.once_in(3) ? any_destination(draw) : any_operand(draw);
  }
  bool is_mix(const View& view) {
    return &view == &call().mix || &view == &call().gradient[mixing];
  }
  Size bytes_of(const View& view) {
    const Scalar scalar = random.entry->scalar;
    return format_of(is_mix(view) ? accumulator_of(scalar) : scalar).bytes;
  }
};

// Makes a mistake and says what it was and what should come of it; "" where there was nothing to
// make it in.
struct Mistake {
  std::string what;
  unsigned allowed = shape_error;
};

Mistake wrong_extent(Attempt& attempt, Draw& draw) {
  View& view = attempt.any_tensor(draw);
  const auto axis = static_cast<std::size_t>(draw.below(4));
  Size& extent = view.extent[axis];
  const Size before = extent;
  extent = draw.one_of({before + 1, before - 1, Size{0}, Size{-1}, 2 * before + 3, Size{1} << 40,
                        Size{1} << 62, std::numeric_limits<Size>::min()});
  if (extent == before) return {};
  if (&view == &attempt.call().mix) {
    // A larger matrix is legal for a sequence whose length is not known from it, or by name, and so
    // is one for every head, or none.
    const Size needed = axis == 2 ? attempt.random.queries.blocks() : attempt.random.keys.blocks();
    if (axis == 0) return {};  // the view of the library has no such axis
    const Mixing mixing = attempt.random.problem.policies.mixing;
    if (mixing == Mixing::recurrent && axis == 2) return {};  // rows may be more, or one
    const bool structured = mixing != Mixing::dense;
    if (axis == 1 && (extent == 1 || extent == attempt.call().q.extent[1])) return {};
    const Entry& entry = *attempt.random.entry;
    const bool any_length = entry.policies.causality != Causality::bidirectional ||
                            entry.batch >= Batch::packed_by_int32 || needed == 0;
    const bool corner =
        entry.policies.rank == 1 && (any_length || attempt.call().numbers.leading_corner);
    if (axis >= 2 && !structured && corner && extent >= needed &&
        !(attempt.backward && attempt.call().wanted[Gradient::mixing]))
      return {};
  }
  if (attempt.is_mix(view) && axis == 0) return {};
  return {"an axis of " + std::to_string(before) + " made " + std::to_string(extent)};
}

// The same vast axis in all tensors that have it. Where another is 0 there may be nothing to do.
Mistake vast_axis(Attempt& attempt, Draw& draw) {
  Call& call = attempt.call();
  const Size axis = draw.below(3);  // batch, key_dim, value_dim
  // Up to 2^36 tokens in all are counted before they are found to be too many for the workspace.
  const Size extent = draw.one_of({Size{1} << 37, Size{1} << 40, Size{1} << 62});
  View* const of_keys[] = {&call.q, &call.k, &call.gradient[query], &call.gradient[key]};
  View* const of_values[] = {&call.v, &call.y, &call.dy, &call.gradient[value]};
  unsigned allowed = shape_error | workspace_error;
  for (int i = 0; i < 8; ++i) {
    View& view = i < 4 ? *of_keys[i] : *of_values[i - 4];
    if (axis == 0) view.extent[0] = extent;
    if (axis == (i < 4 ? 1 : 2)) view.extent[3] = extent;
    if (std::count(view.extent.begin(), view.extent.end(), 0) > 0) allowed |= no_error;
  }
  return {"an axis of " + std::to_string(extent), allowed};
}

Mistake shared_memory(Attempt& attempt, Draw& draw) {
  View& destination = attempt.any_destination(draw);
  View& other = draw.once_in(2) ? attempt.any_operand(draw) : attempt.any_destination(draw);
  if (&destination == &other || empty(destination) || empty(other)) return {};
  destination.data = other.data;  // element 0 is in both
  return {"a destination in the memory of another tensor"};
}

Mistake expanded_destination(Attempt& attempt, Draw& draw) {
  View& destination = attempt.any_destination(draw);
  const auto axis = static_cast<std::size_t>(draw.below(4));
  if (empty(destination) || destination.extent[axis] < 2) return {};
  destination.stride[axis] = 0;
  return {"a destination with a stride of 0"};
}

Mistake odd_address(Attempt& attempt, Draw& draw) {
  View& view = attempt.any_tensor(draw);
  if (empty(view)) return {};
  view.data = static_cast<std::byte*>(view.data) + 1;
  return {"an odd address"};
}

Mistake small_workspace(Attempt& attempt, Draw& draw) {
  Size& bytes = attempt.call().workspace_bytes;
  if (bytes == 0) return {};
  bytes -= 1 + draw.below(bytes);
  return {"a workspace that is too small", workspace_error};
}

Mistake odd_workspace(Attempt& attempt, Draw& draw) {
  if (attempt.call().workspace_bytes == 0) return {};
  attempt.call().workspace += 1 + draw.below(63);
  return {"a workspace that is not aligned", workspace_error};
}

Mistake wrong_blocks(Attempt& attempt, Draw& draw) {
  Call& call = attempt.call();
  const int rank = attempt.random.problem.policies.rank;
  const auto axis = static_cast<std::size_t>(3 - rank + draw.below(rank));
  Grid& grid = call.own_key_blocks && draw.once_in(2) ? call.keys : call.queries;
  if (rank > 1 && draw.once_in(2)) {
    if (grid.tokens() == 0) return {};  // a longer axis may still hold none
    grid.extent[axis] = draw.one_of({grid.extent[axis] + 1, Size{-1}, Size{1} << 62});
    return {"a grid of other extents"};
  }
  grid.block[axis] = draw.one_of({Size{0}, Size{-1}, std::numeric_limits<Size>::min()});
  // Key blocks of no extent are none: the keys have the queries' then.
  if (&grid == &call.keys && grid.block[axis] == 0) return {};
  return {"a block of no extent"};
}

Mistake senseless_number(Attempt& attempt, Draw& draw) {
  const Policies& policies = attempt.random.problem.policies;
  Numbers& numbers = attempt.call().numbers;
  const double wrong = draw.one_of({-1.0, -1e-9, std::numeric_limits<double>::quiet_NaN(),
                                    std::numeric_limits<double>::infinity()});
  switch (draw.below(4)) {
    case 0:
      numbers.scale = wrong;
      return {"a senseless scale"};
    case 1:
      numbers.theta = draw.one_of({wrong, 0.0});
      return {policies.rotation == Rotation::none ? "" : "a senseless theta"};
    case 2:
      numbers.normalizer_epsilon = wrong;
      return {policies.normalizer == Normalizer::unnormalized ? "" : "a senseless epsilon of den"};
    default:
      numbers.feature_epsilon = wrong;
      numbers.nu = draw.one_of({Size{0}, Size{-1}});
      const bool has_number = policies.map == Map::relu || policies.map == Map::squared_relu ||
                              policies.map == Map::dpfp;
      return {has_number ? "a senseless number of the feature map" : ""};
  }
}

Mistake wrong_offsets(Attempt& attempt, Draw& draw) {
  auto& offsets = attempt.call().offsets;
  if (offsets.empty()) return {};
  switch (draw.below(4)) {
    case 0:
      offsets.clear();
      break;
    case 1:
      offsets.front() = 1;
      break;
    case 2:
      offsets.back() += draw.one_of({1, -1, 1 << 30});
      break;
    default:
      offsets[static_cast<std::size_t>(draw.below(std::ssize(offsets)))] -= 1 << 30;
  }
  return {"wrong offsets"};
}

Mistake inside_workspace(Attempt& attempt, Draw& draw) {
  View& view = attempt.any_operand(draw);
  if (empty(view) || attempt.call().workspace_bytes < attempt.bytes_of(view)) return {};
  view.data = attempt.call().workspace;
  view.stride = {};  // one element
  return {"an operand in the workspace", workspace_error};
}

// Changes one thing that the summaries of a variant, or their gradients, depend on.
const char* change_variant(Case& other, Draw& draw) {
  const Policies& policies = other.entry->policies;
  Numbers& numbers = other.problem.numbers;
  switch (draw.below(8)) {
    case 0:
      numbers.scale += 0.25;
      return "scale";
    case 1:
      if (policies.normalizer == Normalizer::unnormalized) return nullptr;
      numbers.normalizer_epsilon += 1;
      return "normalizer's epsilon";
    case 2:
      if (policies.rotation == Rotation::none) return nullptr;
      numbers.theta *= 2;
      return "theta";
    case 3:
      if (policies.map == Map::favor && !numbers.projection.empty()) {
        numbers.projection.back() += 0.5;
        return "projection";
      }
      if (policies.map != Map::relu && policies.map != Map::squared_relu) return nullptr;
      numbers.feature_epsilon += 1;
      return "feature map's epsilon";
    case 4:
      ++other.queries.block[2];
      if (!other.own_key_blocks) other.keys = other.queries;
      return "block";
    case 5: {
      std::vector<bool>& mask = other.problem.key_mask;
      if (mask.empty() || other.problem.dy.elements.empty()) return nullptr;  // or nobody looks
      const bool one = mask == other.problem.query_mask;
      mask.front().flip();
      if (one) other.problem.query_mask = mask;
      return "mask";
    }
    case 6: {
      auto& offsets = other.offsets;
      if (offsets.size() < 3 || offsets[1] == 0) return nullptr;
      --offsets[1];
      return "offset";
    }
    default: {
      const Entry* const entry = other.entry;
      other.entry = &draw.any_of(library());
      const bool another = other.entry->scalar == entry->scalar &&
                           other.entry->batch == entry->batch &&
                           other.entry->policies.rank == policies.rank && other.entry != entry;
      return another ? "type" : nullptr;
    }
  }
}

Mistake foreign_state(Attempt& attempt, Draw& draw) {
  if (!attempt.backward) return {};
  attempt.saved = true;
  if (draw.once_in(4)) return {"a state that nothing was saved in", state_error};
  Case other = attempt.random;
  const char* const what = change_variant(other, draw);
  if (what == nullptr) return {};
  Placed placed = place(other, nullptr);
  try {
    run_forward(*other.entry, placed, {}, &attempt.state, attempt.tally);
  } catch (const mhla::ShapeError&) {
    return {};  // which the other variant does not take
  }
  return {std::string("a state saved with another ") + what, state_error};
}

}  // namespace

void attack_illegally(Draw& draw, Tally& tally) {
  using Mistakes = Mistake (*)(Attempt&, Draw&);
  constexpr Mistakes mistakes[] = {
      wrong_extent,     shared_memory, expanded_destination, odd_address,   senseless_number,
      small_workspace,  odd_workspace, wrong_blocks,         wrong_offsets, vast_axis,
      inside_workspace, foreign_state, foreign_state};
  Case random = random_case(draw, Wish::anything);
  if (random.wanted == std::array<bool, 4>{}) random.wanted[0] = true;
  const Entry& entry = *random.entry;
  for (int tries = 0; tries < 20; ++tries) {
    Placed placed = place(random, &draw);
    Attempt attempt{random, placed, draw.once_in(2), tally};
    const AnyExecutor executor(draw);
    Call& call = placed.call;
    call.workspace_bytes =
        attempt.backward ? entry.backward_size(call, executor) : entry.forward_size(call, executor);
    call.workspace = placed.memory.workspace(call.workspace_bytes);
    placed.memory.freeze();
    const Mistake mistake =
        mistakes[static_cast<std::size_t>(draw.below(std::size(mistakes)))](attempt, draw);
    if (mistake.what.empty()) continue;
    situation = std::string(attempt.backward ? "backward" : "forward") + " with " + mistake.what +
                ": " + description_of(random);
    std::string what = "no error";
    unsigned outcome = 0;
    ++tally.calls;
    try {
      if (attempt.backward) {
        entry.backward(call, executor, attempt.saved ? &attempt.state : nullptr);
      } else {
        entry.forward(call, executor, nullptr);
      }
      outcome = no_error;
    } catch (const std::exception& error) {
      what = error.what();
      if (dynamic_cast<const mhla::ShapeError*>(&error)) outcome = shape_error;
      if (dynamic_cast<const mhla::WorkspaceError*>(&error)) outcome = workspace_error;
      if (dynamic_cast<const mhla::StateError*>(&error)) outcome = state_error;
    }
    if ((outcome & mistake.allowed) == 0) fail(mistake.what + " gives: " + what);
    if (outcome == no_error) return;
    if (!placed.memory.intact()) fail(mistake.what + ": something was written");
    return;
  }
}

}  // namespace fuzz
