// SPDX-License-Identifier: MIT
// What SequenceParallel and HeadParallel do on the host besides stages and talking to other ranks.
#pragma once

#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/sums_layout.hpp>

MHLA_NAMESPACE_BEGIN

/// What they do to tensors. On a GPU cuda::StageKernels and cuda::HeadKernels do.
class HostKernels {
 public:
  /// Throws unless what a call touches has addresses.
  static void require_memory(const Footprint& memory) { memory.require_addresses(); }

  template <class From, class To, int Rank>
  static void copy_tensor(const ExecutorRef& executor, const TensorView<From, Rank>& from,
                          const TensorView<To, Rank>& to) {
    const Index from_step = from.stride[Rank - 1];
    const Index to_step = to.stride[Rank - 1];
    for_each_row(executor, to, [&](Index first, Index columns) {
      const From* const source = &from.element(first);
      To* const target = &to.element(first);
      if (from_step == 1 && to_step == 1)
        std::copy_n(source, columns, target);
      else
        for (Index c = 0; c < columns; ++c) target[c * to_step] = source[c * from_step];
    });
  }
  /// Sets it to 0.
  template <class T, int Rank>
  static void clear_tensor(const ExecutorRef& executor, const TensorView<T, Rank>& tensor) {
    for_each_row(executor, tensor, [&](Index first, Index columns) {
      T* const row = &tensor.element(first);
      for (Index c = 0; c < columns; ++c) row[c * tensor.stride[Rank - 1]] = T{};
    });
  }

  /// Copies these tokens, or all, of x [batch, heads, tokens, dim] to a message, in this order.
  template <class T>
  static void pack(const ExecutorRef& executor, const TensorView<const T, 4>& x,
                   const std::vector<Index>* tokens, T* message) {
    for_each_sent(executor, x, tokens, message, [](const T& element, T& sent) { sent = element; });
  }
  /// The other way round.
  template <class T>
  static void unpack(const ExecutorRef& executor, const T* message, const TensorView<T, 4>& x,
                     const std::vector<Index>* tokens, Update update) {
    for_each_sent(executor, x, tokens, message, [&](T& element, const T& received) {
      if (update == Update::overwrite)
        element = received;
      else
        store(element, load(element) + load(received));
    });
  }

  /// Rounds rows of sums to a message.
  template <class A>
  static void round_rows(const ExecutorRef& executor, const SumsLayout& of,
                         const TensorView<A, 2>& rows, std::byte* message) {
    for_each_sum(
        executor, of, rows, message,
        [](A& sum, BFloat16& sent) { store(sent, static_cast<float>(sum)); },
        [](A& sum, A& sent) { sent = sum; });
  }
  /// The other way round.
  template <class A>
  static void widen_rows(const ExecutorRef& executor, const SumsLayout& of, std::byte* message,
                         const TensorView<A, 2>& rows) {
    for_each_sum(
        executor, of, rows, message,
        [](A& sum, BFloat16& received) { sum = static_cast<A>(load(received)); },
        [](A& sum, A& received) { sum = received; });
  }

 private:
  // Calls visit(first element, number of elements) for every row.
  template <class T, int Rank, class Visit>
  static void for_each_row(const ExecutorRef& executor, const TensorView<T, Rank>& tensor,
                           const Visit& visit) {
    const Index columns = tensor.extent[Rank - 1];
    const Index rows = columns == 0 ? 0 : tensor.size() / columns;
    executor.parallel_for(rows, [&](Index row, Index) { visit(row * columns, columns); });
  }
  // Calls visit(element, its place in the message).
  template <class T, class Sent, class Visit>
  static void for_each_sent(const ExecutorRef& executor, const TensorView<T, 4>& x,
                            const std::vector<Index>* tokens, Sent* message, const Visit& visit) {
    const Index heads = x.extent[1];
    const Index dim = x.extent[3];
    const Index count = tokens == nullptr ? x.extent[2] : static_cast<Index>(tokens->size());
    executor.parallel_for(x.extent[0] * heads * count, [&](Index i, Index) {
      const Index t = i % count;
      const Index token = tokens == nullptr ? t : (*tokens)[static_cast<std::size_t>(t)];
      T* const row = &x(i / count / heads, i / count % heads, token, 0);
      for (Index c = 0; c < dim; ++c) visit(row[c * x.stride[3]], message[i * dim + c]);
    });
  }
  // Calls summary(number, its place), or key_sum(..), for all numbers of rows that travel rounded:
  // of each row all S, then all z.
  template <class A, class Summary, class KeySum>
  static void for_each_sum(const ExecutorRef& executor, const SumsLayout& of,
                           const TensorView<A, 2>& rows, std::byte* message, const Summary& summary,
                           const KeySum& key_sum) {
    const Index bytes = of.bytes<A>(Wire::bfloat16);
    executor.parallel_for(rows.extent[0], [&](Index r, Index) {
      A* row = &rows(r, 0);
      auto* rounded = reinterpret_cast<BFloat16*>(message + r * bytes);
      auto* exact = reinterpret_cast<A*>(message + (r + 1) * bytes) - of.count * of.key_sum;
      for (Index i = 0; i < of.count; ++i, row += of.summary + of.key_sum) {
        for (Index c = 0; c < of.summary; ++c) summary(row[c], *rounded++);
        for (Index c = 0; c < of.key_sum; ++c) key_sum(row[of.summary + c], *exact++);
      }
    });
  }
};

