// SPDX-License-Identifier: MIT
// The names of the stages of a pass. A checked call, with which every backend begins: a variant and
// a shape that fit together. Rows of sums, as stages leave them and as they travel from rank to
// rank. Checks of a call's tensors before anything is written: views fit both, addresses are
// aligned, destinations can be written. The blocks of a call, listed.
#pragma once

#include <mhla/core/gradient_views.hpp>
#include <mhla/core/overlap.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <optional>

MHLA_NAMESPACE_BEGIN

/// A stage of a pass, each a member of Stages.
/// \ingroup stages
enum class Stage {
  summarize,           ///< S and z of key blocks
  read_out,            ///< y of query blocks
  read_out_gradient,   ///< dq, rows of dmix, dS~ and dz~ of query blocks
  mix_gradient,        ///< dS and dz of key blocks
  advance,             ///< a recurrence's states after blocks
  advance_gradient,    ///< its dS and dz, rows of dmix, and gradients of the states before blocks
  summarize_gradient,  ///< dk and dv of key blocks
};

/// How summaries S, and dS~ in a backward pass, travel.
/// \ingroup distributed
enum class Wire {
  exact,  ///< in the accumulator type
  /// S and dS~ as bfloat16, key sums and what belongs to them in the accumulator type: half the
  /// bytes. A rank rounds its own too, so that the bits are the same for any number of ranks.
  bfloat16,
};

/// \cond INTERNAL
/// A checked call: its extents, the grids of both sides (packed: of the longest sequence), and the
/// sizes that follow from them.
struct Problem {
  Shape shape;
  Grid query_grid;
  Grid key_grid;
  Index query_blocks = 0;
  Index key_blocks = 0;
  /// The blocks whose tokens are there: all, or those of a stage. The first of query_blocks and
  /// key_blocks is theirs.
  BlockRange queries;
  BlockRange keys;
  /// The blocks whose tokens tensors hold: these, or more.
  BlockRange held_queries;
  BlockRange held_keys;
  Index sequences = 0;         ///< that share no keys: the batch, or the sequences packed into it
  Index all_kv_heads = 0;      ///< of the whole call: shape may have some of them
  Index feature_dim = 0;       ///< D, the length of phi's output
  std::optional<Stage> stage;  ///< that it is alone; none: the whole pass

  /// The coordinates of the tokens that are there.
  MHLA_ONCE_A_CALL GridBox grid_box() const {
    return hull(query_grid.grid_box(queries), key_grid.grid_box(keys));
  }
};

/// The blocks that the mixing of a call maps from and to; of a stage of a recurrence, its own.
template <class V>
MHLA_ONCE_A_CALL MixingLayout mixing_layout(const Problem& problem) {
  MixingLayout layout =
      MixingLayout::of(V::GeometryType::rank, problem.query_grid, problem.key_grid, sight_of<V>);
  if constexpr (is_causal<V> && is_structured<V>) {
    layout.queries[2] = layout.keys[2] = problem.query_blocks;
    layout.before = problem.queries.first > 0;
    layout.after = problem.queries.first + problem.query_blocks < problem.query_grid.num_blocks();
  }
  return layout;
}

// What a row of sums consists of: `count` times S [summary], z [key_sum].
struct SumsLayout {
  Index count;
  Index summary;
  Index key_sum;

  Index elements() const { return checked_mul(count, checked_add(summary, key_sum)); }
  // Bytes of a row that travels.
  template <class A>
  Index bytes(Wire wire) const {
    constexpr auto size = static_cast<Index>(sizeof(A));
    if (wire == Wire::exact) return checked_mul(elements(), size);
    const Index rounded = checked_mul(checked_mul(count, summary), sizeof(BFloat16));
    return checked_mul(checked_add(ceil_div(rounded, size), checked_mul(count, key_sum)), size);
  }
};
// A row with the sums of every item and kv head, for each of some matrices.
template <AttentionVariant V>
SumsLayout sums_layout(const Problem& problem, Index matrices) {
  const Shape& shape = problem.shape;
  return {checked_mul(checked_mul(shape.batch, shape.kv_heads), matrices),
          checked_mul(problem.feature_dim, shape.value_dim),
          normalizes<V> ? problem.feature_dim : 0};
}

