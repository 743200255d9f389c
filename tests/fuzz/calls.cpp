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

// A case in memory once more, dense; under Precision::fast, whose bits depend on where tensors lie,
// as `layout` placed it first.
Placed place_again(const Case& random, Draw layout) {
  return place(random, random.problem.numbers.fast ? &layout : nullptr);
}

// y again, with a NaN somewhere in q, k or v. Where Precision::fast decides by all columns of v
// whether to round a head, those without the NaN are near what is expected; otherwise they keep
// their bits.
void poison(Draw& draw, const Case& random, const Draw& layout, const Dense<double>& y,
            const Dense<Estimate>& expected, Tally& tally) {
  Case poisoned = random;
  const auto tensor = static_cast<std::size_t>(draw.below(3));
  Dense<double>* const tensors[] = {&poisoned.problem.q, &poisoned.problem.k, &poisoned.problem.v};
  Dense<double>& x = *tensors[tensor];
  if (x.elements.empty()) return;
  Extents at;
  for (std::size_t axis = 0; axis < 4; ++axis) at[axis] = draw.below(x.extent[axis]);
  x(at[0], at[1], at[2], at[3]) = std::numeric_limits<double>::quiet_NaN();
  Placed placed = place_again(poisoned, layout);
  run_forward(*random.entry, placed, {}, nullptr, tally);
  const Dense<double> now = read(random.entry->scalar, placed.call.y);
  const Influence influence(random, tensor, at);
  Dense<double> untouched = now;
  Dense<double> others = now;
  std::size_t i = 0;
  for (Size n = 0; n < y.extent[0]; ++n)
    for (Size h = 0; h < y.extent[1]; ++h)
      for (Size t = 0; t < y.extent[2]; ++t)
        for (Size c = 0; c < y.extent[3]; ++c, ++i)
          (influence.reaches(n, h, t, c) ? others : untouched).elements[i] = y.elements[i];
  std::ostringstream what;
  what << "y with a NaN in "
       << "qkv"[tensor] << "[" << at[0] << ", " << at[1] << ", " << at[2] << ", " << at[3] << "]";
  const Policies& policies = random.problem.policies;
  if (random.problem.numbers.fast && tensor == value && policies.bidirectional())
    require_near(what.str().c_str(), random.entry->scalar, others, expected, nullptr, tally);
  else
    require_same_bits(what.str(), now, untouched);
}

// What a causal query sees nothing of: tokens of a sequence from some one on.
struct Later {
  Sequence sequence;
  Size token;  // of the sequence

  bool hides_from(const Case& random, Size item, Size t) const {
    const Size query = t - sequence.first;
    if (item != sequence.item || query < 0 || query >= sequence.queries.tokens()) return true;
    if (random.problem.policies.causality == Causality::causal) return query < token;
    return sequence.queries.block_of(query) < sequence.keys.block_of(token);
  }
};

// The same call, with other values in tokens that some queries do not see.
Case changed_later(Draw& draw, const Case& random, Later& later) {
  Case changed = random;
  later.sequence = draw.any_of(random.problem.sequences);
  if (later.sequence.keys.tokens() == 0) return changed;
  later.token = draw.below(later.sequence.keys.tokens());
  const Format format = format_of(random.entry->scalar);
  const double value = draw.one_of(
      {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
       format.largest, -format.largest / 4, format.smallest() / 4, rounded_to(format, 1000), 0.0});
  const Size only = draw.below(8);  // of the first four: one tensor; else all
  const bool all_later = draw.once_in(2);
  Dense<double>* const tensors[] = {&changed.problem.q, &changed.problem.k, &changed.problem.v,
                                    &changed.problem.dy};
  for (Size i = 0; i < 4; ++i) {
    Dense<double>& tensor = *tensors[i];
    const Size end = all_later ? later.sequence.keys.tokens() : later.token + 1;
    for (Size h = 0; h < tensor.extent[1]; ++h)
      for (Size t = later.token; t < end && (only >= 4 || only == i); ++t)
        for (Size c = 0; c < tensor.extent[3]; ++c)
          tensor(later.sequence.item, h, later.sequence.first + t, c) = value;
  }
  return changed;
}

