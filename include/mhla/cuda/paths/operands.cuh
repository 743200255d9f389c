// SPDX-License-Identifier: MIT
// What the paths share: a call's operands in parts of the batch, as kernels read them, and dmix
// from its parts.
#pragma once

#include <mhla/cuda/call.hpp>
#include <mhla/cuda/factored_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/tables.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The operands of a part of the batch, its plan, and what fused kernels take of them.
template <class V, class T, class PlanType>
struct Operands {
  using A = Accumulator<T>;
  using Map = typename V::FeatureMapType;
  using Features = fused::FeatureTokens<T, Map, rotates<V>>;

  const CudaDevice& device;
  const V& variant;
  const PlanType& plan;
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const A, 3> mix;
  Index first;  // item
  const Extents<V>& e = plan.extents;

  A scale() const { return static_cast<A>(variant.scale); }
  A epsilon() const {
    if constexpr (normalizes<V>) return static_cast<A>(variant.normalizer.epsilon);
    return A(0);
  }
  Features query_features() const {
    return {fused::tokens(q, e.queries.table), variant.feature_map, scale(), plan.rotation};
  }
  Features key_features() const {
    return {fused::tokens(k, e.keys.table), variant.feature_map, 1.0f, plan.rotation};
  }
  fused::Tokens<const T> values() const { return fused::tokens(v, e.keys.table); }
  fused::Sharing of_query_heads() const {
    return {static_cast<int>(e.queries.kv_heads), static_cast<int>(e.queries.group_size),
            static_cast<int>(e.matrices)};
  }
  fused::MixingWeights mixing() const {
    return {plan.mixing.data, static_cast<int>(e.mix_heads), static_cast<int>(e.mix_rows),
            static_cast<int>(e.mix_columns)};
  }
  /// A causal query's own keys, whose weights are scaled by a power of two; empty in other calls.
  auto own_keys(float weight_scale) const {
    if constexpr (is_causal_within_block<V>) {
      return fused::OwnTokens<T, Map, rotates<V>, fused::Side::keys>{key_features(), values(),
                                                                     mixing(), weight_scale};
    } else {
      return fused::NoOwnTokens{};
    }
  }
  void fill_tables() const {
    PackMixing<A> dense{mix, e.mix_rows, e.mix_columns, {}};
    if constexpr (is_structured<V>) {
      FactoredMixing<V, A>{device, variant, plan}.fill_coefficients(mix);
    } else {
      dense.packed = {plan.mixing.data, e.mixings() * e.mixing_size()};
    }
    cuda::fill_tables(device, variant, e.queries.table, e.keys.table, plan.rotation, dense);
  }
};

/// The plan of the largest part of a call's batch, in the call's workspace.
template <class PlanType, class PassCall>
PlanType plan_of_parts(const PassCall& call) {
  const Index items = items_at_once<PlanType>(call.attention, call.problem, call.is_backward);
  return PlanType(Arena(call.workspace), call.attention, call.problem, items, call.is_backward);
}

/// The matrices of mix, or their gradients, of a part of the batch.
template <class PassCall, class A>
TensorView<A, 3> part_of_mix(const PassCall& call, const TensorView<A, 3>& mix, Index first,
                             Index count) {
  const Shape& shape = call.problem.shape;
  if (!shape.mix_per_item()) return mix;
  return unchecked_slice(mix, 0, first * shape.heads, count * shape.heads);
}

/// Calls f(operands, cut) for the parts of the batch of a call, of which `largest` is the plan:
/// cut(tensor) are the part's items of a tensor.
template <template <class, class> class PassCall, class V, class T, class PlanType, class F>
void for_each_part(const PassCall<V, T>& call, const PlanType& largest, const F& f) {
  const Index batch = call.problem.shape.batch;
  const Index at_once = largest.extents.queries.batch;
  for (Index first = 0; first < batch; first += at_once) {
    const Index count = (std::min)(at_once, batch - first);
    const auto cut = [first, count](const auto& tensor) {
      return unchecked_slice(tensor, 0, first, count);
    };
    PlanType plan = largest;
    PanelRows& queries = plan.extents.queries;
    PanelRows& keys = plan.extents.keys;
    queries.batch = keys.batch = count;
    queries.table.mask = cut(queries.table.mask);
    keys.table.mask = cut(keys.table.mask);
    plan.keep_summaries(batch, first, call.state);
    const OperandViews<T>& of = call.operands;
    const Operands<V, T, PlanType> part{call.device,
                                        call.attention,
                                        plan,
                                        cut(of.q),
                                        cut(of.k),
                                        cut(of.v),
                                        part_of_mix(call, of.mix, first, queries.batch),
                                        first};
    if (first == 0 || call.problem.shape.mix_per_item()) part.fill_tables();
    f(part, cut);
  }
}

