// SPDX-License-Identifier: MIT
// A sequence divided by blocks: what ranks tell each other is sums.
#pragma once

#include <memory>
#include <mhla/distributed/agreement.hpp>
#include <mhla/stages.hpp>

MHLA_NAMESPACE_BEGIN

/// Attention over a sequence of which each rank has some whole blocks: its q, k, v, y and their
/// gradients are [batch, heads or kv_heads, tokens, dim] of the tokens of its own blocks, in raster
/// order (tokens_of). Every rank has all of mix.
///
/// Forward: ranks summarize their keys, exchange summaries, read out their queries. Where the
/// communicator OverlapsMessages, summaries travel in quarters, each while the next is made.
/// Backward: the same summaries, unless they were kept, then dS~ of all queries. Under Causal and
/// BlockCausal summaries go to later ranks alone, dS~ to earlier ones. Results have the bits of one
/// process's forward_into and backward_into, where Stages has them, for any number of ranks and any
/// shares. With Precision::fast, y has the same bits for any number of ranks, though not those of
/// forward_into; gradients are exact.
///
/// By RecurrentMixing a rank summarizes its own blocks, takes up the states of the ranks before it,
/// and sends its own on to the next: one rank after another, but little work, and their gradients
/// back. Shares begin at multiples of 16 blocks (see equal_shares); states are sent exactly. If a
/// single row of parameters serves all blocks, every rank has a part of its gradient, and the sum
/// over ranks differs from one process's in rounding.
///
/// A packed batch's blocks are those of all sequences, end to end, and a rank's tokens lie side by
/// side. Ranks exchange only what belongs to sequences that begin before a rank's blocks or go on
/// after them. Every rank has a part of dmix, whose sum differs from one process's in rounding.
///
/// dmix holds what a rank's queries give: other entries are 0 with Update::overwrite and untouched
/// with Update::accumulate. Summed over ranks, as trainers sum the gradients of all parameters, it
/// is the gradient.
///
/// All members but the sizes are called by all ranks together. They begin by an exchange of
/// agreement_bytes: a rank whose call differs, or throws, makes all throw. \throws ShapeError,
/// WorkspaceError as Stages, on the rank that gave the reason; ShapeError that names it on others;
/// CommunicationError if a rank does not answer. Nothing is written then, on no rank: results are
/// written when all ranks have confirmed, by confirmation_bytes, that they have received what they
/// need.
///
/// S is Stages<V, T>, and its calls take an Executor. On GPUs see cuda_sequence_parallel.
/// \ingroup distributed
template <class S, class C = void>
class SequenceParallel {
  using V = typename S::Variant;
  using T = typename S::Scalar;
  using A = Accumulator<T>;
  using Kernels = typename S::Kernels;
  static constexpr bool recurs = is_structured<V>;  // RecurrentMixing, as Stages require

 public:
  /// \cond INTERNAL
  MHLA_ANY_CALL(static void forward, { explain_member<Given...>(); })
  MHLA_ANY_CALL(static void backward, { explain_member<Given...>(); })
  MHLA_ANY_CALL(static Index forward_workspace_size, { return explain_member<Given...>(); })
  MHLA_ANY_CALL(static Index backward_workspace_size, { return explain_member<Given...>(); })
  /// \endcond

  /// `whole` is the shape of the whole sequence; `communicator` is borrowed. Keys have the shares
  /// of queries if `keys` is empty. \throws ShapeError if variant, shape and shares do not fit, or
  /// differ between ranks.
  SequenceParallel(const V& attention, const Shape& whole, const C& communicator, Shares queries,
                   Shares keys = {}, Wire wire = Wire::exact)
      : communicator_(&communicator),
        attention_(attention),
        wire_(wire),
        queries_((std::move)(queries)),
        keys_(keys.empty() ? queries_ : (std::move)(keys)),
        stages_(agreed_stages(whole)),
        local_(whole) {
    for (const BlockRange& share : keys_)
      keys_read_.push_back(blocks_read<V>(share, stages_.key_blocks(share), false));
    for (const BlockRange& share : queries_)
      queries_read_.push_back(blocks_read<V>(share, stages_.query_blocks(share), true));
    local_.query_tokens = stages_.query_tokens(query_blocks());
    local_.key_tokens = stages_.key_tokens(key_blocks());
  }

