// SPDX-License-Identifier: MIT
#include "tests/fuzz/case.hpp"

#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

namespace fuzz {

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

bool packs(const Entry& entry) { return entry.batch >= Batch::packed_by_int32; }
bool causal(const Policies& policies) { return policies.causality != Causality::bidirectional; }

/// Whether its gradients have differences that Precision::fast rounds.
bool has_rounded_gradients(const Entry& entry) {
  const Policies& policies = entry.policies;
  return entry.scalar == Scalar::bfloat16 && policies.normalizer == Normalizer::mixed_key_sum &&
         policies.rotation == Rotation::none && is_rectified(policies.map);
}

/// Where the library cuts its work: many blocks (it mixes some dozens at once), long blocks (a tile
/// has about a hundred tokens), rows of several vectors.
enum class Regime { ordinary, many_blocks, long_blocks, wide };

Grid random_grid(const Policies& policies, Regime regime, Draw& draw) {
  Grid grid;
  for (int axis = 3 - policies.rank; axis < 3; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    const Size most = policies.rank == 1 ? 9 : policies.rank == 2 ? 4 : 3;
    grid.block[a] = draw.between(1, most);
    grid.extent[a] = draw.between(1, policies.rank == 1 ? 30 : policies.rank == 2 ? 7 : 4);
    if (axis == 2 && regime == Regime::many_blocks) {
      grid.block[a] = draw.between(1, 2);
      grid.extent[a] = draw.between(20, policies.rank == 1 ? 140 : 50);
    }
    if (axis == 2 && regime == Regime::long_blocks) {
      grid.block[a] = draw.between(60, 150);
      grid.extent[a] = draw.between(50, policies.rank == 1 ? 240 : 80);
    }
    if (policies.normalizer == Normalizer::mixed_product)  // blocks of one size
      grid.extent[a] = std::max(Size{1}, grid.extent[a] / grid.block[a]) * grid.block[a];
  }
  return grid;
}

/// Numbers of one tensor, as the storage type has them.
class Values {
 public:
  /// `moderate`: they may be exponents.
  Values(Draw& draw, Scalar scalar, bool moderate)
      : draw_(draw), format_(format_of(scalar)), kind_(draw.below(10)) {
    if (draw.once_in(4) && !moderate)
      factor_ = std::ldexp(1.0, static_cast<int>(draw.below(17)) - 8);
  }
  double operator()() {
    switch (kind_) {
      case 0:  // denominators may vanish
        return static_cast<double>(draw_.below(5)) - 2;
      case 1:
        return draw_.once_in(2) ? 0 : uniform(-2, 2);
      case 2:
        return draw_.once_in(8) ? uniform(-8, 8) : 0;
      case 3:
        return uniform(0, 1);
      case 4:
        return draw_.once_in(6) ? -0.0 : uniform(-4, 0.5);
      default:
        return uniform(-2, 2);
    }
  }

 private:
  double uniform(double low, double high) {
    return rounded_to(format_, factor_ * draw_.real(low, high));
  }

  Draw& draw_;
  Format format_;
  Size kind_;
  double factor_ = 1;
};

/// What values may have along the tokens beside noise, in sizes of it: where a common part is not
/// that of all tokens, sums and differences cancel.
enum class Trend { none, block_means, ramp, step, last_token, any_token };

void add_trend(Draw& draw, Scalar scalar, Size block, Dense<double>& tensor) {
  const auto trend = static_cast<Trend>(draw.below(6));
  const Size tokens = tensor.extent[2];
  if (trend == Trend::none || tokens == 0) return;
  const bool of_one = trend >= Trend::last_token;
  const double size =
      std::pow(10, of_one ? draw.real(2, scalar == Scalar::float16 ? 4 : 6) : draw.real(0, 2));
  const Size at = trend == Trend::last_token ? tokens - 1 : draw.below(tokens);
  const bool same_columns = draw.once_in(2);
  std::vector<double> directions;
  for (Size i = 0; i < (tokens / block + 1) * tensor.extent[3]; ++i)
    directions.push_back(same_columns ? 1 : draw.real(-1, 1));
  const auto share_of = [&](Size t) {
    if (trend == Trend::block_means) return 1.0;
    if (trend == Trend::ramp) return static_cast<double>(t) / static_cast<double>(tokens);
    return (trend == Trend::step ? t >= at : t == at) ? 1.0 : 0.0;
  };
  std::size_t i = 0;
  for (Size row = 0; row < tensor.extent[0] * tensor.extent[1]; ++row)
    for (Size t = 0; t < tokens; ++t)
      for (Size c = 0; c < tensor.extent[3]; ++c, ++i) {
        const Size of = trend == Trend::block_means ? t / block : 0;
        const double direction =
            directions[static_cast<std::size_t>(of * tensor.extent[3] + c)] *
            (trend == Trend::block_means && same_columns ? static_cast<double>(of % 3) - 1 : 1.0);
        double& element = tensor.elements[i];
        element = rounded_to(format_of(scalar), element + size * direction * share_of(t));
      }
}

/// Makes the tensor the same along axes that may be expanded.
void expand(Dense<double>& tensor, const std::array<bool, 4>& axes) {
  const auto first = [&](int axis, Size i) { return axes[static_cast<std::size_t>(axis)] ? 0 : i; };
  for (Size a = 0; a < tensor.extent[0]; ++a)
    for (Size b = 0; b < tensor.extent[1]; ++b)
      for (Size c = 0; c < tensor.extent[2]; ++c)
        for (Size d = 0; d < tensor.extent[3]; ++d)
          tensor(a, b, c, d) = tensor(first(0, a), first(1, b), first(2, c), first(3, d));
}

}  // namespace