/// Sums the queries' parts of dm_ii, of all blocks of a unit with this row of mix: one per
/// sequence. A few lanes share an element.
template <class A, class M>
struct AddOwnMixingGradient {
  static constexpr int threads = 256;
  static constexpr int lanes = 8;
  static constexpr int shared_bytes = threads * int{sizeof(A)};
  static constexpr int min_blocks_per_sm = 4;

  PanelRows rows;
  const A* products;
  Index matrices;
  Index mix_blocks;
  A* parts;  // [units, matrices, blocks of mix], or coefficients of a structured mixing
  M mixing;
  Index size;  // of a matrix in `parts`

  MHLA_HOST_DEVICE Index count() const { return rows.units() * matrices * mix_blocks; }
  Index blocks() const { return ceil_div(count() * lanes, Index{threads}); }

  MHLA_DEVICE void operator()(const machine::Block& block) const {
    machine::wait_for_earlier_kernels();
    const Index at = (block.number * threads + block.thread) / lanes;
    const int lane = block.thread % lanes;
    const bool is_one = at < count();
    const Index i = at % mix_blocks;
    machine::write<A>(place(block.thread), is_one ? sum_of(at / mix_blocks, i, lane) : A(0));
    block.sync();
    if (lane != 0 || !is_one) return;
    A sum = A(0);
    for (int n = 0; n < lanes; ++n) sum += machine::read<A>(place(block.thread + n));
    A* to = parts + at;
    if constexpr (StructuredMixing<M>)
      to = parts + at / mix_blocks * size + mixing.own_coefficient(i);
    machine::store_to(to, machine::load_from(to) + sum);
  }

 private:
  MHLA_DEVICE static machine::Shared place(int n) {
    return static_cast<machine::Shared>(n * int{sizeof(A)});
  }
  /// A lane's share, of a unit's matrix.
  MHLA_DEVICE A sum_of(Index part, Index i, int lane) const {
    const Index tokens = rows.table.block_tokens;
    const Index heads = rows.group_size / matrices;
    const bool is_one_sequence = rows.table.blocks == mix_blocks;
    A sum = A(0);
    for (Index b = is_one_sequence ? i : 0; b < (is_one_sequence ? i + 1 : rows.table.blocks);
         ++b) {
      if (machine::load_from(rows.table.mix_rows.data + b) != i) continue;
      const A* const from = products + part / matrices * rows.of_unit() + b * rows.of_block() +
                            part % matrices * heads * tokens;
      for (Index r = lane; r < heads * tokens; r += lanes) sum += machine::load_from(from + r);
    }
    return sum;
  }
};
/// Adds m_ii's gradient in a call that masks own blocks; does nothing in other calls.
template <class V, class T, class PlanType>
void add_own_mixing_gradient(const Operands<V, T, PlanType>& part) {
  const Extents<V>& e = part.e;
  if constexpr (is_causal_within_block<V>) {
    const AddOwnMixingGradient<Accumulator<T>, typename V::MixingType> body{
        e.queries,
        part.plan.own_products.data,
        e.matrices,
        e.mix_rows,
        is_structured<V> ? part.plan.grad_mixing.data : part.plan.grad_own_mixing.data,
        part.variant.mixing,
        e.mixing_size()};
    machine::run(part.device, body.blocks(), body);
  }
}

/// dmix from its parts, [parts, matrices of a kv head, query blocks, key blocks], summed in one
/// order, plus the diagonal's other part, of causal blocks' own tokens. A stage has only one of
/// both. A thread block has 32 elements, and each of its warps a share of their parts.
template <class A>
struct WriteMixingGradient {
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int shared_bytes = threads * int{sizeof(double)};
  static constexpr int min_blocks_per_sm = 4;

  const A* parts;
  const A* own_parts;  // [parts, matrices, blocks]: the diagonal's, if own blocks are separate
  Index count;         // matrices in `parts`, of which those of mix's h-th follow at mix's distance
  Index own_count;     // in `own_parts`, likewise
  Index query_blocks;
  Index key_blocks;
  Sight sight;
  TensorView<A, 3> destination;
  Update update;
  Index own_column = 0;  // of row 0

  Index blocks() const { return ceil_div(destination.size(), Index{32}); }

