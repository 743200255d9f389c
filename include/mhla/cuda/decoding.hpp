// SPDX-License-Identifier: MIT
// Streaming on a CUDA device: the counterpart of <mhla/decoding.hpp> in the caller's device memory,
// where a batch's streaming state is laid out: first what a snapshot keeps, then tables and
// scratch.
#pragma once

#include <mhla/cuda/device.hpp>
#include <mhla/cuda/tables.hpp>
#include <mhla/policy/decoding_checks.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Maximum tokens that one step processes together.
inline constexpr Index max_decode_tile = 64;

/// The sizes of a decoder's state.
struct DecodeExtents {
  Index batch = 0;
  Index kv_heads = 0;
  Index group_size = 0;  // query heads of a kv head
  Index mix_heads = 1;   // of the mixing matrix
  Index matrices = 0;    // mixing matrices per kv head
  Index capacity = 0;    // tokens that a sequence can have
  Index blocks = 0;      // of which summaries are kept
  Index states = 0;      // R of a recurrence, which are kept instead
  Index mix_rows = 0;    // 1: for all blocks, of a recurrence
  Index mix_columns = 0;
  Index block_tokens = 0;  // n
  Index feature_dim = 0;   // D
  Index value_dim = 0;     // e
  bool normalizes = false;

  DecodeExtents() = default;
  DecodeExtents(const Problem& problem, Index most_tokens, bool has_denominators,
                Index recurrent_states)
      : batch(problem.shape.batch),
        kv_heads(problem.shape.kv_heads),
        group_size(problem.shape.group_size()),
        mix_heads(problem.shape.mix_heads),
        matrices(problem.shape.matrices()),
        capacity(most_tokens),
        blocks(recurrent_states > 0 ? 0 : problem.query_blocks),
        states(recurrent_states),
        mix_rows(problem.shape.mix_query_blocks),
        mix_columns(problem.shape.mix_key_blocks),
        block_tokens(problem.query_grid.block[2]),
        feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        normalizes(has_denominators) {}

  Index units() const { return checked_mul(batch, kv_heads); }
  MHLA_HOST_DEVICE Index heads() const { return kv_heads * group_size; }
  Index tile() const { return (std::min)(block_tokens, max_decode_tile); }
  MHLA_HOST_DEVICE Index summary_size() const { return feature_dim * value_dim; }
  /// Whether a sequence can have a token of a block.
  MHLA_HOST_DEVICE bool has(Index block) const { return block * block_tokens < capacity; }

  friend bool operator==(const DecodeExtents&, const DecodeExtents&) = default;
};

/// What a snapshot keeps. Where there are two copies, even and odd blocks alternate.
template <class A>
struct DecodeMemory {
  Span<Index> positions;  // [batch]: tokens that a sequence has seen
  Span<A> summaries;      // [units, blocks, D, e]: S_b of closed blocks
  Span<A> key_sums;       // [units, blocks, D]: z_b of closed blocks, and of the open one so far
  Span<A> states;         // [units, matrices, states, D, e]: H, instead of summaries
  Span<A> state_sums;     // [units, matrices, states, D]: of key sums, of which only one is kept
  Span<A> keys;           // [units, 2, n, D]: phi(k), rotated
  Span<A> values;         // [units, 2, n, e]
  Span<A> mixed;          // [units, 2, matrices, D, e]: P_i
  Span<A> mixed_sums;     // [units, 2, matrices, D]: z~_i

  DecodeMemory(Arena& arena, const DecodeExtents& e) : positions(arena.take<Index>(e.batch)) {
    const auto take = [&](Index rows, Index dim) {
      return arena.take<A>(checked_mul(e.units(), checked_mul(rows, dim)));
    };
    const Index summary = checked_mul(e.feature_dim, e.value_dim);
    const Index sum = e.normalizes ? e.feature_dim : 0;
    summaries = take(e.blocks, summary);
    key_sums = take(e.states > 0 ? 1 : e.blocks, sum);
    states = take(checked_mul(e.matrices, e.states), summary);
    state_sums = take(checked_mul(e.matrices, e.states), sum);
    keys = take(2 * e.block_tokens, e.feature_dim);
    values = take(2 * e.block_tokens, e.value_dim);
    mixed = take(2 * e.matrices, summary);
    mixed_sums = take(2 * e.matrices, sum);
  }
};