// Checks the numbers of a variant that need no shape. Throws ShapeError.
template <AttentionVariant A>
MHLA_ONCE_A_CALL void require_settings(const A& attention) {
  const auto require_valid = [](const auto& policy) {
    if constexpr (requires { policy.require_valid(); }) policy.require_valid();
  };
  require_valid(attention.feature_map);
  require_valid(attention.normalizer);
  require_valid(attention.rotation);
  require_not_negative("scale", attention.scale);
  require_enumerator("precision", attention.precision, Precision::fast);
  require_enumerator("path", attention.path, Path::quadratic);
  if (attention.path == Path::quadratic && (is_structured<A> || mixes_products<A>))
    throw ShapeError(
        "mhla: path: Path::quadratic needs DenseMixing without MixedProduct; Path::automatic takes "
        "a path that can");
}

// What checked_problem(attention, shape) checks once sequences and grids are known.
template <AttentionVariant A>
MHLA_ONCE_A_CALL Problem checked_problem(const A& attention, const Shape& shape, Index sequences,
                                         const Grid& query_grid, const Grid& key_grid) {
  require_settings(attention);
  Problem problem;
  problem.shape = shape;
  problem.sequences = sequences;
  problem.all_kv_heads = shape.kv_heads;
  problem.query_grid = query_grid;
  problem.key_grid = key_grid;
  problem.query_blocks = query_grid.num_blocks();
  problem.key_blocks = key_grid.num_blocks();
  problem.queries = problem.held_queries = {0, problem.query_blocks};
  problem.keys = problem.held_keys = {0, problem.key_blocks};

  const MixingLayout layout = mixing_layout<A>(problem);
  if constexpr (is_structured<A>) {
    attention.mixing.require_parameters(layout, shape.mix_query_blocks, shape.mix_key_blocks);
  } else {
    constexpr bool any_length = is_causal<A> || is_packed<A>;
    attention.mixing.require_parameters(layout, shape.mix_query_blocks, shape.mix_key_blocks,
                                        any_length);
  }

  problem.feature_dim = feature_dim(attention.feature_map, shape.key_dim);
  const auto require_features = [&](const char* argument, Index heads, Index tokens) {
    require_tensor(argument, {{"batch", shape.batch},
                              {"heads", heads},
                              {"tokens", tokens},
                              {"feature_dim", problem.feature_dim}});
  };
  require_features("feature_map(q)", shape.heads, shape.query_tokens);
  require_features("feature_map(k)", shape.kv_heads, shape.key_tokens);
  if constexpr (requires { attention.feature_map.projection; }) {
    require_extent("feature_map.projection", "key_dim", attention.feature_map.projection.extent[1],
                   shape.key_dim, "the projection is [features, key_dim]");
  }
  if constexpr (rotates<A>) {
    if (problem.feature_dim % 2 != 0)
      throw ShapeError(
          {"mhla: rotation: phi gives ", problem.feature_dim,
           " features but a rotation turns pairs; the number of features must be even"});
  }

  if constexpr (mixes_products<A> || is_causal<A>) {
    if (query_grid != key_grid)
      throw ShapeError(
          "mhla: key_blocks: MixedProduct, Causal and BlockCausal need the same "
          "tokens and blocks on the query and the key side");
  }
  if constexpr (mixes_products<A>) {
    if (problem.query_grid.ragged())
      throw ShapeError(
          "mhla: blocks: MixedProduct needs blocks of one size but the grid does not "
          "divide evenly; use MixedKeySum for a ragged grid");
  }
  return problem;
}

/// The grids of queries and of keys. Throws ShapeError if they do not have these tokens.
template <AttentionVariant A>
std::pair<Grid, Grid> checked_grids(const A& attention, Index query_tokens, Index key_tokens) {
  const Grid query_grid = checked_grid(attention.blocks, query_tokens, "blocks", "q");
  if (attention.key_blocks.unset())
    return {query_grid, checked_grid(attention.blocks, key_tokens, "blocks", "k")};
  return {query_grid, checked_grid(attention.key_blocks, key_tokens, "key_blocks", "k")};
}

