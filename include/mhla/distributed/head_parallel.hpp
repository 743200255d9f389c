// SPDX-License-Identifier: MIT
// A sequence shared out by tokens, computed by heads: what ranks tell each other is tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed/agreement.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/heads_exchange.hpp>
#include <mhla/distributed/local_call.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/block_list.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>
#include <optional>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// Attention over a sequence of which each rank has some tokens, as SequenceParallel, but computed
/// by heads: an all-to-all gives each rank all tokens of some kv heads and of the query heads that
/// share them, another one takes results back. Any variant, on CPUs; at most kv_heads ranks
/// compute.
///
/// Shares are those of SequenceParallel. A padded batch's masks, and a packed one's offsets, are
/// those of the whole batch on every rank. Results have the bits of one process's forward_into and
/// backward_into; but what Update::accumulate adds to in 16 bits is rounded once more.
///
/// dmix holds what a rank's heads give: the matrices of its heads; rank 0 has one that heads share.
/// What is not a rank's is 0 with Update::overwrite and untouched with Update::accumulate. Summed
/// over ranks it is the gradient.
///
/// Calls and errors as in SequenceParallel.
template <AttentionVariant V, StorageScalar T, Communicator C>
class HeadParallel {
  using A = Accumulator<T>;
  using L = cpu::LoweredOf<V>;

 public:
  /// As SequenceParallel's.
  HeadParallel(const V& attention, const Shape& whole, const C& communicator, Shares queries,
               Shares keys = {})
      : communicator_(&communicator),
        attention_(attention),
        whole_(whole),
        whole_problem_(agreed_problem(queries, keys.empty() ? queries : keys)),
        query_tokens_(query_list(attention, whole_problem_), queries),
        key_tokens_(key_list(attention, whole_problem_), keys.empty() ? queries : keys),
        exchange_(communicator, equal_shares(whole.kv_heads, communicator.size())),
        own_(own_problem()),
        local_(whole) {
    local_.query_tokens = static_cast<Index>(query_tokens_[communicator.rank()].size());
    local_.key_tokens = static_cast<Index>(key_tokens_[communicator.rank()].size());
  }

  /// The shape of this rank's tensors: tokens are those of its shares, mix is whole.
  const Shape& local_shape() const { return local_; }

  /// Bytes of workspace that forward takes on this rank: exact.
  template <Executor E>
  Index forward_workspace_size(const E& executor) const {
    Arena arena;
    lay_out_forward(arena, executor);
    return arena.used();
  }
  /// The same of backward.
  template <Executor E>
  Index backward_workspace_size(const E& executor) const {
    Arena arena;
    lay_out(arena, true);
    lay_out_units(arena, executor);
    return arena.used();
  }

  /// y of this rank's tokens.
  template <Executor E>
  void forward(const E& executor, const OperandViews<T>& x, const TensorView<T, 4>& y,
               WorkspaceView workspace) const {
    Arena arena(workspace);
    const Memory memory = Agreement("forward").settle(*communicator_, [&] {
      require_local(local_, x);
      require_forward(attention_, local_, x, y, workspace, {});
      require_workspace(workspace, forward_workspace_size(executor), "mhla::HeadParallel",
                        "forward_workspace_size says how many it takes");
      return lay_out_forward(arena, executor);
    });
    exchange_.run(executor, To::heads, operands(x, memory), Update::overwrite, memory.buffer);
    forward_into(attention_, executor, memory.q, memory.k, memory.v,
                 mix_of_heads(executor, x.mix, memory.mix), memory.y, memory.scratch);
    exchange_.run(executor, To::tokens, Tensors<T>{{y, memory.y, &query_tokens_}},
                  Update::overwrite, memory.buffer);
  }

