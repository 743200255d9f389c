// SPDX-License-Identifier: MIT
// A sequence divided by tokens, computed by heads, as by DeepSpeed-Ulysses (arXiv 2309.14509).
#pragma once

#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed/agreement.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// A rank's heads: `own` is the call's problem with these alone.
template <AttentionVariant V>
struct OwnHeads {
  V attention;
  Problem whole;
  Problem own;
  Index rank;
};

// Any variant's heads on CPUs. dmix that heads share is rank 0's: it gets the partial sums of all
// heads, and adds them up in the order of one process.
template <AttentionVariant V, StorageScalar T>
class HostHeads {
  using A = Accumulator<T>;
  using L = cpu::LoweredOf<V>;
  using Heads = OwnHeads<V>;

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

  /// The tokens of some blocks of a list.
  template <class List>
  static Tokens tokens(const List& list, const BlockRange& blocks) {
    return tokens_of(list, blocks);
  }

  /// Whether backward writes dmix.
  static bool gives_dmix(const Heads& heads) {
    return !heads.own.shape.empty() && (!sums_over_heads(heads) || heads.rank == 0);
  }
  static Index backward_workspace_size(const Heads& heads, const auto& executor) {
    Arena arena;
    lay_out(heads, arena, executor);
    return arena.used();
  }

  /// Overwrites dq, dk, dv; `update` is dmix's. On all ranks together.
  template <class E, class C>
  static void backward(const Heads& heads, const E& executor, const C& communicator,
                       const OperandViews<T>& x, const TensorView<const T, 4>& dy,
                       const GradientViews<T>& gradients, Update update, WorkspaceView workspace) {
    Arena arena(workspace);
    Memory memory = lay_out(heads, arena, executor);
    std::optional<cpu::Plan<L, A>>& plan = memory.plan;
    if (plan) {
      cpu::run_backward<L, T, A>(cpu::packed_operands(heads.attention, *plan, x),
                                 {dy, gradients, Update::overwrite}, {}, executor);
      if constexpr (requires { heads.attention.masks; })
        Kernels::clear_masked(executor, heads.attention.masks, gradients);
    } else {
      Kernels::clear_tensor(executor, gradients.query.view);
      Kernels::clear_tensor(executor, gradients.key.view);
      Kernels::clear_tensor(executor, gradients.value.view);
    }
    if (!gradients.mix.wanted) return;
    if (sums_over_heads(heads) && !heads.whole.shape.empty())
      gather_sums(heads, communicator, memory);
    if (!gives_dmix(heads)) return;
    cpu::write_mixing_gradient(*plan, x.mix, gradients.mix, update, executor);
  }

 private:
  struct Memory {
    std::optional<cpu::Plan<L, A>> plan;
    Span<A> sums;  // of dmix, of all heads: rank 0's, where they share a matrix
  };

  // Whether dmix is a sum over the heads of several ranks.
  static bool sums_over_heads(const Heads& heads) { return heads.whole.shape.mix_heads == 1; }
  static cpu::PartialSums<A> all_sums(const Heads& heads) {
    return cpu::Plan<L, A>::partial_sums(heads.attention, heads.whole);
  }
  static Memory lay_out(const Heads& heads, Arena& arena, const auto& executor) {
    Memory memory;
    if (sums_over_heads(heads) && heads.rank == 0 && !heads.whole.shape.empty()) {
      const cpu::PartialSums<A> all = all_sums(heads);
      memory.sums = arena.take<A>(checked_mul(all.count(), all.size));
    }
    memory.plan =
        cpu::Call<V, T>(arena, heads.attention, heads.own, executor, std::true_type()).plan;
    return memory;
  }
  // Rank 0 gets the partial sums of all heads, in the order in which one process adds them up.
  template <class C>
  static void gather_sums(const Heads& heads, const C& communicator, Memory& memory) {
    const cpu::PartialSums<A> all = all_sums(heads);
    const Index ranks = communicator.size();
    const Shares shares = equal_shares(all.kv_heads, ranks);
    const auto part = [&](Index group, Index kv_heads, const BlockRange& of) -> Part {
      const Index bytes = all.size * static_cast<Index>(sizeof(A));
      return {(group * kv_heads + of.first) * bytes, of.count * bytes};
    };
    const Index own = heads.own.shape.kv_heads;
    for (Index group = 0; group < all.sequence_groups; ++group) {
      Parts to(ranks);
      Parts from(ranks);
      to[0] = part(group, own, {0, own});
      for (Index r = 0; r < ranks && heads.rank == 0; ++r)
        from[r] = part(group, all.kv_heads, shares[static_cast<std::size_t>(r)]);
      communicator.all_to_all(memory.plan ? memory.plan->partials.sums.data : nullptr, to,
                              memory.sums.data, from);
    }
    if (heads.rank != 0 || !memory.plan) return;
    memory.plan->partials = all;
    memory.plan->partials.sums = memory.sums;
    memory.plan->problem = heads.whole;
  }
};
/// \endcond