/// A decoder as its kernel launches need it: its state, then tables and scratch.
template <class V, class A>
struct DecoderParts {
  V attention;
  DecodeExtents extents;
  DecodeMemory<A> memory;
  Span<A> mixing;  // [mix heads, mix rows, mix columns]
  RotationTable<A> rotation;
  BlockTable tile;        // token t of a tile is at place t
  Span<A> queries;        // [query rows of a tile, D]: Q
  Span<A> rotated;        // the same: Q^r
  Span<A> key_features;   // [key rows of a tile, D]: K
  Span<A> open_key_sums;  // the same: sum of the open block's K up to each token
  Span<A> scores;         // [query rows of a tile, 2 n + 1]: of both blocks' keys, and den
  Span<A> row_input;      // [query or key rows of a tile, key_dim]: a row-wise map's input

  static Index states_of(const V& variant) {
    if constexpr (is_structured<V>) return variant.mixing.states;
    return 0;
  }
  /// `problem` is that of the longest sequences.
  DecoderParts(Arena& arena, const V& variant, const Problem& problem, Index capacity)
      : attention(variant),
        extents(problem, capacity, normalizes<V>, states_of(variant)),
        memory(arena, extents) {
    const DecodeExtents& e = extents;
    const auto take = [&](Index rows, Index dim) { return arena.take<A>(checked_mul(rows, dim)); };
    mixing = take(e.mix_heads, checked_mul(e.mix_rows, e.mix_columns));
    rotation = rotation_table<A>(arena, attention.rotation, 1, e.feature_dim, problem.grid_box());
    tile =
        block_table(arena, attention, Grid{{1, 1, e.tile()}, {1, 1, e.tile()}}, {0, 1}, {0, 1}, {});
    const Index query_rows = checked_mul(checked_mul(e.batch, e.heads()), e.tile());
    const Index key_rows = checked_mul(e.units(), e.tile());
    queries = take(query_rows, e.feature_dim);
    rotated = rotates<V> ? take(query_rows, e.feature_dim) : queries;
    key_features = take(key_rows, e.feature_dim);
    open_key_sums = take(key_rows, normalizes<V> ? e.feature_dim : 0);
    scores = take(query_rows, checked_add(checked_mul(2, e.block_tokens), 1));
    row_input = take(is_rowwise<V> ? (std::max)(query_rows, key_rows) : 0, problem.shape.key_dim);
  }
};

/// What runs checked calls. An undefined reference to a member means that no .cu of the program has
/// MHLA_INSTANTIATE_CUDA_DECODER(V, T).
template <class V, class T>
struct DecoderKernels {
  using A = Accumulator<T>;
  using Parts = DecoderParts<V, A>;

  /// Fills tables, copies mix and resets all sequences.
  static void set_up(const CudaDevice& device, const Parts& decoder,
                     const TensorView<const A, 3>& mix);
  /// Throws CudaError unless CUDA knows the tensors' memory.
  static void require_memory(const DecodeTensors<T>& tensors);
  /// The next tokens of sequences [first_sequence, ...), which lie in one block of each.
  static void run_tile(const CudaDevice& device, const Parts& decoder, Index first_sequence,
                       const DecodeTensors<T>& tensors);
  /// Resets sequences [first, first + count).
  static void reset(const CudaDevice& device, const Parts& decoder, Index first, Index count);
  /// Throws CudaError unless CUDA knows a state's memory.
  static void require_memory(const Span<std::byte>& memory);
  /// Copies what a snapshot keeps.
  static void copy(const CudaDevice& device, const Span<std::byte>& from, std::byte* to);
};

inline void require_decoder_memory(WorkspaceView memory, Index bytes, const char* function,
                                   const char* size) {
  if (memory.size < bytes)
    throw WorkspaceError({"mhla::CudaDecoder: ", function, ": memory: ", bytes,
                          " bytes are needed, ", memory.size, " were given; ", size,
                          "() says how many"});
  require_workspace({memory.data, bytes}, bytes, "mhla::CudaDecoder");
}

}  // namespace cuda