// No bit of a result [batch, heads, query tokens, columns] changes where a query sees none of it.
void require_unchanged(const std::string& name, const Case& random, const Later& later,
                       const Dense<double>& before, const Dense<double>& after) {
  Dense<double> hidden = after;
  std::size_t i = 0;
  for (Size n = 0; n < after.extent[0]; ++n)
    for (Size h = 0; h < after.extent[1]; ++h)
      for (Size t = 0; t < after.extent[2]; ++t)
        for (Size c = 0; c < after.extent[3]; ++c, ++i)
          if (later.hides_from(random, n, t)) hidden.elements[i] = before.elements[i];
  require_same_bits(name + " with other values from token " + std::to_string(later.token) +
                        " of the sequence that begins at " + std::to_string(later.sequence.first) +
                        " of item " + std::to_string(later.sequence.item),
                    after, hidden);
}

// Both passes in stages have the bits of whole ones on the linear path; but for dk and dv, where
// sums of several query heads, or of very many blocks, are in another order.
void run_stages(Draw& draw, const Case& random, const Placed& whole, const Dense<Estimate>& y,
                const std::array<const Dense<Estimate>*, 4>& gradients, Tally& tally) {
  Case all = random;
  all.accumulate = false;
  Placed staged = place(all, nullptr);
  staged.memory.freeze();
  const Scalar scalar = random.entry->scalar;
  staged.memory.may_change(scalar, staged.call.y);
  for (std::size_t i = 0; i < 4; ++i)
    staged.memory.may_change(scalar_of(random, i), staged.call.gradient[i]);
  ++tally.calls;
  const AnyExecutor executor(draw);
  random.entry->staged(staged.call, executor, draw.between(1, 6));
  if (!staged.memory.intact()) fail("stages: something beside the results was written");
  require_near("y in stages", scalar, read(scalar, staged.call.y), y, nullptr, tally);
  const char* const names[] = {"dq in stages", "dk in stages", "dv in stages", "dmix in stages"};
  for (std::size_t i = 0; i < 4; ++i) {
    const Dense<double> gradient = read(scalar_of(random, i), staged.call.gradient[i]);
    if (i != mixing) {
      require_near(names[i], scalar_of(random, i), gradient, *gradients[i], nullptr, tally);
      if (i == query && !random.accumulate && random.problem.numbers.path == 1)
        require_same_bits(names[i], gradient, read(scalar_of(random, i), whole.call.gradient[i]));
      continue;
    }
    // Of a larger matrix the rest is not written.
    Dense<Estimate> corner = *gradients[i];
    Dense<double> found = gradient;
    std::size_t at = 0;
    for (Size h = 0; h < found.extent[1]; ++h)
      for (Size r = 0; r < found.extent[2]; ++r)
        for (Size c = 0; c < found.extent[3]; ++c, ++at)
          if (r >= random.queries.blocks() || c >= random.keys.blocks())
            corner.elements[at] = {0, 1}, found.elements[at] = 0;
    require_near(names[i], scalar_of(random, i), found, corner, nullptr, tally);
  }
}

bool looks_back(const Case& random) {
  return random.problem.policies.causality != Causality::bidirectional &&
         !random.problem.sequences.empty();
}

// What Precision::fast promises of an RMS error, and what has been seen where few terms make up a
// result: twice that. Features of Identity have either sign.
struct RmsBounds {
  double y, gradient;
};
RmsBounds rms_bounds(const Policies& policies) {
  const bool cancels = policies.rotation != Rotation::none || policies.map == Map::identity;
  return {2 * (cancels ? 5e-3 : 3e-3), 2 * 5e-3};
}

// Not of very few terms, nor of denominators that may nearly vanish.
bool promises_rms(const Case& random) {
  constexpr Size some_terms = 12;
  const Problem& problem = random.problem;
  const bool may_vanish = problem.policies.normalizer != Normalizer::unnormalized &&
                          std::any_of(problem.mix.elements.begin(), problem.mix.elements.end(),
                                      [](double weight) { return weight < 0; });
  return problem.numbers.fast && !may_vanish && random.queries.tokens() >= some_terms &&
         random.keys.tokens() >= some_terms;
}

}  // namespace