  /// For a padded batch: masks [batch, this rank's tokens], borrowed, of queries and of
  /// keys; under Causal and BlockCausal one for both. Called by all ranks together, each with masks
  /// of the same sides. Calls of it have the bits of one process's on mhla::padded(attention, ..).
  /// \throws as other calls.
  auto padded(const TokenMasks& masks) const requires(!is_batch_layout<V>) {
    using PaddedStages = decltype(stages_.padded(StageMasks{}));
    const bool of_queries = masks.query.extent[0] > 0;  // also a rank's without tokens
    const bool of_keys = masks.key.extent[0] > 0;
    Agreement agreement("padded");
    agreement.add("whether queries have a mask", of_queries)
        .add("whether keys have a mask", of_keys);
    const auto counts = agreement.settle(*communicator_, [&] {
      masks.require_fit(local_);
      if (is_causal<V>) masks.require_one();
      return std::make_shared<std::vector<Index>>(static_cast<std::size_t>(2 * local_.batch));
    });
    const Span<Index> queries{counts->data(), of_queries ? local_.batch : 0};
    const Span<Index> keys{counts->data() + local_.batch, of_keys ? local_.batch : 0};
    if constexpr (requires { stages_.count_used_keys(key_blocks(), masks.key, keys); }) {
      if (masks.query.data != nullptr)
        stages_.count_used_queries(query_blocks(), masks.query, queries);
      if (masks.key.data != nullptr) stages_.count_used_keys(key_blocks(), masks.key, keys);
      const auto size = static_cast<Index>(counts->size());
      const std::vector<Index> all =
          gather_all(*communicator_, Span<const Index>{counts->data(), size});
      for (std::size_t i = 0; i < all.size(); ++i) {
        Index& most = (*counts)[i % counts->size()];
        most = (std::max)(most, all[i]);
      }
    }
    return SequenceParallel<PaddedStages, C>(*this, Padded<V>(attention_, masks),
                                             stages_.padded({masks, queries, keys}), counts);
  }

  /// The shape of this rank's tensors: tokens are those of its blocks, mix is whole.
  const Shape& local_shape() const { return local_; }
  /// The blocks of this rank's queries.
  BlockRange query_blocks() const { return own(queries_); }
  /// The blocks of this rank's keys.
  BlockRange key_blocks() const { return own(keys_); }

  /// Elements of the summaries, and states, that this rank's queries read: forward can keep them.
  /// At least 1, so that a rank which reads none can say that they were kept.
  Index kept_size() const {
    const Index read = checked_mul(read_keys().count, stages_.summary_size());
    return (std::max)(Index{1}, checked_add(read, states_size()));
  }

  /// Bytes of workspace that forward takes on this rank: exact.
  Index forward_workspace_size(const RunsOn<S> auto& executor) const {
    Arena arena;
    lay_out(arena, executor, false);
    return arena.used();
  }
  /// Bytes of workspace of backward.
  Index backward_workspace_size(const RunsOn<S> auto& executor) const {
    if (stages_.may_round()) return exact().backward_workspace_size(executor);
    Arena arena;
    lay_out(arena, executor, true);
    return arena.used();
  }