/// \ingroup cuda
/// mhla::Decoder on a CUDA device. T is the storage type of q, k, v and y, which are in device
/// memory.
/// \code
/// using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
/// using Decoder = mhla::CudaDecoder<Sequence, float>;
/// const Sequence sequence{.blocks = {.block = 64}};
/// const mhla::DecoderShape sizes{
///     .batch = 2, .heads = 4, .kv_heads = 4, .key_dim = 64, .value_dim = 64};
/// const mhla::WorkspaceView memory{device_bytes, Decoder::memory_size(sequence, mix_view, sizes)};
/// Decoder decoder(sequence, cuda, mix_view, sizes, memory);
/// decoder.prefill(cuda, 0, prompt, prompt, prompt, prompt_out);  // any number of tokens
/// decoder.step(cuda, token, token, token, token_out);            // of every sequence
/// \endcode
/// The memory is the caller's, and used by the decoder alone while it lives; it is neither copied
/// nor freed. All work runs in stream order: nothing is allocated, waited for or read back. So the
/// host counts tokens itself, to reject what has no room, and kernels read each sequence's position
/// from device memory.
///
/// In a CUDA graph: record_step launches what a step of one token launches. Capture it once, with
/// q, k, v and y at the addresses of every later token; each replay then decodes the next token of
/// every sequence, in whatever block. Call count_replay before each replay, which the host cannot
/// see. If a replay has no room, its y is NaN and the sequence is unchanged.
template <class V, class T = void>
class CudaDecoder : DecoderErrors, RequireStreaming<V> {
  using A = Accumulator<T>;
  using Kernels = cuda::DecoderKernels<V, T>;
  using Parts = typename Kernels::Parts;
  using Tensors = DecodeTensors<T>;

 public:
  /// Bytes of device memory that a decoder takes: exact.
  /// \throws ShapeError if variant, mix and shape do not fit.
  static Index memory_size(const V& variant, const TensorView<const A, 3>& mix,
                           const DecoderShape& shape) {
    checked_decoder_batch(shape);
    Arena arena;
    parts(arena, variant, mix, shape);
    return arena.used();
  }

  /// mix [1 | heads | batch * heads, blocks, blocks], in device memory and copied in stream order,
  /// limits a sequence to capacity() tokens; that of RecurrentMixing as mhla::Decoder's.
  /// \throws ShapeError if variant, mix and shape do not fit, WorkspaceError if `memory` is
  /// smaller than memory_size(), not aligned to workspace_alignment or holds mix, CudaError if
  /// CUDA does not know `memory` or mix, or a kernel cannot be launched.
  CudaDecoder(const V& variant, const CudaDevice& device, const TensorView<const A, 3>& mix,
              const DecoderShape& shape, WorkspaceView memory)
      : shape_(shape),
        positions_(static_cast<std::size_t>(checked_decoder_batch(shape))),
        memory_(memory),
        parts_(checked_parts(variant, mix, shape, memory)) {
    Kernels::set_up(device, parts_, mix);
  }
  /// \cond INTERNAL
  MHLA_ANY_CALL(CudaDecoder, : CudaDecoder(no_decoder<Given...>()){})
  using DecoderErrors::load;
  using DecoderErrors::prefill;
  using DecoderErrors::record_step;
  using DecoderErrors::save;
  using DecoderErrors::step;
  /// \endcond
  CudaDecoder(const CudaDecoder&) = delete;
  CudaDecoder& operator=(const CudaDecoder&) = delete;
  /// Leaves a decoder that can only be assigned to or destroyed.
  CudaDecoder(CudaDecoder&&) noexcept = default;
  /// Leaves a decoder that can only be assigned to or destroyed.
  CudaDecoder& operator=(CudaDecoder&&) noexcept = default;