/// Attention over a sequence of which each rank has some tokens, as SequenceParallel, but computed
/// by heads: an all-to-all gives each rank all tokens of some kv heads and of the query heads that
/// share them, another one takes results back. Any variant; at most kv_heads ranks compute.
///
/// Shares are those of SequenceParallel. A padded batch's masks, and a packed one's offsets, are
/// those of the whole batch on every rank. Results have the bits of one process's forward_into and
/// backward_into; but what Update::accumulate adds to in 16 bits is rounded once more.
///
/// dmix holds what a rank's heads give: the matrices of its heads; rank 0 has one that heads share.
/// What is not a rank's is 0 with Update::overwrite and untouched with Update::accumulate. Summed
/// over ranks it is the gradient.
///
/// Calls and errors as in SequenceParallel. H is HostHeads<V, T>, and its calls take an Executor.
/// On GPUs see cuda_head_parallel.
/// \ingroup distributed
template <class H, class C = void>
class HeadParallel {
  using V = typename H::Variant;
  using T = typename H::Scalar;
  using A = Accumulator<T>;
  using Tokens = typename H::Tokens;
  using Kernels = typename H::Kernels;
  static constexpr auto element_bytes = static_cast<Index>(sizeof(T));

 public:
  /// \cond INTERNAL
  MHLA_ANY_CALL(static void forward, { explain_member<Given...>(); })
  MHLA_ANY_CALL(static void backward, { explain_member<Given...>(); })
  MHLA_ANY_CALL(static Index forward_workspace_size, { return explain_member<Given...>(); })
  MHLA_ANY_CALL(static Index backward_workspace_size, { return explain_member<Given...>(); })
  /// \endcond

  /// As SequenceParallel's.
  HeadParallel(const V& attention, const Shape& whole, const C& communicator, Shares queries,
               Shares keys = {})
      : communicator_(&communicator),
        heads_{attention,
               agreed_problem(attention, whole, queries, keys.empty() ? queries : keys),
               {},
               communicator.rank()},
        query_tokens_(tokens_of_ranks(query_list(attention, heads_.whole), queries)),
        key_tokens_(
            tokens_of_ranks(key_list(attention, heads_.whole), keys.empty() ? queries : keys)),
        kv_heads_(equal_shares(whole.kv_heads, communicator.size())),
        local_(whole) {
    heads_.own = own_problem();
    const auto rank = static_cast<std::size_t>(communicator.rank());
    local_.query_tokens = static_cast<Index>(query_tokens_[rank].size());
    local_.key_tokens = static_cast<Index>(key_tokens_[rank].size());
  }

  /// The shape of this rank's tensors: tokens are those of its shares, mix is whole.
  const Shape& local_shape() const { return local_; }

  /// Bytes of workspace that forward takes on this rank: exact.
  Index forward_workspace_size(const RunsOn<H> auto& executor) const {
    Arena arena;
    lay_out(arena, executor, false);
    return arena.used();
  }
  /// Bytes of workspace of backward.
  Index backward_workspace_size(const RunsOn<H> auto& executor) const {
    Arena arena;
    lay_out(arena, executor, true);
    return arena.used();
  }

  /// y of this rank's tokens.
  void forward(const RunsOn<H> auto& executor, const OperandViews<T>& x, const TensorView<T, 4>& y,
               WorkspaceView workspace) const {
    Arena arena(workspace);
    const Memory memory = Agreement("forward").settle(*communicator_, [&] {
      require_local(local_, x);
      Kernels::require_memory(require_forward(heads_.attention, local_, x, y, workspace, {}));
      const Memory laid_out = lay_out(arena, executor, false);
      require_workspace(workspace, arena.used(), "mhla::HeadParallel",
                        "forward_workspace_size says how many it takes");
      return laid_out;
    });
    exchange(executor, Division::by_heads, operands(x, memory), Update::overwrite, memory.buffer);
    const OperandViews<T> own = of_heads(executor, x, memory);
    if (has_heads())
      forward_into(heads_.attention, executor, own.q, own.k, own.v, own.mix, memory.y,
                   memory.scratch);
    exchange(executor, Division::by_tokens, {{memory.y, y, &query_tokens_}}, Update::overwrite,
             memory.buffer);
  }

