// SPDX-License-Identifier: MIT
// Runs calls on cuBLAS, in parts of the batch, all units of a part at once:
//
//   key blocks:    pack K = phi(k), K^r, V = v -> summaries S_b, key sums z_b
//   mixing:        S~_i, z~_i
//   query blocks:  pack Q = s phi(q), Q^r -> numerators, denominators -> y
//
// ^r: rotated. The backward pass makes the same but y, then the adjoints in reverse order:
//
//   query blocks:  U = dy / den -> dS~_i, dQ^r, c -> dz~_i, dq
//                  (Causal: and what the own block's queries send back to dK^r, dV and dm_ii)
//   mixing:        dm_ib += <dS~_i, S_b> + <dz~_i, z_b>; dS_b = sum_i m_ib dS~_i, dz_b likewise
//   key blocks:    dk, dv
#pragma once

#include <mhla/cuda/paths/cublas.hpp>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/readout.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The units that one matrix of mix mixes for, and one of their sequences. Its panels are matrices
/// of a unit.
template <class V>
struct Mixing {
  const Extents<V>& e;
  Index head;  // of mix
  Index matrix;
  Index first_unit;
  Index units;
  Index unit_step;
  Sequence queries;
  Sequence keys;

  template <class A>
  Panels<A> matrix_of(Span<A> mixing) const {
    A* const data = mixing.data + head * e.mixing_size();
    return {data, units, queries.blocks, keys.blocks, e.mix_columns, 0};
  }
  /// Something of every key block, one block per row.
  template <class A>
  Panels<A> key_blocks(const BlockRows<A>& of) const {
    A* const data = of.at(first_unit, keys.first_block, 0);
    return {data, units, keys.blocks, of.size, of.of_block, unit_step * of.of_unit};
  }
  /// Something of every query block, one block per row.
  template <class A>
  Panels<A> query_blocks(const BlockRows<A>& of) const {
    A* const data = of.at(first_unit, queries.first_block, matrix);
    return {data, units, queries.blocks, of.size, of.of_block, unit_step * of.of_unit};
  }
  /// Which entries a causal query sees in full; any other sees all.
  std::optional<LowerTriangle> triangle() const {
    if (!is_causal<V>) return {};
    return LowerTriangle{e.first_row, e.first_column + lag_of(sight_of<V>)};
  }
  /// A number of every query of query head g, one block per row.
  template <class A>
  Panels<A> queries_of(Span<A> rows, Index g) const {
    const PanelRows& of = e.queries;
    const Index tokens = of.table.block_tokens;
    A* const data = rows.data + first_unit * of.of_unit() + g * tokens;
    return {data, units, of.table.blocks, tokens, of.of_block(), unit_step * of.of_unit()};
  }
  /// The units' parts of dmix.
  template <class A>
  Panels<A> gradient(Span<A> parts) const {
    const Index size = e.mixing_size();
    A* const data = parts.data + (first_unit * e.matrices + matrix) * size;
    return {data, units, queries.blocks, keys.blocks, e.mix_columns, unit_step * e.matrices * size};
  }
  /// Calls f(g) for the query heads of a kv head that the matrix mixes for.
  template <class F>
  void for_each_head(const F& f) const {
    const Index end = e.matrices == 1 ? e.queries.group_size : matrix + 1;
    for (Index g = e.matrices == 1 ? 0 : matrix; g < end; ++g) f(g);
  }
};

/// The stages of a part of the batch.
template <class V, class T>
struct CublasPass {
  using A = Accumulator<T>;
  const Operands<V, T, Plan<V, A>>& of;
  const CudaDevice& device = of.device;
  const Plan<V, A>& plan = of.plan;
  const Extents<V>& e = plan.extents;

  /// Whether own blocks add to the gradients of features: to those that are otherwise finished.
  static constexpr bool adds_own_key_sums = is_causal_within_block<V> && mixes_key_sums<V>;