  MHLA_DEVICE void operator()(const machine::Block& block) const {
    machine::wait_for_earlier_kernels();
    const Index at = block.number * 32 + block.lane();
    const Index b = at % destination.extent[2];
    const Index i = at / destination.extent[2] % destination.extent[1];
    const Index h = at / destination.extent[2] / destination.extent[1];
    const bool own = own_parts != nullptr && i + own_column == b;
    const bool seen = parts != nullptr && sees_whole_block(sight, i + own_column, b);
    const bool has_parts = i < query_blocks && b < key_blocks && (own || seen);
    double sum = 0;
    if (has_parts && h < destination.extent[0]) {
      const A* const from = own ? own_parts + i : parts + (i * key_blocks + b);
      const Index size = own ? query_blocks : query_blocks * key_blocks;
      sum = sum_of(from + h * size, block.warp(),
                   ceil_div((own ? own_count : count) - h, destination.extent[0]),
                   size * destination.extent[0]);
    }
    machine::write<double>(place(block.thread), sum);
    block.sync();
    if (block.warp() != 0 || h >= destination.extent[0]) return;
    for (int warp = 1; warp < warps; ++warp)
      sum += machine::read<double>(place(warp * 32 + block.lane()));
    A* const to = &destination(h, i, b);
    if (update == Update::overwrite)
      machine::store_to(to, static_cast<A>(sum));
    else if (has_parts)
      machine::store_to(to, machine::load_from(to) + static_cast<A>(sum));
  }

 private:
  MHLA_DEVICE static machine::Shared place(int n) {
    return static_cast<machine::Shared>(n * int{sizeof(double)});
  }
  /// Of every warps-th of n numbers, `step` apart; several are loaded at once.
  MHLA_DEVICE static double sum_of(const A* numbers, Index first, Index n, Index step) {
    constexpr int at_once = 8;
    double sum = 0;
    for (; first < n; first += at_once * warps) {
      A number[at_once];
      MHLA_DEVICE_UNROLL
      for (int x = 0; x < at_once; ++x) {
        const Index p = first + x * warps;
        number[x] = p < n ? machine::load_from(numbers + p * step) : A(0);
      }
      MHLA_DEVICE_UNROLL
      for (const A one : number) sum += static_cast<double>(one);
    }
    return sum;
  }
};
/// dmix, if it is wanted, from `count` matrices of parts, and `own_count` of `own_parts`, those of
/// the diagonal, if they are not null.
template <class V, class T>
void write_mixing_gradient(const BackwardCall<V, T>& call, const Extents<V>& e,
                           Span<Accumulator<T>> parts, Index count, const Accumulator<T>* own_parts,
                           Index own_count, Sight sight,
                           const GradientView<Accumulator<T>, 3>& to) {
  const WriteMixingGradient<Accumulator<T>> body{parts.data,  own_parts,     count, own_count,
                                                 e.mix_rows,  e.mix_columns, sight, to.view,
                                                 call.update, e.own_column()};
  if (to.wanted) machine::run(call.device, body.blocks(), body);
}

/// Runs backward_part(operands, dy, gradients) for the parts of a call's batch, which adds to the
/// units' parts of dmix; then sums those: of all items, or of each part of the batch whose items
/// have matrices of their own.
template <class V, class T, class PlanType, class F>
void run_backward_in_parts(const BackwardCall<V, T>& call, const PlanType& largest,
                           const F& backward_part) {
  const bool per_item = call.problem.shape.mix_per_item();
  const auto clear_parts = [&] {
    set_zero(call.device, largest.grad_mixing);
    set_zero(call.device, largest.grad_own_mixing);
  };
  const auto write = [&](const PlanType& plan, const auto& mix, const auto& to) {
    if constexpr (is_structured<V>) {
      if (to.wanted)
        FactoredMixing<V, Accumulator<T>>{call.device, call.attention, plan}.parameter_gradient(
            mix, to.view, call.update);
    } else {
      const Index count = plan.extents.units() * plan.extents.matrices;
      write_mixing_gradient(call, plan.extents, plan.grad_mixing, plan.splits * count,
                            plan.grad_own_mixing.data, count, sight_of<V>, to);
    }
  };
  clear_parts();
  for_each_part(call, largest, [&](const auto& part, const auto& cut) {
    GradientViews<T> gradients = call.gradients;
    gradients.query.view = cut(gradients.query.view);
    gradients.key.view = cut(gradients.key.view);
    gradients.value.view = cut(gradients.value.view);
    gradients.mix.view = part_of_mix(call, gradients.mix.view, part.first, part.e.queries.batch);
    if (per_item && part.first > 0) clear_parts();
    backward_part(part, cut(call.dy), gradients);
    if (per_item) write(part.plan, part.mix, gradients.mix);
  });
  if (!per_item) write(largest, call.operands.mix, call.gradients.mix);
}

}  // namespace cuda

MHLA_NAMESPACE_END