  /// The gradients of this rank's tokens, and of mix as said above. All ranks want the same ones.
  void backward(const RunsOn<H> auto& executor, const OperandViews<T>& x,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients, Update update,
                WorkspaceView workspace) const {
    const auto& [dq, dk, dv, dmix] = gradients;
    Agreement agreement("backward");
    agreement.add("whether dq is wanted", dq.wanted)
        .add("whether dk is wanted", dk.wanted)
        .add("whether dv is wanted", dv.wanted)
        .add("whether dmix is wanted", dmix.wanted);
    Arena arena(workspace);
    const Memory memory = agreement.settle(*communicator_, [&] {
      require_local(local_, x);
      Kernels::require_memory(
          require_backward(heads_.attention, local_, x, dy, gradients, workspace, {}));
      const Memory laid_out = lay_out(arena, executor, true);
      require_workspace(workspace, arena.used(), "mhla::HeadParallel",
                        "backward_workspace_size says how many it takes");
      return laid_out;
    });
    Tensors to_heads = operands(x, memory);
    to_heads.push_back({dy, memory.y, &query_tokens_});
    exchange(executor, Division::by_heads, to_heads, Update::overwrite, memory.buffer);

    GradientViews<T> of_own_heads{skip, skip, skip, skip};
    Tensors to_tokens;
    const auto want = [&](const GradientView<T, 4>& gradient, const TensorView<T, 4>& own,
                          const auto& tokens, GradientView<T, 4>& wanted) {
      if (!gradient.wanted) return;
      wanted = own;
      to_tokens.push_back({own, gradient.view, &tokens});
    };
    want(dq, memory.dq, query_tokens_, of_own_heads.query);
    want(dk, memory.dk, key_tokens_, of_own_heads.key);
    want(dv, memory.dv, key_tokens_, of_own_heads.value);
    if (dmix.wanted) of_own_heads.mix = as_mix(memory.dmix);
    const bool gives_dmix = dmix.wanted && H::gives_dmix(heads_);
    if (gives_dmix && update == Update::accumulate)
      Kernels::copy_tensor(executor, matrices(dmix.view), memory.dmix);
    H::backward(heads_, executor, *communicator_, of_heads(executor, x, memory), memory.y,
                of_own_heads, update, memory.scratch);
    exchange(executor, Division::by_tokens, to_tokens, update, memory.buffer);
    if (dmix.wanted && update == Update::overwrite) Kernels::clear_tensor(executor, dmix.view);
    if (gives_dmix) Kernels::copy_tensor(executor, memory.dmix, matrices(dmix.view));
  }

 private:
  // How a tensor is divided: [batch, all heads, a rank's tokens, dim], whose heads go to other
  // ranks or come from them, or [batch, a rank's heads, all tokens, dim], whose tokens do.
  enum class Division { by_tokens, by_heads };
  // One before and after, and the tokens of every rank.
  struct Tensor {
    TensorView<const T, 4> from;
    TensorView<T, 4> to;
    const std::vector<Tokens>* tokens;
  };
  using Tensors = std::vector<Tensor>;
  struct Memory {
    TensorView<T, 4> q, k, v, y;  // [batch, this rank's heads, all tokens, dim]; y or dy
    TensorView<T, 4> dq, dk, dv;
    TensorView<A, 4> mix;   // [items, this rank's heads, ..], if every item has its own
    TensorView<A, 4> dmix;  // likewise, if this rank gives it
    Span<T> buffer;
    WorkspaceView scratch;  // of the pass
  };