  void forward(const TensorView<T, 4>& y) const {
    pack_keys();
    summarize_blocks();
    read_out(summaries(), y);
  }
  /// All wanted gradients except dmix, to whose parts it adds.
  void backward(bool has_summaries, const TensorView<const T, 4>& dy,
                const GradientViews<T>& gradients, Update update) const {
    pack_keys();
    if (!has_summaries) summarize_blocks();
    read_out_gradient(summaries(), dy, gradients.query, update);
    const bool keys_wanted = gradients.key.wanted || gradients.value.wanted;
    if constexpr (is_structured<V>) {
      if (gradients.mix.wanted) add_own_mixing_gradient(of);
      if (gradients.mix.wanted || keys_wanted) factored_mixing().mix_gradient(gradients.mix.wanted);
    } else {
      if (gradients.mix.wanted) {
        mixing_gradient(summaries());
        add_own_mixing_gradient(of);
      }
      if (keys_wanted) mix_blocks_gradient(mixed_gradients(), summary_gradients());
    }
    if (keys_wanted) summarize_blocks_gradient(gradients, update);
  }

  // The steps of a pass. Stages (cuda/instantiate_stages.cuh) call some of them.

  /// y of query blocks from the sums of key blocks.
  void read_out(const BlockSums<A>& from, const TensorView<T, 4>& y) const {
    mix_blocks(from);
    pack_queries();
    sum_denominators();
    read_out_blocks(y);
  }
  /// dq if it is wanted, dS~ and dz~, and the gradients of denominators.
  void read_out_gradient(const BlockSums<A>& from, const TensorView<const T, 4>& dy,
                         const GradientView<T, 4>& dq, Update update) const {
    mix_blocks(from);
    pack_queries();
    sum_denominators();
    divide(dy);
    read_out_blocks_gradient();
    denominators_gradient();
    if (dq.wanted) unpack_gradient(queries_gradient(), of.scale(), of.q, dq.view, update);
  }

  /// S and z of key blocks, S~ and z~ of query blocks, and their gradients, in the plan's memory.
  BlockSums<A> summaries() const { return of_keys(plan.summaries, plan.key_sums); }
  BlockSums<A> summary_gradients() const {
    return of_keys(plan.grad_summaries, plan.grad_key_sums);
  }
  BlockSums<A> mixtures() const { return of_queries(plan.mixed_summaries, plan.mixed_key_sums); }
  BlockSums<A> mixed_gradients() const {
    return of_queries(plan.grad_mixed_summaries, plan.grad_mixed_key_sums);
  }
  BlockSums<A> of_keys(Span<A> summaries, Span<A> key_sums) const {
    const Index blocks = e.keys.table.blocks;
    return {block_rows(summaries, blocks, 1, e.summary_size()),
            block_rows(key_sums, blocks, 1, e.feature_dim), blocks};
  }
  BlockSums<A> of_queries(Span<A> summaries, Span<A> key_sums) const {
    const Index blocks = e.queries.table.blocks;
    return {block_rows(summaries, blocks, e.matrices, e.summary_size()),
            block_rows(key_sums, blocks, e.matrices, e.feature_dim), blocks};
  }

  /// Rows of all key blocks, one block per panel.
  Panels<A> keys(Span<A> rows, Index dim) const {
    return panels(rows.data, e.key_summaries(), e.keys.table.block_tokens, dim);
  }
  /// Rows of all query blocks, those that read one mixed summary per panel.
  Panels<A> queries(Span<A> rows, Index dim) const {
    return panels(rows.data, e.mixed_summaries(), e.readers(), dim);
  }
  /// Summaries of key blocks, and mixed ones of query blocks, one per panel.
  Panels<A> key_summaries(Span<A> of_blocks) const {
    return panels(of_blocks.data, e.key_summaries(), e.feature_dim, e.value_dim);
  }
  Panels<A> mixed_summaries(Span<A> of_blocks) const {
    return panels(of_blocks.data, e.mixed_summaries(), e.feature_dim, e.value_dim);
  }
  FactoredMixing<V, A> factored_mixing() const { return {device, of.variant, plan}; }
  OwnWeights<A> own_weights() const {
    const bool shared = e.mix_heads == 1;
    if constexpr (is_structured<V>) {
      return {e.queries, RowFinder(e.queries), plan.own_mixing.data, shared ? 0 : e.mix_rows,
              1,         Divisor(e.units())};
    } else {
      return {e.queries,
              RowFinder(e.queries),
              plan.mixing.data + e.own_column(),
              shared ? 0 : e.mixing_size(),
              e.mix_columns + 1,
              Divisor(e.per_item ? e.units() : e.queries.kv_heads)};
    }
  }
  /// Calls f(mixing) for every matrix of mix and every sequence.
  template <class F>
  void for_each_mixing(const F& f) const {
    const bool shared = e.mix_heads == 1;
    const Index group_size = e.queries.group_size;
    if (group_size == 0) return;
    for (Index head = 0; head < e.mixings(); ++head)
      for_each_sequence_side(
          of.variant, e, [&](const Sequence& of_queries, const Sequence& of_keys) {
            f(Mixing<V>{e, head, shared ? 0 : head % group_size, shared ? 0 : head / group_size,
                        shared       ? e.units()
                        : e.per_item ? 1
                                     : e.queries.batch,
                        shared ? 1 : e.queries.kv_heads, of_queries, of_keys});
          });
  }