/// Throws ShapeError unless `attention` can run on tensors of `shape`; of packed sequences mix must
/// be large enough for the longest.
template <AttentionVariant A>
MHLA_ONCE_A_CALL Problem checked_problem(const A& attention, const Shape& shape) {
  require_consistent(shape);
  if constexpr (is_packed<A>) {
    const Grid grid =
        checked_grid(attention.blocks, checked_longest(attention, shape), "blocks", "q");
    return checked_problem(attention, shape, attention.sequences(), grid, grid);
  } else {
    const TokenMasks masks = masks_of(attention);
    masks.require_fit(shape);
    if (is_causal<A>) masks.require_one();
    const auto [query_grid, key_grid] =
        checked_grids(attention, shape.query_tokens, shape.key_tokens);
    return checked_problem(attention, shape, shape.batch, query_grid, key_grid);
  }
}

// Checks of the tensors of a call.

// Not a template, so that its message is compiled once.
MHLA_ONCE_A_CALL inline void require_aligned(const void* data, std::size_t alignment,
                                             const char* name) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    throw ShapeError({"mhla: ", name, ": the address is not a multiple of ", alignment,
                      ", the size of its elements"});
}

/// Throws if a non-empty tensor is not aligned to its elements.
template <class T, int Rank>
MHLA_ONCE_A_CALL void require_aligned(const TensorView<T, Rank>& tensor, const char* name) {
  if (tensor.size() > 0) require_aligned(tensor.data, alignof(T), name);
}

/// The memory that a call touches, piece by piece. Pieces are aligned to their elements: ShapeError
/// otherwise.
class Footprint {
 public:
  /// Adds a tensor: read if its elements are const, else written.
  template <class T, int Rank>
  MHLA_ONCE_A_CALL void add(const TensorView<T, Rank>& tensor, const char* name) {
    require_aligned(tensor, name);
    pieces_[count_++] = {overlap::strided(tensor), name, !std::is_const_v<T>};
  }

  /// Adds a tensor that is read, and is in host memory even of a call on a GPU.
  template <class T, int Rank>
  void reads_on_host(const TensorView<T, Rank>& tensor, const char* name) {
    add(tensor, name);
    pieces_[count_ - 1].on_host = true;
  }

  /// Calls visit(view, name) for every piece in the device's memory.
  template <class Visit>
  void for_each_on_device(const Visit& visit) const {
    for (int i = 0; i < count_; ++i)
      if (!pieces_[i].on_host) visit(pieces_[i].view, pieces_[i].name);
  }

  /// Throws ShapeError unless all results can be written: every element distinct, none shared with
  /// another piece.
  MHLA_ONCE_A_CALL void require_results() const {
    for (int i = 0; i < count_; ++i) {
      const auto& [view, name, is_result, on_host] = pieces_[i];
      if (!is_result) continue;
      if (!overlap::is_injective(view))
        throw ShapeError({"mhla: ", name,
                          ": the strides give two elements one address; a destination needs every "
                          "element to be its own"});
      if (const char* other = sharing(view, i))
        throw ShapeError({"mhla: ", name, ": shares memory with ", other,
                          "; a destination needs memory of its own"});
    }
  }

  /// Throws if a piece has elements but a null address: WorkspaceError for scratch memory, else
  /// ShapeError. On a GPU the backend checks addresses.
  MHLA_ONCE_A_CALL void require_addresses() const {
    for (int i = 0; i < count_; ++i) {
      const auto& [view, name, is_result, on_host] = pieces_[i];
      if (view.size == 0 || view.data != nullptr) continue;
      if (i >= scratch_)
        throw WorkspaceError({"mhla: ", name, ": has ", view.size, " bytes but a null address"});
      throw ShapeError({"mhla: ", name, ": has ", view.size, " elements but a null address"});
    }
  }

  /// Throws WorkspaceError if `scratch` contains a byte of a piece; otherwise `scratch` becomes a
  /// piece, too.
  MHLA_ONCE_A_CALL void require_scratch(Span<const std::byte> scratch, const char* name) {
    if (scratch_ > count_) scratch_ = count_;
    const TensorView<const std::byte, 1> bytes = make_view(scratch.data, scratch.size);
    if (const char* other = sharing(overlap::strided(bytes), -1))
      throw WorkspaceError({"mhla: ", name, ": shares memory with ", other,
                            "; a call overwrites it: give it memory of its own"});
    add(bytes, name);
  }

 private:
  struct Piece {
    overlap::Strided view;
    const char* name;
    bool is_result = false;
    bool on_host = false;
  };