  Problem agreed_problem(const V& attention, const Shape& whole, const Shares& queries,
                         const Shares& keys) const {
    Agreement agreement("head_parallel");
    add_call<T>(agreement, attention, whole, queries, keys, H::compared);
    return agreement.settle(*communicator_, [&] {
      const Problem problem = checked_problem(attention, whole);
      const Index ranks = communicator_->size();
      require_shares("queries", queries, query_list(attention, problem).num_blocks(), ranks);
      require_shares("keys", keys, key_list(attention, problem).num_blocks(), ranks);
      if constexpr (requires { attention.masks; }) {  // which have been checked by now
        agreement.add_hash("mask", [&](auto& hash) {
          fingerprint::add_masks(hash, attention.masks, whole, H::compared);
        });
      }
      return problem;
    });
  }
  // Of a tensor with `heads` heads, those of a rank.
  BlockRange heads_of(Index rank, Index heads) const {
    const BlockRange& share = kv_heads_[static_cast<std::size_t>(rank)];
    const Index all = kv_heads_.back().end();
    const Index group = all == 0 ? 0 : heads / all;
    return {share.first * group, share.count * group};
  }
  bool has_heads() const { return heads_.own.shape.kv_heads > 0; }
  // The call of this rank's heads.
  Problem own_problem() const {
    Problem problem = heads_.whole;
    const Shape whole = problem.shape;
    problem.shape.heads = heads_of(heads_.rank, whole.heads).count;
    problem.shape.kv_heads = heads_of(heads_.rank, whole.kv_heads).count;
    if (whole.mix_heads != 1) problem.shape.mix_heads = problem.shape.heads;
    if (whole.mix_per_item()) problem.shape.mix_heads *= whole.batch;
    return problem;
  }

  // The matrices of this rank's heads in one of mix's shape: [items, heads, rows, columns], where
  // there is one item unless each has its own.
  template <class M>
  TensorView<M, 4> matrices(const TensorView<M, 3>& all) const {
    BlockRange heads{0, 1};
    if (local_.mix_heads != 1) heads = heads_of(communicator_->rank(), local_.heads);
    const Index step = all.stride[0];
    return {all.data == nullptr ? nullptr : all.data + heads.first * step,
            {items(), heads.count, all.extent[1], all.extent[2]},
            {local_.heads * step, step, all.stride[1], all.stride[2]}};
  }
  Index items() const { return local_.mix_per_item() ? local_.batch : 1; }
  // Those of one item, or of all in memory of their own, as a mix.
  template <class M>
  static TensorView<M, 3> as_mix(const TensorView<M, 4>& own) {
    return {own.data,
            {own.extent[0] * own.extent[1], own.extent[2], own.extent[3]},
            {own.stride[1], own.stride[2], own.stride[3]}};
  }
  OperandViews<T> of_heads(const auto& executor, const OperandViews<T>& x,
                           const Memory& memory) const {
    if (!local_.mix_per_item()) return {memory.q, memory.k, memory.v, as_mix(matrices(x.mix))};
    Kernels::copy_tensor(executor, matrices(x.mix), memory.mix);
    return {memory.q, memory.k, memory.v, as_mix(memory.mix)};
  }
  Tensors operands(const OperandViews<T>& x, const Memory& memory) const {
    return {{x.q, memory.q, &query_tokens_},
            {x.k, memory.k, &key_tokens_},
            {x.v, memory.v, &key_tokens_}};
  }
  template <class List>
  static auto tokens_of_ranks(const List& list, const Shares& shares) {
    std::vector<Tokens> tokens;
    for (const BlockRange& share : shares) tokens.push_back(H::tokens(list, share));
    return tokens;
  }

  // Moves tensors between ranks, all by one all_to_all. `buffer` takes all elements of both sides
  // of all tensors. `update` says what is done with what the destinations hold. Results, which are
  // divided by tokens, are written when all ranks have received theirs.
  void exchange(const auto& executor, Division to, const Tensors& tensors, Update update,
                Span<T> buffer) const {
    Parts sent(communicator_->size());
    Parts received(communicator_->size());
    Index end = 0;
    const auto division = to == Division::by_heads ? Division::by_tokens : Division::by_heads;
    const auto pieces_sent = pieces(division, tensors, &Tensor::from, sent, end);
    const auto pieces_received = pieces(to, tensors, &Tensor::to, received, end);
    for (const auto& piece : pieces_sent)
      Kernels::pack(executor, piece.tensor, piece.tokens, buffer.data + piece.first);
    communicator_->all_to_all(buffer.data, sent, buffer.data, received);
    if (to == Division::by_tokens) confirm(*communicator_);
    for (const auto& piece : pieces_received)
      Kernels::unpack(executor, buffer.data + piece.first, piece.tensor, piece.tokens, update);
  }

  // What of a tensor is exchanged with a rank.
  template <class X>
  struct Piece {
    TensorView<X, 4> tensor;  // [batch, heads, .., dim]
    const Tokens* tokens;     // null: all in turn
    Index first;              // element in the buffer
  };