  /// K, K^r and V of every key block.
  void pack_keys() const {
    pack_features<rotates<V>>(device, of.variant.feature_map, A(1), of.k,
                              FeatureRows<A>{e.keys, e.feature_dim, plan.rotation, plan.keys.data,
                                             plan.rotated_keys.data, plan.row_input.data});
    gather(device, e.keys, of.v, plan.values.data);
  }

  /// S_b = K^r^T V and z_b = sum_j K_j of every key block (arXiv 2601.07832, eq. 3).
  void summarize_blocks() const {
    multiply_left_transposed(device, key_summaries(plan.summaries),
                             keys(plan.rotated_keys, e.feature_dim),
                             keys(plan.values, e.value_dim));
    if constexpr (normalizes<V>)
      weighted_row_sums<A>(device, keys(plan.keys, e.feature_dim), nullptr, plan.key_sums.data);
  }

  /// S~_i = sum_b m_ib S_b and z~_i of every query block (eq. 4); causal: over b <= i - lag only.
  void mix_blocks(const BlockSums<A>& from) const {
    if constexpr (is_structured<V>) {
      factored_mixing().mix();
      return;
    }
    for_each_mixing([&](const Mixing<V>& m) {
      const auto mix_rows = [&](const BlockRows<A>& rows, const BlockRows<A>& to) {
        multiply_lower(device, m.query_blocks(to), m.matrix_of(plan.mixing), m.key_blocks(rows),
                       m.triangle(), Into::overwrite);
      };
      mix_rows(from.summaries, mixtures().summaries);
      if constexpr (mixes_key_sums<V>) mix_rows(from.key_sums, mixtures().key_sums);
    });
  }

  /// Q and Q^r of every query.
  void pack_queries() const {
    pack_features<rotates<V>>(
        device, of.variant.feature_map, of.scale(), of.q,
        FeatureRows<A>{e.queries, e.feature_dim, plan.rotation, plan.queries.data,
                       plan.rotated_queries.data, plan.row_input.data});
  }

  /// p_t of every causal query.
  void sum_own_keys() const {
    launch(device, e.key_summaries() * e.feature_dim,
           WeightedRowSum<A, true>{keys(plan.keys, e.feature_dim), nullptr,
                                   plan.running_key_sums.data});
  }

  /// The denominators of every query; under MixedProduct also R.
  void sum_denominators() const {
    const Index rows = e.queries.count();
    const auto sum = [&](Index readers, Span<A> key_sums, A epsilon, Span<A> to) {
      launch(
          device, rows,
          MixedKeySumDenominators<A, adds_own_key_sums>{plan.queries.data,
                                                        e.feature_dim,
                                                        {Divisor(readers), nullptr, key_sums.data},
                                                        epsilon,
                                                        to.data,
                                                        own_weights(),
                                                        plan.running_key_sums.data});
    };
    if constexpr (mixes_key_sums<V>) {
      if constexpr (adds_own_key_sums) sum_own_keys();
      sum(e.readers(), plan.mixed_key_sums, of.epsilon(), plan.denominators);
    } else if constexpr (mixes_products<V>) {
      sum(e.queries.of_block(), plan.key_sums, A(0), plan.products);
      fill<A, 1>(device, {plan.denominators.data, {rows}, {1}}, of.epsilon());
      for_each_mixing([&](const Mixing<V>& m) {
        m.for_each_head([&](Index g) {  // den += m R
          multiply(device, m.queries_of(plan.denominators, g), m.matrix_of(plan.mixing),
                   m.queries_of(plan.products, g), Into::add);
        });
      });
    }
  }