  // The name of the first piece other than `own` that shares memory with `view`, or null.
  MHLA_ONCE_A_CALL const char* sharing(const overlap::Strided& view, int own) const {
    for (int i = 0; i < count_; ++i)
      if (i != own && overlap::share_memory(view, pieces_[i].view)) return pieces_[i].name;
    return nullptr;
  }

  static constexpr int most = 16;
  Piece pieces_[most];
  int count_ = 0;
  int scratch_ = most;  // the first piece of scratch memory
};

/// Whether the feature map reads a borrowed matrix, as Favor does.
template <class V>
inline constexpr bool borrows_projection = requires(const V& attention) {
  require_aligned(attention.feature_map.projection, "");
};

template <class T>
MHLA_ONCE_A_CALL void add_operands(Footprint& footprint, const OperandViews<T>& operands) {
  footprint.add(operands.q, "q");
  footprint.add(operands.k, "k");
  footprint.add(operands.v, "v");
  footprint.add(operands.mix, "mix");
}

/// Throws unless results and scratch memory can be written: the workspace, and a forward state's
/// memory if it is the caller's.
template <class V>
MHLA_ONCE_A_CALL void require_apart(Footprint& footprint, const V& attention,
                                    WorkspaceView workspace, Span<const std::byte> state) {
  if constexpr (borrows_projection<V>)
    footprint.add(attention.feature_map.projection, "feature_map.projection");
  if constexpr (is_packed<V>)
    footprint.reads_on_host(make_view(attention.offsets.data, attention.offsets.size), "offsets");
  const auto [query_mask, key_mask] = masks_of(attention);
  if (query_mask.data != nullptr) footprint.add(query_mask, "masks.query");
  if (key_mask.data != nullptr) footprint.add(key_mask, "masks.key");
  footprint.require_results();
  footprint.require_scratch(workspace, "workspace");
  footprint.require_scratch(state, "state");
}

/// Throws ShapeError unless y can be written in a call of `shape` with these operands,
/// WorkspaceError if scratch memory shares a byte with a tensor; returns what the call touches.
template <AttentionVariant V, class T>
MHLA_ONCE_A_CALL Footprint require_forward(const V& attention, const Shape& shape,
                                           const OperandViews<T>& operands,
                                           const TensorView<T, 4>& y, WorkspaceView workspace,
                                           Span<const std::byte> state) {
  require_extents(y, "y", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "y is [batch, heads, query tokens, value_dim]");
  Footprint footprint;
  footprint.add(y, "y");
  add_operands(footprint, operands);
  require_apart(footprint, attention, workspace, state);
  return footprint;
}

/// Throws ShapeError unless the wanted gradients have the right extents; returns what they write.
template <class T>
MHLA_ONCE_A_CALL Footprint checked_gradients(const Shape& shape,
                                             const GradientViews<T>& gradients) {
  Footprint footprint;
  const auto add = [&](const GradientView<T, 4>& gradient, const char* name, Index heads,
                       Index tokens, Index dim, const char* rule) {
    if (!gradient.wanted) return;
    require_extents(gradient.view, name, shape.batch, heads, tokens, dim, rule);
    footprint.add(gradient.view, name);
  };
  add(gradients.query, "dq", shape.heads, shape.query_tokens, shape.key_dim,
      "dq has the shape of q");
  add(gradients.key, "dk", shape.kv_heads, shape.key_tokens, shape.key_dim,
      "dk has the shape of k");
  add(gradients.value, "dv", shape.kv_heads, shape.key_tokens, shape.value_dim,
      "dv has the shape of v");
  if (gradients.mix.wanted) {
    require_extents(gradients.mix.view, "dmix", shape.mix_heads, shape.mix_query_blocks,
                    shape.mix_key_blocks, "dmix has the shape of mix");
    footprint.add(gradients.mix.view, "dmix");
  }
  return footprint;
}