Case random_case(Draw& draw, Wish wish) {
  Case result;
  const std::vector<Entry>& entries = library();
  const bool rounded = wish == Wish::anything && draw.once_in(12);
  do {
    result.entry = &draw.any_of(entries);
  } while (result.entry->scalar == Scalar::extended ||
           (wish == Wish::decodable && result.entry->decoder == nullptr) ||
           (rounded && !has_rounded_gradients(*result.entry)));
  const Entry& entry = *result.entry;
  const Policies& policies = entry.policies;
  Problem& problem = result.problem;
  problem.policies = policies;
  Numbers& numbers = problem.numbers;
  const Format accumulator = format_of(accumulator_of(entry.scalar));
  numbers.fast = entry.scalar == Scalar::bfloat16 && (rounded || !draw.once_in(4));
  // By summaries, by scores of all pairs where there are such, or as the library chooses.
  const bool by_scores = policies.mixing == Mixing::dense && !policies.mixes_products();
  numbers.path =
      numbers.fast && !draw.once_in(4) ? 1 : static_cast<int>(draw.between(0, by_scores ? 2 : 1));
  // Without an epsilon denominators may be 0, with a large one a mistake in it shows in any scalar.
  numbers.feature_epsilon = draw.one_of({0.0, 1e-6, 1e-3, 0.0625});
  numbers.normalizer_epsilon = draw.one_of({0.0, 1e-6, 0.125, 2.0});
  numbers.scale = draw.one_of({1.0, 1.0, 0.375, 0.5, 1.7, 0.0});
  numbers.theta = draw.one_of({10000.0, 100.0, 2.0});

  const Regime regime = draw.once_in(12)   ? Regime::many_blocks
                        : draw.once_in(12) ? Regime::long_blocks
                        : draw.once_in(12) ? Regime::wide
                                           : Regime::ordinary;
  const bool large = regime == Regime::many_blocks || regime == Regime::long_blocks;
  Size batch = packs(entry) ? 1 : draw.between(1, large ? 1 : 3);
  Size kv_heads = draw.between(1, large ? 1 : 3);
  Size group = draw.between(1, large ? 2 : 3);
  Size key_dim = draw.between(1, large ? 5 : regime == Regime::wide ? 70 : 12);
  Size value_dim = draw.between(1, large ? 5 : regime == Regime::wide ? 70 : 12);
  // Heads with fewer are exact; of these there are as many terms as a promise on RMS errors takes.
  if (rounded || (numbers.fast && draw.once_in(2))) {
    batch = kv_heads = 1;
    group = draw.between(1, 2);
    key_dim = draw.between(32, 40);
    value_dim = draw.between(32, 40);
  }
  if (policies.map == Map::dpfp) key_dim = std::min(key_dim, Size{20});
  numbers.nu = draw.between(1, 3);
  numbers.features = draw.between(1, 10);
  if (policies.rotation != Rotation::none) {
    key_dim += key_dim % 2;
    numbers.features += numbers.features % 2;
  }

  result.queries = random_grid(policies, regime, draw);
  result.own_key_blocks = !causal(policies) && !packs(entry) &&
                          policies.normalizer != Normalizer::mixed_product && draw.once_in(3);
  result.keys = result.own_key_blocks ? random_grid(policies, regime, draw) : result.queries;
  // Along some axis there is nothing.
  const Size empty = draw.once_in(24) ? draw.below(wish == Wish::decodable ? 4 : 6) : -1;
  if (empty == 0 && !packs(entry)) batch = 0;
  if (empty == 1) kv_heads = 0;
  if (empty == 2) key_dim = 0;
  if (empty == 3) value_dim = 0;
  if (empty == 4) result.queries.extent[2] = 0;
  if (empty == 5 || (empty == 4 && !result.own_key_blocks)) result.keys.extent[2] = 0;
  if (!result.own_key_blocks) result.queries = result.keys;

  Size query_tokens = result.queries.tokens();
  if (packs(entry)) {
    result.offsets = {0};
    Size longest = 0;
    const Size sequences = draw.once_in(10) ? 0 : draw.between(1, 4);
    for (Size s = 0; s < sequences; ++s) {
      Sequence one{0, static_cast<Size>(result.offsets.back()), result.queries, {}};
      if (draw.once_in(2)) one.queries.extent[2] = draw.below(result.queries.extent[2] + 1);
      one.keys = one.queries;
      longest = std::max(longest, one.queries.extent[2]);
      result.offsets.push_back(one.first + one.queries.extent[2]);
      problem.sequences.push_back(one);
    }
    result.queries.extent[2] = result.keys.extent[2] = longest;
    query_tokens = static_cast<Size>(result.offsets.back());
  } else {
    for (Size n = 0; n < batch; ++n)
      problem.sequences.push_back({n, 0, result.queries, result.keys});
  }
  const Size key_tokens = packs(entry) ? query_tokens : result.keys.tokens();
  const Size heads = kv_heads * group;
  const Size larger = policies.rank == 1 && draw.once_in(4) ? draw.between(1, 4) : 0;
  numbers.leading_corner = larger > 0 || draw.once_in(4);
  const bool own_matrices = draw.once_in(2);
  const Size matrices = own_matrices ? heads : 1;

  const bool weights_are_positive = draw.once_in(2);
  const bool exponents =
      policies.map == Map::exp || policies.map == Map::elu_plus_one || policies.map == Map::favor;
  const auto random = [&](const Extents& extent, Scalar scalar, bool moderate) {
    Dense<double> tensor(extent);
    Values values(draw, scalar, moderate);
    for (double& element : tensor.elements) element = values();
    return tensor;
  };
  problem.q = random({batch, heads, query_tokens, key_dim}, entry.scalar, exponents);
  problem.k = random({batch, kv_heads, key_tokens, key_dim}, entry.scalar, exponents);
  problem.v = random({batch, kv_heads, key_tokens, value_dim}, entry.scalar, false);
  problem.dy = random({batch, heads, query_tokens, value_dim}, entry.scalar, false);
  numbers.terms = draw.between(1, 3);
  const bool structured = policies.mixing != Mixing::dense;
  auto [rows, columns] = mix_extents(policies, numbers, result.queries, result.keys);
  if (!structured) columns += larger - (wish == Wish::decodable ? 0 : larger / 2);
  if (policies.mixing != Mixing::separable) rows += larger;
  if (policies.mixing == Mixing::recurrent && draw.once_in(3)) rows = 1;
  problem.mix = random({1, matrices, rows, columns}, accumulator_of(entry.scalar), false);
  for (double& weight : problem.mix.elements) {
    // Products of many of them stay within the format.
    if (structured) weight = rounded_to(accumulator, draw.real(-1, 1));
    if (weights_are_positive) weight = std::abs(weight);
  }
  if (!structured && draw.once_in(4)) {  // local: next to nothing away from the diagonal
    std::size_t i = 0;
    for (Size of = 0; of < matrices * rows; ++of)
      for (Size b = 0; b < columns; ++b, ++i)
        problem.mix.elements[i] = rounded_to(
            accumulator,
            std::ldexp(problem.mix.elements[i],
                       -4 * static_cast<int>(std::min(std::abs(of % rows - b), Size{4}))));
  }
  for (Dense<double>* tensor : {&problem.v, &problem.dy})
    if (rounded || draw.once_in(3))
      add_trend(draw, entry.scalar, result.keys.block[1] * result.keys.block[2], *tensor);
  const Size projected = policies.map == Map::favor ? numbers.features : 0;
  for (Size i = 0; i < projected * key_dim; ++i)
    numbers.projection.push_back(rounded_to(accumulator, draw.real(-1, 1)));
  for (std::size_t i = 0; i < 5; ++i) {
    Dense<double>* const tensors[] = {&problem.q, &problem.k, &problem.v, &problem.mix,
                                      &problem.dy};
    for (bool& axis : result.expanded[i]) axis = draw.once_in(24) && !numbers.fast;
    expand(*tensors[i], result.expanded[i]);
  }

  // What is never read may hold anything.
  if (draw.once_in(2) && !result.expanded[3][1] && !result.expanded[3][2] && !result.expanded[3][3])
    for (Size h = 0; h < matrices; ++h)
      for (Size i = 0; i < problem.mix.extent[2]; ++i)
        for (Size b = 0; b < problem.mix.extent[3] && !structured; ++b)
          if (i >= result.queries.blocks() || b >= result.keys.blocks() ||
              (causal(policies) && b > i))
            problem.mix(0, h, i, b) = nan;
  if (entry.batch == Batch::padded) {
    const Size real = 1 + draw.below(8);  // masked: one in so many
    const auto mask = [&](Size tokens) {
      std::vector<bool> takes_part;
      for (Size t = 0; t < batch * tokens; ++t) takes_part.push_back(!draw.once_in(real));
      return takes_part;
    };
    const bool both = causal(policies) || (draw.once_in(2) && query_tokens == key_tokens);
    if (!both || !draw.once_in(8)) {
      problem.query_mask = mask(query_tokens);
      problem.key_mask = both ? problem.query_mask : mask(key_tokens);
    }
    if (!both && draw.once_in(4)) problem.key_mask.clear();
    const auto spoil = [&](Dense<double>& tensor, const std::vector<bool>& taken) {
      for (std::size_t t = 0; t < taken.size(); ++t)
        for (Size h = 0; h < tensor.extent[1]; ++h)
          for (Size c = 0; c < tensor.extent[3]; ++c)
            if (!taken[t])
              tensor(static_cast<Size>(t) / tensor.extent[2], h,
                     static_cast<Size>(t) % tensor.extent[2], c) = nan;
    };
    if (draw.once_in(2)) {
      spoil(problem.q, problem.query_mask);
      spoil(problem.dy, problem.query_mask);
      spoil(problem.k, problem.key_mask);
      spoil(problem.v, problem.key_mask);
      for (const std::size_t i : {0u, 1u, 2u, 4u}) result.expanded[i] = {};
    }
  }

  const Extents extents[] = {problem.q.extent, problem.k.extent, problem.v.extent,
                             problem.mix.extent};
  result.accumulate = draw.once_in(2);
  for (std::size_t i = 0; i < 4; ++i) {
    result.initial[i] =
        random(extents[i], i == 3 ? accumulator_of(entry.scalar) : entry.scalar, false);
    result.wanted[i] = !draw.once_in(4);
  }
  return result;
}