  /// Maximum tokens of a sequence: mix has no row for the next one, or no tensor could hold more.
  Index capacity() const { return parts_.extents.capacity; }
  /// Tokens that a sequence has been given, counted replays included.
  /// \throws ShapeError if there is no such sequence, StateError if it was lost: see step().
  Index position(Index sequence) const {
    const Index position = positions_[static_cast<std::size_t>(checked_sequence(shape_, sequence))];
    if (position == lost)
      throw StateError({"mhla: sequence ", sequence,
                        " was lost when a kernel could not be launched; reset it, or load a "
                        "snapshot"});
    return position;
  }

  /// Forgets the tokens of one sequence.
  void reset(const CudaDevice& device, Index sequence) {
    Index& position = positions_[static_cast<std::size_t>(checked_sequence(shape_, sequence))];
    Kernels::reset(device, parts_, sequence, 1);
    position = 0;
  }
  /// Forgets the tokens of all sequences.
  void reset(const CudaDevice& device) {
    Kernels::reset(device, parts_, 0, shape_.batch);
    std::fill(positions_.begin(), positions_.end(), Index{0});
  }

  /// The next tokens of every sequence: q and y [batch, heads, tokens, dim], k and v
  /// [batch, kv_heads, tokens, dim], for any number of tokens.
  /// \throws ShapeError if they do not fit, StateError if a sequence would exceed capacity(),
  /// WorkspaceError if one lies in the decoder's memory, CudaError if CUDA does not know the
  /// memory of one; nothing has changed then. CudaError if a kernel cannot be launched: the
  /// sequences are lost then, and using them throws StateError until they are reset or loaded from
  /// a snapshot.
  void step(const CudaDevice& device, const TensorView<const T, 4>& q,
            const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
            const TensorView<T, 4>& y) {
    advance(device, 0, shape_.batch, {q, k, v, y});
  }

  /// The next tokens of one sequence: as step(), with a batch axis of 1.
  void prefill(const CudaDevice& device, Index sequence, const TensorView<const T, 4>& q,
               const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
               const TensorView<T, 4>& y) {
    advance(device, checked_sequence(shape_, sequence), 1, {q, k, v, y});
  }

  /// Launches a step of one token of every sequence that the host does not count, for a graph.
  /// \throws ShapeError if the tensors do not fit, CudaError if CUDA does not know their
  /// memory or a kernel cannot be launched.
  void record_step(const CudaDevice& device, const TensorView<const T, 4>& q,
                   const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                   const TensorView<T, 4>& y) const {
    const Tensors x{q, k, v, y};
    const Index tokens = checked_decoder_tokens(shape_, shape_.batch, x);
    require_extent("q", "tokens", tokens, 1, "a recorded step is one token of every sequence");
    require_decoder_tensors(parts_.attention, x, memory_);
    Kernels::require_memory(x);
    Kernels::run_tile(device, parts_, 0, x);
  }
  /// Counts a replay of a recorded step, which the caller launches next.
  /// \throws StateError if a sequence would exceed capacity(); nothing is counted then.
  void count_replay() {
    for (Index s = 0; s < shape_.batch; ++s) require_room(s, 1);
    for (Index& position : positions_) ++position;
  }

  /// A saved state of all sequences, in the caller's device memory, which is borrowed.
  class Snapshot {
    friend CudaDecoder;
    cuda::DecodeExtents extents_;
    std::vector<Index> positions_;
    WorkspaceView memory_;
  };
  /// Bytes of device memory of a snapshot.
  Index snapshot_size() const {
    Arena arena;
    cuda::DecodeMemory<A>(arena, parts_.extents);
    return arena.used();
  }

