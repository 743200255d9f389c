// SPDX-License-Identifier: MIT
// Legal calls: near the oracle, the same bits on every executor and in every layout, nothing
// written beside the results.
#include <bit>
#include <cmath>
#include <limits>
#include <mhla/fork_join.hpp>
#include <numeric>
#include <sstream>

#include "tests/fuzz/attack.hpp"

namespace fuzz {

std::string situation;

namespace {

std::string place_of(const Extents& extent, std::size_t i) {
  std::string text;
  Size rest = static_cast<Size>(i);
  for (std::size_t axis = 4; axis-- > 0;) {
    text = std::to_string(rest % extent[axis]) + (text.empty() ? "" : ", ") + text;
    rest /= extent[axis];
  }
  return "[" + text + "]";
}

// Of y, or of a gradient.
Scalar scalar_of(const Case& random, std::size_t gradient) {
  return gradient == mixing ? accumulator_of(random.entry->scalar) : random.entry->scalar;
}

// What the promises on NaN and causality leave to an element of q, k or v: which outputs it may
// change.
class Influence {
 public:
  Influence(const Case& random, std::size_t tensor, const Extents& element)
      : random_(random), tensor_(tensor), element_(element) {}

  bool reaches(Size n, Size h, Size t, Size c) const {
    const Problem& problem = random_.problem;
    const auto& [item, head, token, column] = element_;
    const Size group = problem.q.extent[1] / problem.k.extent[1];
    if (n != item || (tensor_ == query ? h != head : h / group != head)) return false;
    for (const Sequence& s : problem.sequences) {
      if (s.item != item || token < s.first || token >= s.first + s.keys.tokens()) continue;
      if (packed() && (t < s.first || t >= s.first + s.queries.tokens())) return false;
      const Size j = token - s.first;
      if (tensor_ == query)
        return problem.policies.normalizer == Normalizer::mixed_product || t == token;
      if (tensor_ == value && c != column) return false;
      if (problem.policies.causality == Causality::causal) return t - s.first >= j;
      if (problem.policies.causality == Causality::block_causal)
        return s.queries.block_of(t - s.first) >= s.keys.block_of(j);
      return true;
    }
    return tensor_ == query && t == token;  // a query beyond the keys
  }

 private:
  bool packed() const { return random_.entry->batch >= Batch::packed_by_int32; }

  const Case& random_;
  std::size_t tensor_;
  Extents element_;
};

// y again, with a NaN somewhere in q, k or v.
void poison(Draw& draw, const Case& random, const Dense<double>& y, Tally& tally) {
  Case poisoned = random;
  const auto tensor = static_cast<std::size_t>(draw.below(3));
  Dense<double>* const tensors[] = {&poisoned.problem.q, &poisoned.problem.k, &poisoned.problem.v};
  Dense<double>& x = *tensors[tensor];
  if (x.elements.empty()) return;
  Extents at;
  for (std::size_t axis = 0; axis < 4; ++axis) at[axis] = draw.below(x.extent[axis]);
  x(at[0], at[1], at[2], at[3]) = std::numeric_limits<double>::quiet_NaN();
  Placed placed = place(poisoned, nullptr);
  run_forward(*random.entry, placed, {}, nullptr, tally);
  const Dense<double> now = read(random.entry->scalar, placed.call.y);
  const Influence influence(random, tensor, at);
  Dense<double> untouched = now;
  std::size_t i = 0;
  for (Size n = 0; n < y.extent[0]; ++n)
    for (Size h = 0; h < y.extent[1]; ++h)
      for (Size t = 0; t < y.extent[2]; ++t)
        for (Size c = 0; c < y.extent[3]; ++c, ++i)
          if (!influence.reaches(n, h, t, c)) untouched.elements[i] = y.elements[i];
  std::ostringstream what;
  what << "y with a NaN in "
       << "qkv"[tensor] << "[" << at[0] << ", " << at[1] << ", " << at[2] << ", " << at[3] << "]";
  require_same_bits(what.str(), now, untouched);
}

}  // namespace

void require_near(const char* name, Scalar scalar, const Dense<double>& results,
                  const Dense<Estimate>& expected, const Dense<double>* initial, Tally& tally) {
  const Format format = format_of(scalar);
  const Format sums = format_of(accumulator_of(scalar));
  for (std::size_t i = 0; i < results.elements.size(); ++i) {
    const double before = initial == nullptr ? 0 : initial->elements[i];
    const long double right = expected.elements[i].value + static_cast<long double>(before);
    const double size = static_cast<double>(std::abs(right));
    double bound = expected.elements[i].bound + 2 * sums.roundoff() * (std::abs(before) + size);
    if (scalar != accumulator_of(scalar))
      bound += format.roundoff() * (size + bound + format.smallest());
    if (!(size + bound < format.largest)) {
      ++tally.unjudged;
      continue;
    }
    ++tally.elements;
    const double result = results.elements[i];
    const double share =
        static_cast<double>(std::abs(static_cast<long double>(result) - right)) / bound;
    if (!(share <= 1)) {
      std::ostringstream what;
      what.precision(17);
      what << name << place_of(results.extent, i) << " is " << result << " but must be "
           << static_cast<double>(right) << ", up to " << bound;
      fail(what.str());
    }
    // (Results of 16 bits are rounded at the end, by up to the whole bound.)
    if (scalar == accumulator_of(scalar)) tally.worst = std::max(tally.worst, share);
  }
}

void require_same_bits(const std::string& what, const Dense<double>& results,
                       const Dense<double>& expected) {
  for (std::size_t i = 0; i < results.elements.size(); ++i) {
    const double a = results.elements[i];
    const double b = expected.elements[i];
    if (std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b)) continue;
    if (std::isnan(a) && std::isnan(b)) continue;
    std::ostringstream message;
    message.precision(17);
    message << what << ": element " << place_of(results.extent, i) << " is " << a << " and not "
            << b;
    fail(message.str());
  }
}

