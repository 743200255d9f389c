// SPDX-License-Identifier: MIT
// What HeadParallel does on the host besides talking to other ranks.
#pragma once

#include <mhla/cpu/host_kernels.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>

MHLA_NAMESPACE_BEGIN

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
  using Kernels = cpu::HostKernels;
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