  /// Copies the state, without mix, into `memory`.
  /// \throws StateError if a sequence is lost, WorkspaceError if `memory` is smaller than
  /// snapshot_size(), not aligned to workspace_alignment or shared with the decoder's, CudaError
  /// where CUDA does not know it.
  Snapshot save(const CudaDevice& device, WorkspaceView memory) const {
    cuda::require_decoder_memory(memory, snapshot_size(), "save", "snapshot_size");
    Footprint footprint;
    footprint.require_scratch(memory_, "the decoder's memory");
    footprint.require_scratch(memory, "memory");
    for (Index s = 0; s < shape_.batch; ++s) static_cast<void>(position(s));
    Kernels::require_memory(kept_in(memory_));
    Kernels::require_memory(kept_in(memory));
    Snapshot snapshot;
    snapshot.extents_ = parts_.extents;
    snapshot.positions_ = positions_;
    snapshot.memory_ = memory;
    Kernels::copy(device, kept_in(memory_), memory.data);
    return snapshot;
  }
  /// Restores a state that save() made, of this decoder or one of the same sizes. That its variant
  /// had the same numbers and mix is the caller's responsibility.
  /// \throws StateError if the sizes differ, or the snapshot was moved from, CudaError where CUDA
  /// does not know its memory; nothing has changed then. CudaError if a kernel cannot be launched:
  /// all sequences are lost then.
  void load(const CudaDevice& device, const Snapshot& snapshot) {
    if (!(snapshot.extents_ == parts_.extents))
      throw StateError("mhla: load: the snapshot was saved by a decoder of another size");
    if (snapshot.positions_.size() != positions_.size())
      throw StateError("mhla: load: the snapshot was moved from");
    std::vector<Index> positions = snapshot.positions_;
    Kernels::require_memory(kept_in(snapshot.memory_));
    Kernels::require_memory(kept_in(memory_));
    std::fill(positions_.begin(), positions_.end(), lost);
    Kernels::copy(device, kept_in(snapshot.memory_), memory_.data);
    positions_ = (std::move)(positions);
  }

 private:
  static constexpr Index lost = -1;  // in place of a position

  template <class... X>
  static CudaDecoder no_decoder() {
    explain_constructor<X...>();
    throw Error("mhla: no decoder");
  }

  static Parts parts(Arena& arena, const V& variant, const TensorView<const A, 3>& mix,
                     const DecoderShape& shape) {
    return Parts{arena, variant, checked_decoder(variant, mix, shape),
                 decoder_capacity(variant, mix, shape)};
  }
  static Parts checked_parts(const V& variant, const TensorView<const A, 3>& mix,
                             const DecoderShape& shape, WorkspaceView memory) {
    cuda::require_decoder_memory(memory, memory_size(variant, mix, shape), "constructor",
                                 "memory_size");
    Footprint footprint;
    footprint.add(mix, "mix");
    footprint.require_scratch(memory, "memory");
    Arena arena(memory);
    return parts(arena, variant, mix, shape);
  }
  // What a snapshot keeps comes first in a decoder's memory.
  Span<std::byte> kept_in(WorkspaceView memory) const { return {memory.data, snapshot_size()}; }

  void require_room(Index sequence, Index tokens) const {
    mhla::require_room(sequence, position(sequence), tokens, capacity(),
                       mix_limits<V>(parts_.extents.mix_rows));
  }
  void advance(const CudaDevice& device, Index first, Index sequences, const Tensors& x) {
    const Index tokens = checked_decoder_tokens(shape_, sequences, x);
    const Span<Index> positions{positions_.data() + first, sequences};
    for (Index s = first; s < first + sequences; ++s) require_room(s, tokens);
    require_decoder_tensors(parts_.attention, x, memory_);
    Kernels::require_memory(x);
    const Index block_tokens = parts_.extents.block_tokens;
    for (Index done = 0, count = tokens; done < tokens; done += count) {
      if (x.y.size() > 0) {
        // A tile ends where any sequence reaches the end of its block.
        count = (std::min)(tokens - done, parts_.extents.tile());
        for (const Index position : positions)
          count = (std::min)(count, block_tokens - position % block_tokens);
        try {
          Kernels::run_tile(device, parts_, first, x.part(done, count));
        } catch (...) {
          for (Index& position : positions) position = lost;
          throw;
        }
      }
      for (Index& position : positions) position += count;
    }
  }

  DecoderShape shape_;
  std::vector<Index> positions_;
  WorkspaceView memory_;
  Parts parts_;
};

/// \cond INTERNAL
template <class V, class T>
requires(!VariantOfTensors<V, T>) class CudaDecoder<V, T> : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

MHLA_NAMESPACE_END