  // The pieces that are exchanged with each rank, all tensors', and which part of the buffer, from
  // `end` on, they take together.
  template <class X>
  std::vector<Piece<X>> pieces(Division division, const Tensors& tensors,
                               TensorView<X, 4> Tensor::*side, Parts& parts, Index& end) const {
    std::vector<Piece<X>> all;
    for (Index r = 0; r < communicator_->size(); ++r) {
      const Index begin = end;
      for (const Tensor& tensor : tensors) {
        Piece<X> piece{tensor.*side, nullptr, end};
        TensorView<X, 4>& part = piece.tensor;
        Index tokens = part.extent[2];
        if (division == Division::by_heads) {
          piece.tokens = &(*tensor.tokens)[static_cast<std::size_t>(r)];
          tokens = static_cast<Index>(piece.tokens->size());
        } else {
          const BlockRange heads = heads_of(r, part.extent[1]);
          part = unchecked_slice(part, 1, heads.first, heads.count);
        }
        const Index elements = part.extent[0] * part.extent[1] * tokens * part.extent[3];
        if (elements > 0) all.push_back(piece);
        end += elements;
      }
      parts[r] = {begin * element_bytes, (end - begin) * element_bytes};
    }
    return all;
  }

  Memory lay_out(Arena& arena, const auto& executor, bool backward) const {
    const Shape& s = heads_.own.shape;
    const auto queries = [&](Index dim) {
      return arena.take_tensor<T>(s.batch, s.heads, s.query_tokens, dim);
    };
    const auto keys = [&](Index dim) {
      return arena.take_tensor<T>(s.batch, s.kv_heads, s.key_tokens, dim);
    };
    const auto matrices = [&] {
      return arena.take_tensor<A>(items(), local_.mix_heads == 1 ? 1 : s.heads, s.mix_query_blocks,
                                  s.mix_key_blocks);
    };
    Memory memory;
    memory.q = queries(s.key_dim);
    memory.k = keys(s.key_dim);
    memory.v = keys(s.value_dim);
    memory.y = queries(s.value_dim);
    if (local_.mix_per_item()) memory.mix = matrices();
    // Of the messages, the operands' are the longest: with dy, or alone longer than y.
    const Index all = checked_add(buffer_size(local_), buffer_size(s));
    memory.buffer = arena.take<T>(all);
    memory.scratch = arena.take_bytes(
        backward      ? H::backward_workspace_size(heads_, executor)
        : has_heads() ? mhla::forward_workspace_size<T>(heads_.attention, s, executor)
                      : 0);
    if (!backward) return memory;
    memory.dq = queries(s.key_dim);
    memory.dk = keys(s.key_dim);
    memory.dv = keys(s.value_dim);
    if (H::gives_dmix(heads_)) memory.dmix = matrices();
    return memory;
  }
  // Elements of q, k, v and y of a shape.
  static Index buffer_size(const Shape& s) {
    const Index dims = checked_add(s.key_dim, s.value_dim);
    return checked_mul(s.batch,
                       checked_mul(dims, s.heads * s.query_tokens + s.kv_heads * s.key_tokens));
  }

  const C* communicator_;
  OwnHeads<V> heads_;
  std::vector<Tokens> query_tokens_;  // of every rank
  std::vector<Tokens> key_tokens_;
  Shares kv_heads_;  // of every rank, who has the query heads that share them
  Shape local_;
};

/// \cond INTERNAL
template <class H, class C>
requires(!PartsOfRanks<H, C>) class HeadParallel<H, C> : public NoPartsOfRanks<H, C> {
 public:
  using NoPartsOfRanks<H, C>::NoPartsOfRanks;
};
/// \endcond

/// HeadParallel of tensors of T, made as sequence_parallel makes the other.
/// \ingroup distributed
template <StorageScalar T, AttentionVariant V, Communicator C>
HeadParallel<HostHeads<V, T>, C> head_parallel(const V& attention, const Shape& whole,
                                               const C& communicator, Shares queries,
                                               Shares keys = {}) {
  return {attention, whole, communicator, (std::move)(queries), (std::move)(keys)};
}

/// \cond INTERNAL
MHLA_ANY_CALL(AnyArgument head_parallel, { return explain_parallel<Given...>(); })
/// \endcond

MHLA_NAMESPACE_END