bool rounds_gradients(const Case& random) {
  constexpr Size least_dim = 32;  // a head with fewer features or values is exact
  return random.problem.numbers.fast && has_rounded_gradients(*random.entry) &&
         feature_dim(random.problem.policies.map, random.problem.numbers,
                     random.problem.q.extent[3]) >= least_dim &&
         random.problem.v.extent[3] >= least_dim;
}

std::string description_of(const Case& random) {
  const char* const batches[] = {"", ", padded", ", packed", ", packed by int64"};
  const char* const scalars[] = {"double", "float", "BFloat16", "Half"};
  const Numbers& n = random.problem.numbers;
  std::ostringstream out;
  out << name_of(random.entry->policies) << batches[int(random.entry->batch)] << ", "
      << scalars[int(random.entry->scalar)];
  const auto extents = [&](const char* name, const Dense<double>& tensor) {
    out << ", " << name << " [";
    for (int axis = 0; axis < 4; ++axis)
      out << (axis ? ", " : "") << tensor.extent[static_cast<std::size_t>(axis)];
    out << "]";
  };
  extents("q", random.problem.q);
  extents("k", random.problem.k);
  extents("v", random.problem.v);
  extents("mix", random.problem.mix);
  const auto grid = [&](const char* name, const Grid& g) {
    out << ", " << name << " ";
    for (std::size_t a = 0; a < 3; ++a) out << (a ? "x" : "") << g.extent[a];
    out << " in blocks of ";
    for (std::size_t a = 0; a < 3; ++a) out << (a ? "x" : "") << g.block[a];
  };
  grid("queries", random.queries);
  if (random.own_key_blocks) grid("keys", random.keys);
  out << ", epsilons " << n.feature_epsilon << " and " << n.normalizer_epsilon << ", scale "
      << n.scale << ", theta " << n.theta << ", nu " << n.nu << ", terms " << n.terms
      << (n.leading_corner ? ", leading corner" : "") << (n.fast ? ", fast" : "") << ", path "
      << n.path;
  return out.str();
}