  /// num += m_ii tril(Q^r K^r^T) V of every query.
  void read_out_own_blocks() const {
    for_each_slab<A>(e.queries, [&](const Slab<A>& slab) {
      const Panels<A> p = slab.scores(plan.scores);
      multiply_right_transposed(device, p, slab.of(plan.rotated_queries, e.feature_dim),
                                slab.seen(keys(plan.rotated_keys, e.feature_dim)));
      scale_scores(device, own_weights(), p, slab.g);
      multiply_lower(device, slab.of(plan.outputs, e.value_dim), p,
                     slab.seen(keys(plan.values, e.value_dim)), slab.triangle(), Into::add);
    });
  }

  /// y = num / den, num = Q^r S~, of every query (eq. 5).
  void read_out_blocks(const TensorView<T, 4>& y) const {
    multiply(device, queries(plan.outputs, e.value_dim),
             queries(plan.rotated_queries, e.feature_dim), mixed_summaries(plan.mixed_summaries));
    if constexpr (is_causal_within_block<V>) read_out_own_blocks();
    scatter<T, A>(device, e.queries, plan.outputs.data, y, Update::overwrite,
                  plan.denominators.data);
  }

  /// U = dy / den of every query.
  void divide(const TensorView<const T, 4>& dy) const {
    gather(device, e.queries, dy, plan.outputs.data, plan.denominators.data);
  }

  /// dS~_i = Q^r^T U, dQ^r = U S~^T and c; under Causal the own block's part of dK^r, dV and dm_ii.
  void read_out_blocks_gradient() const {
    const Panels<A> u = queries(plan.outputs, e.value_dim);
    multiply_left_transposed(device, mixed_summaries(plan.grad_mixed_summaries),
                             queries(plan.rotated_queries, e.feature_dim), u);
    multiply_right_transposed(device, queries(plan.grad_queries, e.feature_dim), u,
                              mixed_summaries(plan.mixed_summaries));
    if constexpr (is_causal_within_block<V>) own_blocks_gradient();
    if constexpr (normalizes<V>)
      launch(device, e.queries.count(),
             DenominatorGradient<A>{RowFinder(e.queries), plan.rotated_queries.data,
                                    plan.grad_queries.data, e.feature_dim, plan.denominators.data,
                                    plan.grad_denominators.data});
  }

  /// The adjoint of read_out_own_blocks(), to those gradients that the plan has: a stage has none
  /// of its queries', or none of its keys'.
  void own_blocks_gradient() const {
    set_zero(device, plan.grad_keys);
    set_zero(device, plan.grad_values);
    const Panels<A> all_keys = keys(plan.rotated_keys, e.feature_dim);
    for_each_slab<A>(e.queries, [&](const Slab<A>& slab) {
      const LowerTriangle triangle = slab.triangle();
      const Panels<A> p = slab.scores(plan.scores);
      const Panels<A> t = slab.scores(plan.grad_scores);
      const Panels<A> q = slab.of(plan.rotated_queries, e.feature_dim);
      const Panels<A> u = slab.of(plan.outputs, e.value_dim);
      const bool to_keys = plan.own_products.data != nullptr;
      multiply_right_transposed(device, t, u, slab.seen(keys(plan.values, e.value_dim)));
      if (to_keys) {
        multiply_right_transposed(device, p, q, slab.seen(all_keys));
        launch(device, p.count * p.rows,
               LowerRowProducts<A>{p, t, triangle, slab.of(plan.own_products, 1)});
        scale_scores(device, own_weights(), p, slab.g);
      }
      scale_scores(device, own_weights(), t, slab.g);
      if (plan.grad_queries.data != nullptr)
        multiply_lower(device, slab.of(plan.grad_queries, e.feature_dim), t, slab.seen(all_keys),
                       triangle, Into::add);
      if (!to_keys) return;
      multiply_lower_transposed(device, slab.seen(keys(plan.grad_keys, e.feature_dim)), t, q,
                                triangle, Into::add);
      multiply_lower_transposed(device, slab.seen(keys(plan.grad_values, e.value_dim)), p, u,
                                triangle, Into::add);
    });
  }
  /// The adjoint of the own key sums p_t: dQ and dm_ii, of which a stage computes only one.
  void own_key_sums_gradient() const {
    launch(
        device, e.queries.count(),
        AddOwnKeySumQueryGradient<A>{own_weights(), plan.queries.data, plan.running_key_sums.data,
                                     plan.grad_denominators.data, e.feature_dim,
                                     plan.grad_queries.data, plan.own_products.data});
  }