  /// The gradients of this rank's tokens, and of mix as said above. All ranks want the same ones.
  template <Executor E>
  void backward(const E& executor, const OperandViews<T>& x, const TensorView<const T, 4>& dy,
                const GradientViews<T>& gradients, Update update, WorkspaceView workspace) const {
    const auto& [dq, dk, dv, dmix] = gradients;
    Agreement agreement("backward");
    agreement.add("whether dq is wanted", dq.wanted)
        .add("whether dk is wanted", dk.wanted)
        .add("whether dv is wanted", dv.wanted)
        .add("whether dmix is wanted", dmix.wanted);
    Arena arena(workspace);
    const Memory memory = agreement.settle(*communicator_, [&] {
      require_local(local_, x);
      require_backward(attention_, local_, x, dy, gradients, workspace, {});
      require_workspace(workspace, backward_workspace_size(executor), "mhla::HeadParallel",
                        "backward_workspace_size says how many it takes");
      return lay_out(arena, true);
    });
    Tensors<T> to_heads = operands(x, memory);
    to_heads.push_back({writable(dy), memory.y, &query_tokens_});
    exchange_.run(executor, To::heads, to_heads, Update::overwrite, memory.buffer);

    Tensors<T> to_tokens;
    cpu::BackwardRequest<L, T> request{memory.y, {}, Update::overwrite};
    const auto want = [&](const GradientView<T, 4>& gradient, const TensorView<T, 4>& of_heads,
                          const TokenShares& tokens, GradientView<T, 4>& requested) {
      if (!gradient.wanted) return;
      requested = of_heads;
      to_tokens.push_back({gradient.view, of_heads, &tokens});
    };
    want(dq, memory.dq, query_tokens_, request.gradients.query);
    want(dk, memory.dk, key_tokens_, request.gradients.key);
    want(dv, memory.dv, key_tokens_, request.gradients.value);
    request.gradients.mix.wanted = dmix.wanted;
    for (const auto& tensor : to_tokens) clear_tensor(executor, tensor.of_heads);

    Backward backward = lay_out_units(arena, executor);
    const TensorView<const A, 3> mix = mix_of_heads(executor, x.mix, memory.mix);
    const auto operands_of = [&](const auto& plan) {
      return cpu::Operands<L, T>{cpu::lower(attention_), plan, memory.q, memory.k, memory.v, mix};
    };
    if (backward) {
      backward->plan.pack_mixing(mix);
      cpu::run_backward(operands_of(backward->plan), request, *backward, {}, executor);
      if constexpr (requires { attention_.masks; }) {
        cpu::clear_masked(attention_.masks.query, request.gradients.query.view);
        cpu::clear_masked(attention_.masks.key, request.gradients.key.view);
        cpu::clear_masked(attention_.masks.key, request.gradients.value.view);
      }
    }
    if (dmix.wanted && sums_over_heads() && !whole_.empty()) gather_sums(backward, memory.sums);
    exchange_.run(executor, To::tokens, to_tokens, update, memory.buffer);
    if (!dmix.wanted) return;

    if (update == Update::overwrite) clear_tensor(executor, dmix.view);
    if (!backward || (sums_over_heads() && communicator_->rank() != 0)) return;
    request.update = update;
    request.gradients.mix = whole_.mix_per_item() ? memory.dmix : matrices(dmix.view, 0);
    if (whole_.mix_per_item())
      for (Index n = 0; n < whole_.batch; ++n)
        copy_tensor(executor, matrices(dmix.view, n), item_of(memory.dmix, n));
    cpu::write_mixing_gradient(operands_of(backward->plan), request, *backward, executor);
    if (whole_.mix_per_item())
      for (Index n = 0; n < whole_.batch; ++n)
        copy_tensor(executor, item_of(memory.dmix, n), matrices(dmix.view, n));
  }

 private:
  using Backward = std::optional<cpu::BackwardPlan<L, A>>;
  struct Memory {
    TensorView<T, 4> q, k, v, y;  // [batch, this rank's heads, all tokens, dim]; y or dy
    TensorView<T, 4> dq, dk, dv;
    TensorView<A, 3> mix, dmix;  // of this rank's heads, if every item has its own
    Span<A> sums;                // of dmix, of all heads: rank 0's, where they share a matrix
    Span<T> buffer;
    WorkspaceView scratch;  // of forward_into
  };