std::byte* Memory::new_buffer(Size bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  buffers_.push_back({std::make_unique<std::byte[]>(size), bytes, {}, {}});
  std::memset(buffers_.back().bytes.get(), 0xff, size);  // NaN in every format
  return buffers_.back().bytes.get();
}

View Memory::place(Scalar scalar, const Extents& extent, const std::array<bool, 4>& expanded,
                   Draw* draw) {
  View view{nullptr, extent, {}};
  std::array<std::size_t, 4> order{3, 2, 1, 0};  // from the axis whose elements are closest
  Size before = 0;
  Size after = 0;
  if (draw != nullptr) {
    const Size choice = draw->below(4);
    if (choice == 1) order = {3, 1, 2, 0};  // tokens first
    if (choice == 2) order = {0, 1, 2, 3};  // column-major
    if (choice == 3)
      for (std::size_t i = 3; i > 0; --i)
        std::swap(order[i], order[static_cast<std::size_t>(draw->below(Size(i) + 1))]);
    before = draw->once_in(2) ? 0 : draw->below(8);
    after = draw->once_in(2) ? 0 : draw->below(8);
  }
  Size step = draw != nullptr && draw->once_in(4) ? 1 + draw->below(3) : 1;
  Size reach = 0;   // from the first element to the last
  Size origin = 0;  // from the first in memory to element 0
  for (const std::size_t axis : order) {
    const Size extent_here = std::max(extent[axis], Size{1});
    view.stride[axis] = step;
    if (draw != nullptr && expanded[axis]) {
      view.stride[axis] = 0;
      continue;
    }
    reach += step * (extent_here - 1);
    if (draw != nullptr && draw->once_in(6)) {  // backwards
      origin += step * (extent_here - 1);
      view.stride[axis] = -step;
    }
    step *= extent_here;
    if (draw != nullptr && draw->once_in(4)) step += draw->below(4);
  }
  const Size bytes = format_of(scalar).bytes;
  const bool empty = extent[0] * extent[1] * extent[2] * extent[3] == 0;
  if (empty && draw != nullptr && draw->once_in(2)) return view;  // of no address
  std::byte* const data = new_buffer((before + reach + 1 + after) * bytes);
  view.data = data + (before + origin) * bytes;
  return view;
}