  /// y of this rank's queries. `keep` [kept_size()] takes the summaries, unless it is empty.
  void forward(const RunsOn<S> auto& executor, const OperandViews<T>& x, const TensorView<T, 4>& y,
               WorkspaceView workspace, Span<A> keep = {}) const {
    Arena arena(workspace);
    Memory memory = Agreement("forward").settle(*communicator_, [&] {
      require_local(local_, x);
      S::require_device(executor,
                        require_forward(attention_, local_, x, y, workspace, kept_bytes(keep)));
      const Memory laid_out = lay_out(arena, executor, false);
      require_workspace(workspace, arena.used(), "mhla::SequenceParallel",
                        "forward_workspace_size says how many it takes");
      return laid_out;
    });
    if (keep.size > 0) {
      memory.summaries.data = keep.data;
      memory.states.data = keep.data + memory.summaries.size();
    }
    gather_sums(executor, x, memory);
    confirm(*communicator_);
    stages_.read_out(executor, query_blocks(), rows_of_queries(x),
                     {memory.summaries, memory.states}, y, memory.scratch);
  }

  /// The gradients of this rank's tokens, and of mix as said above, always exact. `kept` is empty,
  /// or what forward kept of the same k and v; with Precision::fast it is ignored, since forward
  /// has rounded it, and summaries are computed again. All ranks want dk or dv, or none does.
  void backward(const RunsOn<S> auto& executor, const OperandViews<T>& x,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients, Update update,
                WorkspaceView workspace, Span<const A> kept = {}) const {
    if (stages_.may_round()) return exact().backward(executor, x, dy, gradients, update, workspace);
    const auto& [dq, dk, dv, dmix] = gradients;
    // Gradients that need those of other ranks' queries: a recurrence's parameters, too.
    const bool to_keys = dk.wanted || dv.wanted || (recurs && dmix.wanted);
    Agreement agreement("backward");
    agreement.add("whether summaries were kept", kept.size > 0);
    agreement.add(recurs ? "whether dk, dv or dmix is wanted" : "whether dk or dv is wanted",
                  to_keys);
    Arena arena(workspace);
    Memory memory = agreement.settle(*communicator_, [&] {
      require_local(local_, x);
      S::require_device(executor, require_backward(attention_, local_, x, dy, gradients, workspace,
                                                   kept_bytes(kept)));
      const Memory laid_out = lay_out(arena, executor, true);
      require_workspace(workspace, arena.used(), "mhla::SequenceParallel",
                        "backward_workspace_size says how many it takes");
      return laid_out;
    });
    Sums<A> sums{memory.summaries, memory.states};
    if (kept.size == 0) {
      gather_sums(executor, x, memory);
    } else {
      sums.summaries.data = kept.data;
      sums.states.data = kept.data + sums.summaries.size();
    }

    // dq and dmix stay in the workspace until everything has been exchanged.
    const GradientViews<T> of_queries = query_gradients(executor, dq, dmix, update, memory);
    const BlockRange seeing = read_queries();
    const auto read_out_gradient = [&](const BlockRange& blocks) {
      stages_.read_out_gradient(
          executor, blocks, rows_of_queries(x), sums, dy, of_queries, update,
          {rows_of(memory.mixtures, within(seeing, blocks)), memory.denominators}, memory.scratch);
    };
    if (recurs || !to_keys)
      read_out_gradient(query_blocks());
    else
      exchange_sums(executor, {queries_, queries_read_, stages_.mixture_layout(), memory.mixtures},
                    memory.wire, 1, read_out_gradient);
    if constexpr (recurs)
      if (to_keys) hand_back_states(executor, x, sums, of_queries.mix, update, memory);
    confirm(*communicator_);

    if (dq.wanted) Kernels::copy_tensor(executor, memory.query_gradient, dq.view);
    if (dmix.wanted) {
      if (update == Update::overwrite) Kernels::clear_tensor(executor, dmix.view);
      Kernels::copy_tensor(executor, memory.mix_gradient, own_rows(dmix.view));
    }
    write_key_gradients(executor, x, dy, gradients, update, to_keys, memory);
  }