/// Throws ShapeError unless the wanted gradients can be written, WorkspaceError if scratch memory
/// shares a byte with a tensor; returns what the call touches.
template <AttentionVariant V, class T>
MHLA_ONCE_A_CALL Footprint require_backward(const V& attention, const Shape& shape,
                                            const OperandViews<T>& operands,
                                            const TensorView<const T, 4>& dy,
                                            const GradientViews<T>& gradients,
                                            WorkspaceView workspace, Span<const std::byte> state) {
  require_extents(dy, "dy", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "dy is [batch, heads, query tokens, value_dim]");
  Footprint footprint = checked_gradients(shape, gradients);
  footprint.add(dy, "dy");
  add_operands(footprint, operands);
  require_apart(footprint, attention, workspace, state);
  return footprint;
}

/// The list of the blocks of packed sequences: those of sequence s are the ceil(tokens / block)
/// after the blocks of the sequences before it. Borrows offsets that never fall.
template <class Offset>
class PackedBlocks {
 public:
  PackedBlocks(Span<const Offset> offsets, Index block) : offsets_(offsets), block_(block) {}

  Index num_blocks() const {
    Index blocks = 0;
    for (Index s = 0; s < sequences(); ++s) blocks += blocks_of(s);
    return blocks;
  }
  /// For num_blocks(), the number of all tokens.
  Index first_token(Index block) const {
    const Place place = place_of(block);
    return begin(place.sequence) + place.block * block_;
  }
  Index num_tokens(const BlockRange& range) const {
    return first_token(range.end()) - first_token(range.first);
  }
  /// A block's index within its sequence; 0 after the last block.
  Index block_in_sequence(Index block) const { return place_of(block).block; }
  /// All blocks of the sequences of which some are in `range`; none if it is empty.
  BlockRange sequences_of(const BlockRange& range) const {
    if (range.count == 0) return range;
    const Index first = range.first - block_in_sequence(range.first);
    const Place last = place_of(range.end() - 1);
    return {first, range.end() - 1 - last.block + blocks_of(last.sequence) - first};
  }

 private:
  struct Place {
    Index sequence;
    Index block;  // within it
  };

  Index sequences() const { return offsets_.size - 1; }
  Index begin(Index sequence) const { return static_cast<Index>(offsets_[sequence]); }
  Index blocks_of(Index sequence) const {
    return ceil_div(begin(sequence + 1) - begin(sequence), block_);
  }
  Place place_of(Index block) const {
    for (Index s = 0; s < sequences(); ++s) {
      const Index blocks = blocks_of(s);
      if (block < blocks) return {s, block};
      block -= blocks;
    }
    return {sequences(), 0};
  }

  Span<const Offset> offsets_;
  Index block_;
};

/// The blocks of one sequence: what PackedBlocks are of several.
struct GridBlocks {
  Grid grid;

  Index num_blocks() const { return grid.num_blocks(); }
  Index num_tokens(const BlockRange& range) const { return grid.num_tokens(range); }
  Index block_in_sequence(Index block) const { return block < num_blocks() ? block : 0; }
  BlockRange sequences_of(const BlockRange&) const { return {0, num_blocks()}; }
};

/// The query blocks of a checked call.
template <AttentionVariant V>
auto query_list(const V&, const Problem& problem) {
  return GridBlocks{problem.query_grid};
}
template <AttentionVariant V, class Offset>
auto query_list(const Packed<V, Offset>& packed, const Problem& problem) {
  return PackedBlocks(packed.offsets, problem.query_grid.block[2]);
}
/// Its key blocks.
template <AttentionVariant V>
auto key_list(const V& attention, const Problem& problem) {
  if constexpr (is_packed<V>)
    return query_list(attention, problem);
  else
    return GridBlocks{problem.key_grid};
}

/// The tokens of some blocks of a grid.
struct GridPart {
  Grid grid;
  BlockRange blocks;

  Index size() const { return grid.num_tokens(blocks); }
};
/// Tokens [first, first + count) of a sequence.
inline GridPart consecutive_tokens(Index all, const BlockRange& tokens) {
  return {{{1, 1, all}, {1, 1, 1}}, tokens};
}

/// The tokens of some blocks of a list.
inline GridPart part_of(const GridBlocks& list, const BlockRange& blocks) {
  return {list.grid, blocks};
}
template <class Offset>
GridPart part_of(const PackedBlocks<Offset>& list, const BlockRange& blocks) {
  return consecutive_tokens(list.first_token(list.num_blocks()),
                            {list.first_token(blocks.first), list.num_tokens(blocks)});
}
/// \endcond

MHLA_NAMESPACE_END