std::vector<View> Memory::interleave(Scalar scalar, const Extents& extent, Size tensors) {
  const Size bytes = format_of(scalar).bytes;
  const Size part = extent[1] * extent[3];
  const Extents stride{extent[2] * tensors * part, extent[3], tensors * part, 1};
  std::byte* const data = new_buffer(extent[0] * stride[0] * bytes);
  std::vector<View> views;
  for (Size i = 0; i < tensors; ++i) views.push_back({data + i * part * bytes, extent, stride});
  return views;
}

std::byte* Memory::bytes(const std::vector<bool>& values) {
  std::byte* const data = new_buffer(std::ssize(values));
  std::transform(values.begin(), values.end(), data,
                 [](bool value) { return std::byte{static_cast<unsigned char>(value)}; });
  return data;
}

std::byte* Memory::workspace(Size bytes) {
  std::byte* const data = new_buffer(bytes + 192);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::byte* const begin = data + (64 + (64 - address % 64) % 64);
  freeze();
  auto& open = buffers_.back().open;
  std::fill_n(open.begin() + (begin - data), bytes, true);
  return begin;
}

void Memory::freeze() {
  for (Buffer& buffer : buffers_) {
    buffer.before.assign(buffer.bytes.get(), buffer.bytes.get() + buffer.size);
    buffer.open.assign(buffer.before.size(), false);
  }
}

void Memory::may_change(Scalar scalar, const View& destination) {
  const Size bytes = format_of(scalar).bytes;
  for (Buffer& buffer : buffers_) {
    const Size begin = static_cast<std::byte*>(destination.data) - buffer.bytes.get();
    if (destination.data == nullptr || begin < 0 || begin >= buffer.size) continue;
    for_each_element(destination, [&](Size offset, Size, Size, Size, Size) {
      std::fill_n(buffer.open.begin() + begin + offset * bytes, bytes, true);
    });
  }
}