  /// A gradient of features, from which dq or dk follows: it is rotated back if features are
  /// rotated, and the row that denominators contribute is added, unless finish() has done both.
  struct FeatureGradient {
    const PanelRows& rows;
    A* data;  // [rows, feature_dim]
    WeightedRow<A> added;
  };
  FeatureGradient queries_gradient() const {
    WeightedRow<A> added;
    if constexpr (mixes_key_sums<V>)
      added = {Divisor(e.readers()), plan.grad_denominators.data, plan.mixed_key_sums.data};
    if constexpr (mixes_products<V>)
      added = {Divisor(e.queries.of_block()), plan.grad_products.data, plan.key_sums.data};
    return {e.queries, plan.grad_queries.data, added};
  }
  FeatureGradient keys_gradient() const {
    return {e.keys,
            plan.grad_keys.data,
            {Divisor(e.keys.of_block()), nullptr, plan.grad_key_sums.data}};
  }
  /// Rotates it back and adds the row, in place.
  template <bool Rotates>
  void finish(const FeatureGradient& gradient) const {
    if (Rotates || gradient.added.sums != nullptr)
      turn<Rotates>(device, gradient.rows, plan.rotation, Turn::back, gradient.added, e.feature_dim,
                    gradient.data, gradient.data);
  }
  /// tensor (+)= scale J(x)^T (R^T gradient + weighted row): the adjoint of pack_features.
  void unpack_gradient(FeatureGradient gradient, A scale, const TensorView<const T, 4>& x,
                       const TensorView<T, 4>& tensor, Update update) const {
    using Map = typename V::FeatureMapType;
    constexpr bool turns_back = rotates<V> && !adds_own_key_sums;
    const Map& map = of.variant.feature_map;
    if constexpr (adds_own_key_sums) gradient.added = {};  // finished
    if constexpr (RowwiseFeatureMap<Map>) {
      finish<turns_back>(gradient);
      gather(device, gradient.rows, x, plan.row_input.data);
      launch(device, gradient.rows.count(),
             UnmapRows<Map, A>{map, scale, RowFinder(gradient.rows), plan.row_input.data,
                               x.extent[3], gradient.data, e.feature_dim, plan.grad_row.data});
      scatter<T, A>(device, gradient.rows, plan.grad_row.data, tensor, update);
    } else {
      const RowUnits<T, turns_back> units(e.feature_dim,
                                          has_aligned_rows(x) && has_aligned_rows(tensor) &&
                                              is_aligned(gradient.data) &&
                                              is_aligned(gradient.added.sums),
                                          plan.rotation.layout);
      with_update(update, [&](auto adds) {
        launch_rows(
            device, gradient.rows.count(), units.count,
            UnmapFeatures<Map, T, A, turns_back, adds.value>{
                map, scale, RowFinder(gradient.rows), RotationRows<A>(plan.rotation, units.pairs()),
                gradient.added, x, gradient.data, tensor, units});
      });
    }
  }

  /// dz~_i or, under MixedProduct, dz_b; and dQ, where own blocks add to it.
  void denominators_gradient() const {
    if constexpr (mixes_key_sums<V>) {
      weighted_row_sums(device, queries(plan.queries, e.feature_dim), plan.grad_denominators.data,
                        plan.grad_mixed_key_sums.data);
      if constexpr (adds_own_key_sums) {
        finish<rotates<V>>(queries_gradient());
        own_key_sums_gradient();
      }
    } else if constexpr (mixes_products<V>) {
      for_each_mixing([&](const Mixing<V>& m) {
        m.for_each_head([&](Index g) {  // dR = m^T C
          multiply_left_transposed(device, m.queries_of(plan.grad_products, g),
                                   m.matrix_of(plan.mixing),
                                   m.queries_of(plan.grad_denominators, g));
        });
      });
      weighted_row_sums(
          device, panels(plan.queries.data, e.key_summaries(), e.queries.of_block(), e.feature_dim),
          plan.grad_products.data, plan.grad_key_sums.data);
    }
  }