  Problem agreed_problem(const Shares& queries, const Shares& keys) const {
    Agreement agreement("head_parallel");
    add_call<T>(agreement, attention_, whole_, queries, keys);
    return agreement.settle(*communicator_, [&] {
      const Problem problem = checked_problem(attention_, whole_);
      const Index ranks = communicator_->size();
      require_shares("queries", queries, query_list(attention_, problem).num_blocks(), ranks);
      require_shares("keys", keys, key_list(attention_, problem).num_blocks(), ranks);
      if constexpr (requires { attention_.masks; }) {  // which have been checked by now
        fingerprint::Hash masks;
        fingerprint::add_masks(masks, attention_.masks, whole_, Borrowed::contents);
        agreement.add_hash("mask", masks.value());
      }
      return problem;
    });
  }
  // The call of this rank's heads.
  Problem own_problem() const {
    Problem problem = whole_problem_;
    const Index rank = communicator_->rank();
    problem.shape.heads = exchange_.heads_of(rank, whole_.heads).count;
    problem.shape.kv_heads = exchange_.heads_of(rank, whole_.kv_heads).count;
    if (whole_.mix_heads != 1) problem.shape.mix_heads = problem.shape.heads;
    if (whole_.mix_per_item()) problem.shape.mix_heads *= whole_.batch;
    return problem;
  }

  // Whether dmix is a sum over the heads of several ranks.
  bool sums_over_heads() const { return whole_.mix_heads == 1; }
  cpu::PartialSums all_sums() const {
    return cpu::BackwardPlan<L, A>::partial_sums(attention_, whole_problem_);
  }
  // Rank 0 gets the partial sums of all heads, in the order in which one process adds them up.
  void gather_sums(Backward& backward, Span<A> gathered) const {
    const cpu::PartialSums all = all_sums();
    const Index ranks = communicator_->size();
    const Index rank = communicator_->rank();
    const auto part = [&](Index group, Index kv_heads, Index first, Index count) -> Part {
      const Index bytes = all.size * static_cast<Index>(sizeof(A));
      return {(group * kv_heads + first) * bytes, count * bytes};
    };
    const Index own = own_.shape.kv_heads;
    for (Index group = 0; group < all.sequence_groups; ++group) {
      std::vector<Part> to(static_cast<std::size_t>(ranks));
      std::vector<Part> from(static_cast<std::size_t>(ranks));
      to[0] = part(group, own, 0, own);
      for (Index r = 0; r < ranks && rank == 0; ++r) {
        const BlockRange heads = exchange_.heads_of(r, whole_.kv_heads);
        from[static_cast<std::size_t>(r)] = part(group, all.kv_heads, heads.first, heads.count);
      }
      communicator_->all_to_all(backward ? backward->grad_mixing.data : nullptr, {to.data(), ranks},
                                gathered.data, {from.data(), ranks});
    }
    if (rank != 0 || !backward) return;
    backward->partials = all;
    backward->grad_mixing = gathered;
    backward->plan.problem = whole_problem_;
  }

  // The matrices of this rank's heads in one of mix's shape: those of an item, if each has its own.
  template <class M>
  TensorView<M, 3> matrices(TensorView<M, 3> all, Index item) const {
    if (sums_over_heads()) return all;
    const BlockRange heads = exchange_.heads_of(communicator_->rank(), whole_.heads);
    if (all.data != nullptr) all.data += (item * whole_.heads + heads.first) * all.stride[0];
    all.extent[0] = heads.count;
    return all;
  }
  TensorView<A, 3> item_of(TensorView<A, 3> own, Index item) const {
    own.extent[0] = own_.shape.heads;
    if (own.data != nullptr) own.data += item * own.extent[0] * own.stride[0];
    return own;
  }
  template <class E>
  TensorView<const A, 3> mix_of_heads(const E& executor, const TensorView<const A, 3>& mix,
                                      const TensorView<A, 3>& copy) const {
    if (!whole_.mix_per_item()) return matrices(mix, 0);
    for (Index n = 0; n < whole_.batch; ++n)
      copy_tensor(executor, matrices(mix, n), item_of(copy, n));
    return copy;
  }