bool Memory::intact() const {
  for (const Buffer& buffer : buffers_)
    for (std::size_t i = 0; i < buffer.before.size(); ++i)
      if (!buffer.open[i] && buffer.bytes[i] != buffer.before[i]) return false;
  return true;
}

void write(Scalar scalar, const Dense<double>& values, const View& view) {
  const Size bytes = format_of(scalar).bytes;
  for_each_element(view, [&](Size offset, Size a, Size b, Size c, Size d) {
    store(scalar, values(a, b, c, d), static_cast<std::byte*>(view.data) + offset * bytes);
  });
}

Dense<double> read(Scalar scalar, const View& view) {
  Dense<double> values(view.extent);
  const Size bytes = format_of(scalar).bytes;
  for_each_element(view, [&](Size offset, Size a, Size b, Size c, Size d) {
    values(a, b, c, d) = load(scalar, static_cast<const std::byte*>(view.data) + offset * bytes);
  });
  return values;
}

Placed place(const Case& random, Draw* draw) {
  const Scalar scalar = random.entry->scalar;
  const Scalar accumulator = accumulator_of(scalar);
  const Problem& problem = random.problem;
  Placed placed;
  Memory& memory = placed.memory;
  Call& call = placed.call;
  call.numbers = problem.numbers;
  call.queries = random.queries;
  call.keys = random.keys;
  call.own_key_blocks = random.own_key_blocks;
  call.offsets = random.offsets;
  call.accumulate = random.accumulate;
  std::copy(random.wanted.begin(), random.wanted.end(), call.wanted);

  const std::array<bool, 4> none{};
  call.q = memory.place(scalar, problem.q.extent, random.expanded[0], draw);
  call.k = memory.place(scalar, problem.k.extent, random.expanded[1], draw);
  call.v = memory.place(scalar, problem.v.extent, random.expanded[2], draw);
  call.mix = memory.place(accumulator, problem.mix.extent, random.expanded[3], draw);
  call.dy = memory.place(scalar, problem.dy.extent, random.expanded[4], draw);
  call.y = memory.place(scalar, problem.dy.extent, none, draw);
  const Extents gradients[] = {problem.q.extent, problem.k.extent, problem.v.extent};
  for (std::size_t i = 0; i < 3; ++i)
    call.gradient[i] = memory.place(scalar, gradients[i], none, draw);
  call.gradient[mixing] = memory.place(accumulator, problem.mix.extent, none, draw);
  if (draw != nullptr && problem.q.extent == problem.k.extent &&
      problem.k.extent == problem.v.extent && draw->once_in(2)) {
    const auto operands = memory.interleave(scalar, problem.q.extent, 3);
    call.q = operands[0], call.k = operands[1], call.v = operands[2];
    const auto results = memory.interleave(scalar, problem.q.extent, 3);
    std::copy(results.begin(), results.end(), call.gradient);
  }
  write(scalar, problem.q, call.q);
  write(scalar, problem.k, call.k);
  write(scalar, problem.v, call.v);
  write(accumulator, problem.mix, call.mix);
  write(scalar, problem.dy, call.dy);
  for (std::size_t i = 0; i < 4; ++i)
    write(i == mixing ? accumulator : scalar, random.initial[i], call.gradient[i]);

  const Numbers& numbers = problem.numbers;
  if (problem.policies.map == Map::favor) {
    Dense<double> projection(Extents{1, 1, numbers.features, problem.q.extent[3]});
    projection.elements = numbers.projection;
    call.projection = memory.place(accumulator, projection.extent, none, draw);
    write(accumulator, projection, call.projection);
  }
  const auto mask = [&](const std::vector<bool>& taken, const Dense<double>& tensor) {
    View view;
    if (taken.empty()) return view;
    view.extent = {1, 1, tensor.extent[0], tensor.extent[2]};
    view.stride = {0, 0, tensor.extent[2], 1};
    view.data = memory.bytes(taken);
    return view;
  };
  call.query_mask = mask(problem.query_mask, problem.q);
  const bool one_mask =
      problem.query_mask == problem.key_mask && problem.q.extent[2] == problem.k.extent[2];
  call.key_mask = one_mask ? call.query_mask : mask(problem.key_mask, problem.k);
  return placed;
}

}  // namespace fuzz