 private:
  struct Memory {
    TensorView<A, 2> summaries;     // [read_keys(), summary_size()]
    TensorView<A, 2> states, next;  // [num_states(), mixture_size()]: before the blocks, after
    TensorView<A, 2> state_gradients, next_gradients;  // of these
    Span<std::byte> wire;
    TensorView<A, 2> mixtures;           // [read_queries(), mixture_size()]
    TensorView<A, 2> denominators;       // [query_blocks(), denominator_size()]
    TensorView<A, 2> summary_gradients;  // [key_blocks(), summary_size()]
    TensorView<T, 4> query_gradient;
    TensorView<A, 3> mix_gradient;  // rows of query_blocks()
    WorkspaceView scratch;          // of a stage
  };

  SequenceParallel exact() const {
    SequenceParallel other = *this;
    other.attention_.precision = Precision::exact;
    other.stages_ = stages_.exact();
    return other;
  }
  // The rows of dmix that this rank's queries have.
  TensorView<A, 3> own_rows(const TensorView<A, 3>& dmix) const {
    return rows_of(dmix, stages_.mix_rows(query_blocks()));
  }
  // Memory for dq and dmix, with what they hold if that is added to.
  GradientViews<T> query_gradients(const auto& executor, const GradientView<T, 4>& dq,
                                   const GradientView<A, 3>& dmix, Update update,
                                   const Memory& memory) const {
    GradientViews<T> gradients{skip, skip, skip, skip};
    if (dq.wanted) gradients.query = memory.query_gradient;
    if (dmix.wanted) gradients.mix = memory.mix_gradient;
    if (recurs && dmix.wanted)
      Kernels::clear_tensor(executor, memory.mix_gradient);  // others' entries
    if (update == Update::overwrite) return gradients;
    if (dq.wanted) Kernels::copy_tensor(executor, dq.view, memory.query_gradient);
    if (dmix.wanted) Kernels::copy_tensor(executor, own_rows(dmix.view), memory.mix_gradient);
    return gradients;
  }

  // dk, dv and, under Causal, the diagonal of dmix. Without others' dS~ (`to_keys`) dS is 0.
  void write_key_gradients(const auto& executor, const OperandViews<T>& x,
                           const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                           Update update, bool to_keys, const Memory& memory) const {
    if (!to_keys) Kernels::clear_tensor(executor, TensorView<A, 3>(memory.summary_gradients));
    if constexpr (!recurs)
      if (to_keys)
        stages_.mix_gradient(executor, read_queries(), key_blocks(),
                             columns_of(rows_of(x.mix, stages_.mix_rows(read_queries())),
                                        stages_.mix_columns(key_blocks())),
                             memory.mixtures, memory.summary_gradients, memory.scratch);
    OperandViews<T> of_keys = x;
    GradientViews<T> to{skip, gradients.key, gradients.value, skip};
    if constexpr (is_causal_within_block<V>) {
      of_keys.mix = rows_of(x.mix, stages_.mix_rows(key_blocks()));
      if (gradients.mix.wanted) to.mix = own_rows(gradients.mix.view);
    }
    stages_.summarize_gradient(executor, key_blocks(), of_keys, memory.summary_gradients, dy,
                               memory.denominators, to, update, memory.scratch);
  }

  BlockRange own(const Shares& shares) const {
    return shares[static_cast<std::size_t>(communicator_->rank())];
  }
  BlockRange read_keys() const { return own(keys_read_); }
  BlockRange read_queries() const { return own(queries_read_); }
  // How many pieces S is sent in: several if the next can be made meanwhile. dS~ is sent in one,
  // since each piece would transpose all summaries again, a twentieth of the backward pass.
  Index pieces() const {
    return !recurs && OverlapsMessages<C> && communicator_->size() > 1 ? 4 : 1;
  }
  // Some of `blocks`, counted from their first.
  static BlockRange within(const BlockRange& blocks, const BlockRange& some) {
    return {some.first - blocks.first, some.count};
  }
  OperandViews<T> rows_of_queries(const OperandViews<T>& x) const {
    return {x.q, x.k, x.v, rows_of(x.mix, stages_.mix_rows(query_blocks()))};
  }