AnyExecutor::AnyExecutor(Draw& draw) : seed_(draw.bits()) {
  const Size choice = draw.below(4);
  threads_ = choice == 0;
  slots_ = choice == 1 ? 1 : threads_ ? 2 + draw.below(2) : 1 + draw.below(5);
}

void AnyExecutor::parallel_for(mhla::Index tasks, const mhla::TaskRef& task) const {
  if (threads_) {
    static const mhla::ForkJoin two(2);
    static const mhla::ForkJoin three(3);
    return (slots_ == 2 ? two : three).parallel_for(tasks, task);
  }
  Draw draw(seed_);
  std::vector<Size> order(static_cast<std::size_t>(std::max(tasks, Size{0})));
  std::iota(order.begin(), order.end(), Size{0});
  if (slots_ > 1)
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<std::size_t>(draw.below(Size(i)))]);
  for (const Size i : order) task(i, draw.below(slots_));
}

void run_forward(const Entry& entry, Placed& placed, const AnyExecutor& executor, State* save,
                 Tally& tally) {
  placed.call.workspace_bytes = entry.forward_size(placed.call, executor);
  placed.call.workspace = placed.memory.workspace(placed.call.workspace_bytes);
  placed.memory.may_change(entry.scalar, placed.call.y);
  ++tally.calls;
  entry.forward(placed.call, executor, save);
  if (!placed.memory.intact()) fail("forward: something beside y was written");
}

void run_backward(const Entry& entry, Placed& placed, const AnyExecutor& executor,
                  const State* saved, Tally& tally) {
  placed.call.workspace_bytes = entry.backward_size(placed.call, executor);
  placed.call.workspace = placed.memory.workspace(placed.call.workspace_bytes);
  for (std::size_t i = 0; i < 4; ++i)
    if (placed.call.wanted[i])
      placed.memory.may_change(i == mixing ? accumulator_of(entry.scalar) : entry.scalar,
                               placed.call.gradient[i]);
  ++tally.calls;
  entry.backward(placed.call, executor, saved);
  if (!placed.memory.intact()) fail("backward: something beside the gradients was written");
}

void attack_forward(Draw& draw, Tally& tally) {
  const Case random = random_case(draw, Wish::anything);
  situation = "forward: " + description_of(random);
  const Entry& entry = *random.entry;
  Placed anywhere = place(random, &draw);
  State state;
  run_forward(entry, anywhere, AnyExecutor(draw), draw.once_in(3) ? &state : nullptr, tally);
  const Dense<double> y = read(entry.scalar, anywhere.call.y);
  require_near("y", entry.scalar, y, attend(random.problem, random.precision(), false).y, nullptr,
               tally);

  Placed dense = place(random, nullptr);
  run_forward(entry, dense, {}, nullptr, tally);
  require_same_bits("y, dense and on one thread", read(entry.scalar, dense.call.y), y);
  if (draw.once_in(2)) poison(draw, random, y, tally);
}

void attack_backward(Draw& draw, Tally& tally) {
  const Case random = random_case(draw, Wish::anything);
  situation = "backward: " + description_of(random);
  const Entry& entry = *random.entry;
  const Results expected = attend(random.problem, random.precision(), true);
  const Dense<Estimate>* const estimates[] = {&expected.dq, &expected.dk, &expected.dv,
                                              &expected.dmix};
  const char* const names[] = {"dq", "dk", "dv", "dmix"};
  Placed anywhere = place(random, &draw);
  State state;
  const bool saved = draw.once_in(3);
  if (saved) run_forward(entry, anywhere, AnyExecutor(draw), &state, tally);
  run_backward(entry, anywhere, AnyExecutor(draw), saved ? &state : nullptr, tally);
  for (std::size_t i = 0; i < 4; ++i)
    if (random.wanted[i])
      require_near(names[i], scalar_of(random, i),
                   read(scalar_of(random, i), anywhere.call.gradient[i]), *estimates[i],
                   random.accumulate ? &random.initial[i] : nullptr, tally);

  Placed dense = place(random, nullptr);
  std::fill(dense.call.wanted, dense.call.wanted + 4, true);
  run_backward(entry, dense, {}, nullptr, tally);
  for (std::size_t i = 0; i < 4; ++i) {
    const Dense<double> gradient = read(scalar_of(random, i), dense.call.gradient[i]);
    if (!random.wanted[i]) {
      require_near(names[i], scalar_of(random, i), gradient, *estimates[i],
                   random.accumulate ? &random.initial[i] : nullptr, tally);
    } else if (!saved) {
      require_same_bits(std::string(names[i]) + ", dense, on one thread, with all others", gradient,
                        read(scalar_of(random, i), anywhere.call.gradient[i]));
    }
  }
}

}  // namespace fuzz