void require_rms(const char* name, const Dense<double>& results, const Dense<Estimate>& expected,
                 const Dense<double>* initial, double bound) {
  double errors = 0;
  double squares = 0;
  double of_sums = 0;
  for (std::size_t i = 0; i < results.elements.size(); ++i) {
    const Estimate& e = expected.elements[i];
    if (!(e.bound < 1e30)) continue;  // all rounding, or beyond the format
    const double before = initial == nullptr ? 0 : initial->elements[i];
    const double value = static_cast<double>(e.value);
    const double error = results.elements[i] - before - value;
    errors += error * error;
    of_sums += e.of_sums * e.of_sums;
    // Where a result cancels by chance, its terms are the measure.
    squares += value * value + e.squares + before * before;
  }
  // The RMS of few elements is their largest.
  bound *= 1 + 4 / std::sqrt(1 + static_cast<double>(results.elements.size()));
  const double allowed = bound * std::sqrt(squares) + std::sqrt(of_sums);
  if (std::sqrt(errors) <= allowed) return;
  std::ostringstream what;
  what << name << " has an RMS error of " << std::sqrt(errors / squares) << ", more than "
       << allowed / std::sqrt(squares);
  fail(what.str());
}

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
  const Draw layout = draw;
  Placed anywhere = place(random, &draw);
  State state;
  const AnyExecutor executor(draw);
  run_forward(entry, anywhere, executor, draw.once_in(3) ? &state : nullptr, tally);
  const Dense<double> y = read(entry.scalar, anywhere.call.y);
  const Dense<Estimate> expected = attend(random.problem, random.precision(), false).y;
  require_near("y", entry.scalar, y, expected, nullptr, tally);
  if (promises_rms(random))
    require_rms("y", y, expected, nullptr, rms_bounds(random.problem.policies).y);

  Placed dense = place_again(random, layout);
  run_forward(entry, dense, {}, nullptr, tally);
  require_same_bits("y, dense or placed alike, on one thread", read(entry.scalar, dense.call.y), y);
  if (looks_back(random) && draw.once_in(2)) {
    Later later;
    Placed changed = place_again(changed_later(draw, random, later), layout);
    run_forward(entry, changed, {}, nullptr, tally);
    require_unchanged("y", random, later, y, read(entry.scalar, changed.call.y));
  } else if (draw.once_in(2)) {
    poison(draw, random, layout, y, expected, tally);
  }
}

void attack_backward(Draw& draw, Tally& tally) {
  const Case random = random_case(draw, Wish::anything);
  situation = "backward: " + description_of(random);
  const Entry& entry = *random.entry;
  const Results expected = attend(random.problem, random.precision(), true);
  const Dense<Estimate>* const estimates[] = {&expected.dq, &expected.dk, &expected.dv,
                                              &expected.dmix};
  const char* const names[] = {"dq", "dk", "dv", "dmix"};
  const Draw layout = draw;
  Placed anywhere = place(random, &draw);
  State state;
  const bool saved = draw.once_in(3);
  if (saved) run_forward(entry, anywhere, AnyExecutor(draw), &state, tally);
  run_backward(entry, anywhere, AnyExecutor(draw), saved ? &state : nullptr, tally);
  const auto judge = [&](const Placed& placed, std::size_t i) {
    const Dense<double> gradient = read(scalar_of(random, i), placed.call.gradient[i]);
    const Dense<double>* const initial = random.accumulate ? &random.initial[i] : nullptr;
    if (!rounds_gradients(random)) {
      require_near(names[i], scalar_of(random, i), gradient, *estimates[i], initial, tally);
    } else if (promises_rms(random)) {
      tally.elements += std::ssize(gradient.elements);
    } else {
      tally.unjudged += std::ssize(gradient.elements);
    }
    if (promises_rms(random))
      require_rms(names[i], gradient, *estimates[i], initial,
                  rms_bounds(random.problem.policies).gradient);
  };
  for (std::size_t i = 0; i < 4; ++i)
    if (random.wanted[i]) judge(anywhere, i);

  Placed dense = place_again(random, layout);
  std::fill(dense.call.wanted, dense.call.wanted + 4, true);
  run_backward(entry, dense, {}, nullptr, tally);
  for (std::size_t i = 0; i < 4; ++i) {
    const Dense<double> gradient = read(scalar_of(random, i), dense.call.gradient[i]);
    if (!random.wanted[i]) {
      judge(dense, i);
    } else if (!saved) {
      require_same_bits(
          std::string(names[i]) + ", dense or placed alike, on one thread, with all others",
          gradient, read(scalar_of(random, i), anywhere.call.gradient[i]));
    }
  }
  if (entry.staged != nullptr && draw.once_in(3))
    run_stages(draw, random, dense, expected.y,
               {&expected.dq, &expected.dk, &expected.dv, &expected.dmix}, tally);
  if (!looks_back(random) || draw.once_in(2)) return;
  Later later;
  Placed changed = place_again(changed_later(draw, random, later), layout);
  std::fill(changed.call.wanted, changed.call.wanted + 4, true);
  run_backward(entry, changed, {}, nullptr, tally);
  require_unchanged("dq", random, later, read(entry.scalar, dense.call.gradient[query]),
                    read(entry.scalar, changed.call.gradient[query]));
}

}  // namespace fuzz