  // An exchange only reads what it sends.
  static TensorView<T, 4> writable(const TensorView<const T, 4>& x) {
    TensorView<T, 4> view{const_cast<T*>(x.data), {}, {}};
    std::copy_n(x.extent, 4, view.extent);
    std::copy_n(x.stride, 4, view.stride);
    return view;
  }
  Tensors<T> operands(const OperandViews<T>& x, const Memory& memory) const {
    return {{writable(x.q), memory.q, &query_tokens_},
            {writable(x.k), memory.k, &key_tokens_},
            {writable(x.v), memory.v, &key_tokens_}};
  }

  static TensorView<T, 4> take_tensor(Arena& arena, Index batch, Index heads, Index tokens,
                                      Index dim) {
    const Index size = checked_mul(checked_mul(batch, heads), checked_mul(tokens, dim));
    return make_view(arena.take<T>(size).data, batch, heads, tokens, dim);
  }
  TensorView<A, 3> take_matrices(Arena& arena) const {
    const Shape& s = own_.shape;
    if (!whole_.mix_per_item()) return {};
    const Index size = checked_mul(s.mix_heads, checked_mul(s.mix_query_blocks, s.mix_key_blocks));
    return make_view(arena.take<A>(size).data, s.mix_heads, s.mix_query_blocks, s.mix_key_blocks);
  }
  Memory lay_out(Arena& arena, bool backward) const {
    const Shape& s = own_.shape;
    const auto queries = [&](Index dim) {
      return take_tensor(arena, s.batch, s.heads, s.query_tokens, dim);
    };
    const auto keys = [&](Index dim) {
      return take_tensor(arena, s.batch, s.kv_heads, s.key_tokens, dim);
    };
    Memory memory;
    memory.q = queries(s.key_dim);
    memory.k = keys(s.key_dim);
    memory.v = keys(s.value_dim);
    memory.y = queries(s.value_dim);
    memory.mix = take_matrices(arena);
    // Of the messages, the operands' are the longest: with dy, or alone longer than y.
    const Index all = checked_add(buffer_size(local_), buffer_size(s));
    memory.buffer = arena.take<T>(all);
    if (!backward) return memory;
    memory.dq = queries(s.key_dim);
    memory.dk = keys(s.key_dim);
    memory.dv = keys(s.value_dim);
    memory.dmix = take_matrices(arena);
    if (sums_over_heads() && communicator_->rank() == 0 && !whole_.empty()) {
      const cpu::PartialSums all_heads = all_sums();
      memory.sums = arena.take<A>(checked_mul(all_heads.count(), all_heads.size));
    }
    return memory;
  }
  // Elements of q, k, v and y of a shape.
  static Index buffer_size(const Shape& s) {
    const Index dims = checked_add(s.key_dim, s.value_dim);
    return checked_mul(s.batch,
                       checked_mul(dims, s.heads * s.query_tokens + s.kv_heads * s.key_tokens));
  }
  template <class E>
  Memory lay_out_forward(Arena& arena, const E& executor) const {
    Memory memory = lay_out(arena, false);
    const Index bytes = mhla::forward_workspace_size<T>(attention_, own_.shape, executor);
    memory.scratch = {arena.take<std::byte>(bytes).data, bytes};
    return memory;
  }
  template <class E>
  Backward lay_out_units(Arena& arena, const E& executor) const {
    if (own_.shape.empty()) return {};
    return cpu::BackwardPlan<L, A>(arena, attention_, own_, executor,
                                   cpu::multiplies_pairs_backward<T>(attention_));
  }

  const C* communicator_;
  V attention_;
  Shape whole_;
  Problem whole_problem_;
  TokenShares query_tokens_;
  TokenShares key_tokens_;
  HeadsExchange<C> exchange_;
  Problem own_;
  Shape local_;
};

/// HeadParallel of tensors of T, made as sequence_parallel makes the other.
template <StorageScalar T, AttentionVariant V, Communicator C>
HeadParallel<V, T, C> head_parallel(const V& attention, const Shape& whole, const C& communicator,
                                    Shares queries, Shares keys = {}) {
  return {attention, whole, communicator, std::move(queries), std::move(keys)};
}

/// \}

MHLA_NAMESPACE_END