/// Any variant's heads on CPUs. dmix that heads share is rank 0's: it gets the partial sums of all
/// heads, and adds them up in the order of one process.
template <AttentionVariant V, StorageScalar T>
class HostHeads {
  using A = Accumulator<T>;
  using L = cpu::LoweredOf<V>;

 public:
  using Variant = V;
  using Scalar = T;
  using Tokens = std::vector<Index>;
  using Kernels = HostKernels;
  /// How ranks compare what the variant borrows.
  static constexpr Borrowed compared = Borrowed::contents;
  /// Whether E runs calls.
  template <class E>
  static constexpr bool runs_on = Executor<E>;

  /// Of the whole call and of this rank's heads.
  HostHeads(const V& attention, const Problem& whole, const Problem& own, Index rank)
      : attention_(attention), whole_(whole), own_(own), rank_(rank) {}

  /// Of some blocks of a list.
  template <class List>
  static Tokens tokens(const List& list, const BlockRange& blocks) {
    return tokens_of(list, blocks);
  }

  /// Whether backward writes dmix.
  bool gives_dmix() const { return !own_.shape.empty() && (!sums_over_heads() || rank_ == 0); }

  template <class E>
  Index forward_workspace_size(const E& executor) const {
    return mhla::forward_workspace_size<T>(attention_, own_.shape, executor);
  }
  template <class E>
  Index backward_workspace_size(const E& executor) const {
    Arena arena;
    lay_out(arena, executor);
    return arena.used();
  }

  /// Overwrites dq, dk, dv; `update` is dmix's. On all ranks together.
  template <class E, class C>
  void backward(const E& executor, const C& communicator, const OperandViews<T>& x,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients, Update update,
                WorkspaceView workspace) const {
    Arena arena(workspace);
    Memory memory = lay_out(arena, executor);
    std::optional<cpu::BackwardPlan<L, A>>& plan = memory.plan;
    cpu::BackwardRequest<L, T> request{dy, gradients, Update::overwrite};
    const auto operands = [&] {
      return cpu::Operands<L, T>{x, cpu::lower(attention_), plan->plan};
    };
    if (plan) {
      plan->plan.pack_mixing(x.mix);
      cpu::run_backward(operands(), request, *plan, {}, executor);
      if constexpr (requires { attention_.masks; }) {
        cpu::clear_masked(attention_.masks, gradients);
      }
    } else {
      cpu::set_zero(gradients.query.view);
      cpu::set_zero(gradients.key.view);
      cpu::set_zero(gradients.value.view);
    }
    if (!gradients.mix.wanted) return;
    if (sums_over_heads() && !whole_.shape.empty()) gather_sums(communicator, memory);
    if (!gives_dmix()) return;
    request.update = update;
    cpu::write_mixing_gradient(operands(), request, *plan, executor);
  }

 private:
  struct Memory {
    std::optional<cpu::BackwardPlan<L, A>> plan;
    Span<A> sums;  // of dmix, of all heads: rank 0's, where they share a matrix
  };

  // Whether dmix is a sum over the heads of several ranks.
  bool sums_over_heads() const { return whole_.shape.mix_heads == 1; }
  cpu::PartialSums all_sums() const {
    return cpu::BackwardPlan<L, A>::partial_sums(attention_, whole_);
  }
  template <class E>
  Memory lay_out(Arena& arena, const E& executor) const {
    Memory memory;
    if (sums_over_heads() && rank_ == 0 && !whole_.shape.empty()) {
      const cpu::PartialSums all = all_sums();
      memory.sums = arena.take<A>(checked_mul(all.count(), all.size));
    }
    if (!own_.shape.empty())
      memory.plan.emplace(arena, attention_, own_, executor,
                          cpu::multiplies_pairs_backward<T>(attention_, own_));
    return memory;
  }
  // Rank 0 gets the partial sums of all heads, in the order in which one process adds them up.
  template <class C>
  void gather_sums(const C& communicator, Memory& memory) const {
    const cpu::PartialSums all = all_sums();
    const Index ranks = communicator.size();
    const Shares shares = equal_shares(all.kv_heads, ranks);
    const auto part = [&](Index group, Index kv_heads, Index first, Index count) -> Part {
      const Index bytes = all.size * static_cast<Index>(sizeof(A));
      return {(group * kv_heads + first) * bytes, count * bytes};
    };
    const Index own = own_.shape.kv_heads;
    for (Index group = 0; group < all.sequence_groups; ++group) {
      Parts to(ranks);
      Parts from(ranks);
      to[0] = part(group, own, 0, own);
      for (Index r = 0; r < ranks && rank_ == 0; ++r) {
        const BlockRange& heads = shares[static_cast<std::size_t>(r)];
        from[r] = part(group, all.kv_heads, heads.first, heads.count);
      }
      communicator.all_to_all(memory.plan ? memory.plan->grad_mixing.data : nullptr, to,
                              memory.sums.data, from);
    }
    if (rank_ != 0 || !memory.plan) return;
    memory.plan->partials = all;
    memory.plan->grad_mixing = memory.sums;
    memory.plan->plan.problem = whole_;
  }

  V attention_;
  Problem whole_;
  Problem own_;
  Index rank_;
};

MHLA_NAMESPACE_END