  Index states_size() const { return checked_mul(stages_.num_states(), stages_.mixture_size()); }

  template <class, class>
  friend class SequenceParallel;
  // Of a padded batch.
  template <class Unpadded>
  SequenceParallel(const SequenceParallel<Unpadded, C>& unpadded, const V& attention,
                   const S& stages, std::shared_ptr<const std::vector<Index>> used)
      : communicator_(unpadded.communicator_),
        attention_(attention),
        wire_(unpadded.wire_),
        queries_(unpadded.queries_),
        keys_(unpadded.keys_),
        stages_(stages),
        keys_read_(unpadded.keys_read_),
        queries_read_(unpadded.queries_read_),
        local_(unpadded.local_),
        used_((std::move)(used)) {}

  S agreed_stages(const Shape& whole) const {
    Agreement agreement("sequence_parallel");
    add_call<T>(agreement, attention_, whole, queries_, keys_, S::compared);
    agreement.add("wire", static_cast<Index>(wire_));
    return agreement.settle(*communicator_, [&] {
      S stages(attention_, whole);
      require_shares("queries", queries_, stages.query_blocks().count, communicator_->size());
      require_shares("keys", keys_, stages.key_blocks().count, communicator_->size());
      if ((is_causal<V> || is_batch_layout<V>)&&keys_ != queries_)
        throw ShapeError(
            "mhla: keys: under Causal and BlockCausal, and of a packed batch, they have the shares "
            "of queries: leave them empty");
      require_enumerator("wire", wire_, Wire::bfloat16);
      if (recurs && wire_ != Wire::exact)
        throw ShapeError("mhla: wire: RecurrentMixing requires Wire::exact");
      require_chunks<V>("queries", queries_, stages);
      stages.hold(own(queries_), own(keys_));
      return stages;
    });
  }

  Index wire_bytes(const BlockRange& blocks, const SumsLayout& row) const {
    return wire_ == Wire::exact ? 0 : checked_mul(blocks.count, row.bytes<A>(wire_));
  }
  Span<const std::byte> kept_bytes(Span<const A> kept) const {
    if (kept.size == 0) return {};
    require_extent("kept summaries", "elements", kept.size, kept_size(), "kept_size() says so");
    return {reinterpret_cast<const std::byte*>(kept.data),
            kept.size * static_cast<Index>(sizeof(A))};
  }

  Memory lay_out(Arena& arena, const auto& executor, bool backward) const {
    const auto stage = [&](Stage name, const BlockRange& blocks, const BlockRange& keys = {}) {
      return stages_.workspace_size(name, executor, blocks, keys);
    };
    const auto states = [&] {
      return arena.take_tensor<A>(stages_.num_states(), stages_.mixture_size());
    };
    Memory memory;
    memory.summaries = arena.take_tensor<A>(read_keys().count, stages_.summary_size());
    memory.states = states();
    memory.next = states();
    Index wire = wire_bytes(read_keys(), stages_.summary_layout());
    Index scratch = backward ? 0 : stage(Stage::read_out, query_blocks());
    for (Index piece = 0; piece < pieces(); ++piece)
      scratch =
          (std::max)(scratch, stage(Stage::summarize, piece_of(key_blocks(), piece, pieces())));
    if (backward) {
      memory.state_gradients = states();
      memory.next_gradients = states();
      memory.mixtures = arena.take_tensor<A>(read_queries().count, stages_.mixture_size());
      memory.denominators = arena.take_tensor<A>(query_blocks().count, stages_.denominator_size());
      memory.summary_gradients = arena.take_tensor<A>(key_blocks().count, stages_.summary_size());
      const Shape& s = local_;
      memory.query_gradient = arena.take_tensor<T>(s.batch, s.heads, s.query_tokens, s.key_dim);
      memory.mix_gradient = arena.take_tensor<A>(
          s.mix_heads, stages_.mix_rows(query_blocks()).count, s.mix_key_blocks);
      wire = (std::max)(wire, wire_bytes(read_queries(), stages_.mixture_layout()));
      scratch = (std::max)({scratch, stage(Stage::read_out_gradient, query_blocks()),
                            recurs ? 0 : stage(Stage::mix_gradient, read_queries(), key_blocks()),
                            stage(Stage::summarize_gradient, key_blocks())});
    }
    memory.wire = arena.take<std::byte>(wire);
    memory.scratch = arena.take_bytes(scratch);
    return memory;
  }

