// SPDX-License-Identifier: MIT
// A rank's part of a call: what its views have to be, and copies between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/any_argument.hpp>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/distributed/agreement.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

// Overloads that say why a call of SequenceParallel or HeadParallel does not compile.
class ParallelErrors {
 public:
  MHLA_ANY_CALL(static void forward, { explain<Given...>(); })
  MHLA_ANY_CALL(static void backward, { explain<Given...>(); })
  MHLA_ANY_CALL(static Index forward_workspace_size, {
    explain<Given...>();
    return {};
  })
  MHLA_ANY_CALL(static Index backward_workspace_size, {
    explain<Given...>();
    return {};
  })

 private:
  template <class... X>
  static Index explain() {
    static_assert(no_such_call<X...>,
                  "mhla: call forward(executor, {q, k, v, mix}, y, workspace) or "
                  "backward(executor, {q, k, v, mix}, dy, {dq, dk, dv, dmix}, update, "
                  "workspace), with mhla::skip for a gradient that is not wanted, and sizes by "
                  "forward_workspace_size(executor) or backward_workspace_size(executor): on "
                  "GPUs the executor is an mhla::CudaDevice");
    return 0;
  }
};

// The template arguments of SequenceParallel and HeadParallel.
template <class S, class C>
concept PartsOfRanks = Communicator<C> && requires {
  typename S::Variant;
  typename S::Scalar;
};
// Their base where the arguments are others: fails with one sentence.
template <class S, class C>
struct NoPartsOfRanks {
  static_assert(no_such_call<S, C>,
                "mhla: SequenceParallel takes Stages, HeadParallel HostHeads, and both a "
                "Communicator: call sequence_parallel<T>(attention, shape, communicator, shares) "
                "or head_parallel, which returns one");
  MHLA_ANY_CALL(NoPartsOfRanks, {})
};

// Fails with one sentence where a call of sequence_parallel or head_parallel does not compile.
template <class... X>
AnyArgument explain_parallel() {
  static_assert(no_such_call<X...>,
                "mhla: call sequence_parallel<T>(attention, shape, communicator, queries, keys, "
                "wire), head_parallel<T>(attention, shape, communicator, queries, keys), or the "
                "same with cuda_: T is the scalar of the tensors, shape an mhla::Shape of the "
                "whole sequence, queries and keys are mhla::Shares");
  return {};
}

/// What ranks have in common: types, values, a packed batch's offsets, the whole shape, all shares.
template <class T, AttentionVariant V>
void add_call(Agreement& agreement, const V& attention, const Shape& whole, const Shares& queries,
              const Shares& keys, Borrowed compared) {
#if defined(_MSC_VER)
  agreement.add_text("type", __FUNCSIG__);
#else
  agreement.add_text("type", __PRETTY_FUNCTION__);
#endif
  agreement.add("batch", whole.batch)
      .add("heads", whole.heads)
      .add("kv_heads", whole.kv_heads)
      .add("query_tokens", whole.query_tokens)
      .add("key_tokens", whole.key_tokens)
      .add("key_dim", whole.key_dim)
      .add("value_dim", whole.value_dim)
      .add("mix_heads", whole.mix_heads)
      .add("mix_query_blocks", whole.mix_query_blocks)
      .add("mix_key_blocks", whole.mix_key_blocks)
      .add("precision", static_cast<Index>(attention.precision))
      .add("path", static_cast<Index>(attention.path));
  const auto add_geometry = [&](const char* name, const auto& blocks) {
    fingerprint::Hash hash;
    fingerprint::add(hash, blocks);
    agreement.add_hash(name, hash.value());
  };
  add_geometry("blocks", attention.blocks);
  add_geometry("key_blocks", attention.key_blocks);
  fingerprint::Hash values;
  fingerprint::add_values(values, attention, compared);
  agreement.add_hash("feature map, normalizer, rotation, mixing or scale", values.value());
  if constexpr (requires { attention.offsets; }) {
    fingerprint::Hash offsets;
    for (const auto offset : attention.offsets) offsets.add(static_cast<std::uint64_t>(offset));
    agreement.add_hash("list of offsets", offsets.value());
  }
  const auto add_shares = [&](const char* name, const Shares& shares) {
    fingerprint::Hash hash;
    for (const BlockRange& share : shares) fingerprint::add(hash, share);
    agreement.add_hash(name, hash.value());
  };
  add_shares("shares of query blocks", queries);
  add_shares("shares of key blocks", keys);
}

/// Throws ShapeError unless operands are those of a rank with tensors of `local`.
template <class T>
void require_local(const Shape& local, const OperandViews<T>& x) {
  constexpr const char* rule = "a rank's tensors have the tokens of its blocks";
  require_extents(x.q, "q", local.batch, local.heads, local.query_tokens, local.key_dim, rule);
  require_extents(x.k, "k", local.batch, local.kv_heads, local.key_tokens, local.key_dim, rule);
  require_extents(x.v, "v", local.batch, local.kv_heads, local.key_tokens, local.value_dim, rule);
  constexpr const char* all_of_mix = "every rank has all of mix";
  require_extent("mix", "heads", x.mix.extent[0], local.mix_heads, all_of_mix);
  require_extent("mix", "query blocks", x.mix.extent[1], local.mix_query_blocks, all_of_mix);
  require_extent("mix", "key blocks", x.mix.extent[2], local.mix_key_blocks, all_of_mix);
}

/// Calls visit(a, b) with the first element of each row of two tensors of the same extents.
template <class Executor, class A, class B, int Rank, class Visit>
void for_each_row(const Executor& executor, const TensorView<A, Rank>& a,
                  const TensorView<B, Rank>& b, const Visit& visit) {
  const Index columns = a.extent[Rank - 1];
  const Index rows = columns == 0 ? 0 : a.size() / columns;
  ExecutorRef(executor).parallel_for(
      rows, [&](Index row, Index) { visit(&a.element(row * columns), &b.element(row * columns)); });
}

/// Copies a tensor.
template <class Executor, class From, class To, int Rank>
void copy_tensor(const Executor& executor, const TensorView<From, Rank>& from,
                 const TensorView<To, Rank>& to) {
  const Index columns = to.extent[Rank - 1];
  const Index from_step = from.stride[Rank - 1];
  const Index to_step = to.stride[Rank - 1];
  for_each_row(executor, from, to, [&](const From* source, To* target) {
    if (from_step == 1 && to_step == 1)
      std::copy_n(source, columns, target);
    else
      for (Index c = 0; c < columns; ++c) target[c * to_step] = source[c * from_step];
  });
}

/// Sets a tensor to 0.
template <class Executor, class T, int Rank>
void clear_tensor(const Executor& executor, const TensorView<T, Rank>& tensor) {
  for_each_row(executor, tensor, tensor, [&](T* row, T*) {
    for (Index c = 0; c < tensor.extent[Rank - 1]; ++c) row[c * tensor.stride[Rank - 1]] = T{};
  });
}

MHLA_NAMESPACE_END