  /// Adds to the units' parts of dmix; what no query sees is skipped when those are summed.
  void mixing_gradient(const BlockSums<A>& from) const {
    for_each_mixing([&](const Mixing<V>& m) {
      const Panels<A> to =
          m.gradient(plan.grad_mixing).column_range(0, (std::min)(m.keys.blocks, from.blocks));
      const auto add = [&](const BlockRows<A>& grad, const BlockRows<A>& rows) {
        multiply_right_transposed(device, to, m.query_blocks(grad), m.key_blocks(rows), Into::add);
      };
      add(mixed_gradients().summaries, from.summaries);
      if constexpr (mixes_key_sums<V>) add(mixed_gradients().key_sums, from.key_sums);
      if constexpr (mixes_products<V>)
        m.for_each_head([&](Index g) {  // C R^T
          multiply_right_transposed(device, to, m.queries_of(plan.grad_denominators, g),
                                    m.queries_of(plan.products, g), Into::add);
        });
    });
  }

  /// dS_b = sum_i m_ib dS~_i and dz_b of every key block.
  void mix_blocks_gradient(const BlockSums<A>& from, const BlockSums<A>& to) const {
    for_each_mixing([&](const Mixing<V>& m) {
      const auto mix_rows = [&](const BlockRows<A>& rows, const BlockRows<A>& grad) {
        const Into into = m.matrix == 0 ? Into::overwrite : Into::add;
        multiply_lower_transposed(device, m.key_blocks(grad), m.matrix_of(plan.mixing),
                                  m.query_blocks(rows), m.triangle(), into);
      };
      mix_rows(from.summaries, to.summaries);
      if constexpr (mixes_key_sums<V>) mix_rows(from.key_sums, to.key_sums);
    });
  }

  /// dv from dV = K^r dS_b, and dk from dK^r = V dS_b^T and dz_b.
  void summarize_blocks_gradient(const GradientViews<T>& gradients, Update update) const {
    const Panels<A> grad_summaries = key_summaries(plan.grad_summaries);
    // The own blocks' contributions are already there.
    const Into into = is_causal_within_block<V> ? Into::add : Into::overwrite;
    if (gradients.value.wanted) {
      multiply(device, keys(plan.grad_values, e.value_dim), keys(plan.rotated_keys, e.feature_dim),
               grad_summaries, into);
      scatter<T, A>(device, e.keys, plan.grad_values.data, gradients.value.view, update);
    }
    if (!gradients.key.wanted) return;
    const Panels<A> grad_keys = keys(plan.grad_keys, e.feature_dim);
    multiply_right_transposed(device, grad_keys, keys(plan.values, e.value_dim), grad_summaries,
                              into);
    const auto rows = keys_gradient();
    if constexpr (adds_own_key_sums) {
      finish<rotates<V>>(rows);
      launch(device, grad_keys.count * grad_keys.cols,
             AddOwnKeySumKeyGradient<A>{own_weights(), plan.queries.data,
                                        plan.grad_denominators.data, grad_keys});
    }
    unpack_gradient(rows, A(1), of.k, gradients.key.view, update);
  }
};

/// Calls f(pass, ...) for the parts of a call's batch: with cut, a function from a tensor to the
/// part's items, or of a backward pass with dy and gradients, and then writes dmix.
template <template <class, class> class PassCall, class V, class T, class F>
void run_in_parts(const PassCall<V, T>& call, const F& f) {
  if (call.problem.shape.empty()) return;
  const auto largest = plan_of_parts<CublasPath::Plan<V, T>>(call);
  const BorrowedCublas cublas(call.device, largest.cublas);
  const auto run = [&](const auto& part, const auto&... of_part) {
    f(CublasPass<V, T>{part}, of_part...);
  };
  if constexpr (PassCall<V, T>::is_backward)
    run_backward_in_parts(call, largest, run);
  else
    for_each_part(call, largest, run);
}

template <class Dims, class V, class T>
void CublasPath::forward(const ForwardCall<V, T>& call) {
  run_in_parts(call, [&](const auto& pass, const auto& cut) { pass.forward(cut(call.y)); });
}

template <class Dims, class V, class T>
void CublasPath::backward(const BackwardCall<V, T>& call) {
  run_in_parts(call, [&](const auto& pass, const auto& dy, const auto& gradients) {
    pass.backward(call.state.data != nullptr, dy, gradients, call.update);
  });
}

}  // namespace cuda

MHLA_NAMESPACE_END