  void gather_sums(const auto& executor, const OperandViews<T>& x, const Memory& memory) const {
    const auto summarize = [&](const BlockRange& blocks) {
      stages_.summarize(executor, blocks, x.k, x.v,
                        rows_of(memory.summaries, within(read_keys(), blocks)), memory.scratch);
    };
    if constexpr (recurs) {
      summarize(key_blocks());
      hand_over(1, memory.states, memory.next, [&] {
        if (stages_.block_in_sequence(query_blocks().end()) > 0)
          stages_.advance(executor, query_blocks(), rows_of_queries(x).mix,
                          {memory.summaries, memory.states}, memory.next, memory.scratch);
      });
    } else {
      exchange_sums(executor, {keys_, keys_read_, stages_.summary_layout(), memory.summaries},
                    memory.wire, pieces(), summarize);
    }
  }

  // Rows of sums, of which every rank makes those of its share and reads some.
  struct SharedRows {
    const Shares& shares;
    const std::vector<BlockRange>& read;  // by every rank, among them its own
    SumsLayout layout;
    TensorView<A, 2> rows;  // that this rank reads

    // The bytes of those of some blocks that rank `by` reads, counted from block `origin`.
    Part part(const BlockRange& blocks, Index by, Index origin, Wire wire) const {
      const BlockRange its = common(blocks, read[static_cast<std::size_t>(by)]);
      const Index bytes = layout.template bytes<A>(wire);
      return {its.count > 0 ? (its.first - origin) * bytes : 0, its.count * bytes};
    }
    // Whether all ranks read all rows.
    bool read_by_all() const {
      const BlockRange all{0, shares.back().end()};
      return std::all_of(read.begin(), read.end(), [&](const auto& its) { return its == all; });
    }
  };

  // Calls make(blocks) for all pieces of this rank's share, whose rows then travel, and returns
  // when `of.rows` are complete. All ranks have as many pieces. Rounded rows travel in `buffer`.
  template <class Make>
  void exchange_sums(const auto& executor, const SharedRows& of, Span<std::byte> buffer,
                     Index pieces, const Make& make) const {
    const Index ranks = communicator_->size();
    const Index rank = communicator_->rank();
    const Index origin = own(of.read).first;
    const bool rounds = wire_ == Wire::bfloat16;
    auto* const bytes = rounds ? buffer.data : reinterpret_cast<std::byte*>(of.rows.data);
    const auto piece_at = [&](Index r, Index piece) {
      return piece_of(of.shares[static_cast<std::size_t>(r)], piece, pieces);
    };

    // Returns what to wait for, if the communicator overlaps.
    const auto send_piece = [&](Index piece) {
      const BlockRange made = piece_at(rank, piece);
      make(made);
      const Part mine = of.part(made, rank, origin, wire_);
      if (rounds && made.count > 0)
        Kernels::round_rows(executor, of.layout,
                            rows_of(of.rows, {made.first - origin, made.count}),
                            bytes + mine.first);
      Parts to(ranks);
      Parts from(ranks);
      for (Index r = 0; r < ranks; ++r) {
        if (r == rank) continue;
        to[r] = of.part(made, r, made.first, wire_);
        from[r] = of.part(piece_at(r, piece), rank, origin, wire_);
      }
      const std::byte* const sent = bytes + mine.first;
      if constexpr (OverlapsMessages<C>) {
        return communicator_->start_all_to_all(sent, to, bytes, from);
      } else if (of.read_by_all()) {
        from[rank] = mine;
        communicator_->all_gather(sent, bytes, from);
      } else {
        communicator_->all_to_all(sent, to, bytes, from);
      }
    };
    if constexpr (OverlapsMessages<C>) {
      std::vector<decltype(send_piece(0))> under_way;
      for (Index piece = 0; piece < pieces; ++piece) under_way.push_back(send_piece(piece));
      for (auto& message : under_way) message.wait();
    } else {
      send_piece(0);
    }
    if (rounds) Kernels::widen_rows(executor, of.layout, bytes, of.rows);
  }

  // One rank after another, the next in direction `step`: make() when what the rank before it has
  // made is in `received`; then `sent` goes to the next.
  template <class Make>
  void hand_over(int step, const TensorView<A, 2>& received, const TensorView<A, 2>& sent,
                 const Make& make) const {
    const Index ranks = communicator_->size();
    const Index bytes = checked_mul(states_size(), static_cast<Index>(sizeof(A)));
    for (Index turn = 0; turn < ranks; ++turn) {
      const Index rank = step > 0 ? turn : ranks - 1 - turn;
      if (rank == communicator_->rank()) make();
      if (turn + 1 == ranks) return;
      const Index next = rank + step;
      const Index border = queries_[static_cast<std::size_t>((std::max)(rank, next))].first;
      if (stages_.block_in_sequence(border) == 0) continue;  // no states there
      Parts to(ranks);
      Parts from(ranks);
      if (rank == communicator_->rank()) to[next].bytes = bytes;
      if (next == communicator_->rank()) from[rank].bytes = bytes;
      communicator_->all_to_all(sent.data, to, received.data, from);
    }
  }
  void hand_back_states(const auto& executor, const OperandViews<T>& x, const Sums<A>& sums,
                        const GradientView<A, 3>& dmix, Update update, const Memory& memory) const {
    hand_over(-1, memory.next_gradients, memory.state_gradients, [&] {
      stages_.advance_gradient(executor, query_blocks(), rows_of_queries(x).mix, sums,
                               memory.mixtures, {memory.next_gradients, memory.state_gradients},
                               memory.summary_gradients, dmix, update, memory.scratch);
    });
  }

  const C* communicator_;
  V attention_;
  Wire wire_;
  Shares queries_;
  Shares keys_;
  S stages_;
  std::vector<BlockRange> keys_read_;  // of every rank: the blocks whose rows it reads
  std::vector<BlockRange> queries_read_;
  Shape local_;
  std::shared_ptr<const std::vector<Index>> used_;  // of a padded batch, what stages_ borrows
};

/// \cond INTERNAL
template <class S, class C>
requires(!PartsOfRanks<S, C>) class SequenceParallel<S, C> : public NoPartsOfRanks<S, C> {
 public:
  using NoPartsOfRanks<S, C>::NoPartsOfRanks;
};
/// \endcond

/// SequenceParallel of tensors of T.
/// \ingroup distributed
template <StorageScalar T, AttentionVariant V, Communicator C>
SequenceParallel<Stages<V, T>, C> sequence_parallel(const V& attention, const Shape& whole,
                                                    const C& communicator, Shares queries,
                                                    Shares keys = {}, Wire wire = Wire::exact) {
  return {attention, whole, communicator, (std::move)(queries), (std::move)(keys), wire};
}

/// \cond INTERNAL
MHLA_ANY_CALL(AnyArgument sequence_parallel, { return explain_parallel<Given...>(); })
/// \endcond

MHLA_NAMESPACE_END
