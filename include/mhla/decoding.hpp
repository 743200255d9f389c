// SPDX-License-Identifier: MIT
/// \defgroup decoding Decoding
/// Causal attention token by token, equal to the forward pass over the whole sequence.
/// \code
/// using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
/// mhla::Decoder<Sequence, float> decoder(Sequence{.blocks = {.block = 64}}, mix_view,
///                                        {.batch = 2, .heads = 4, .kv_heads = 4,
///                                         .key_dim = 64, .value_dim = 64});
/// decoder.prefill(0, prompt, prompt, prompt, prompt_out);  // any number of tokens of sequence 0
/// decoder.step(token, token, token, token_out);            // the next tokens of every sequence
/// \endcode
/// A step costs the same wherever in its block a token lies: the work that a full block leaves
/// is spread over the tokens of the next one. Memory is allocated by the constructor only.
/// With Precision::fast, a call rounds where it takes 16 or more tokens of a block at once, as a
/// prefill does. Single steps and the state stay exact.
/// With RecurrentMixing a step also costs the same wherever in its sequence a token lies, and the
/// state is that of two blocks' tokens and of `states` summaries for each of mix's heads.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cpu/pairs/decode_step.hpp>
#include <mhla/policy/decoding_checks.hpp>

MHLA_NAMESPACE_BEGIN

/// The streaming state of a batch of sequences, and the steps that advance it. A value: a copy is
/// an independent snapshot. T is the storage type of q, k, v and y; mix is copied, in the
/// accumulator type. A decoder is used from one thread at a time; its executor spreads a step over
/// threads, with the same bits for any number of them.
/// \ingroup decoding
template <class V, class T = void>
class Decoder : DecoderErrors, RequireStreaming<V> {
  using A = Accumulator<T>;

 public:
  /// mix [1, heads or batch * heads, blocks, blocks] or [blocks, blocks] limits a sequence to
  /// capacity() tokens: blocks times attention.blocks.block. So does that of RecurrentMixing,
  /// [.., blocks, columns], unless it is a single row, which leaves sequences without limit; with a
  /// rotation DecoderShape::max_tokens is needed then.
  /// \throws ShapeError if variant, mix and shape do not fit.
  Decoder(const V& variant, const TensorView<const A, 3>& mix, const DecoderShape& shape)
      : attention_(variant),
        shape_(shape),
        positions_(static_cast<std::size_t>(checked_decoder_batch(shape))) {
    const Problem problem = checked_decoder(variant, mix, shape);
    Footprint footprint;
    footprint.add(mix, "mix");
    if constexpr (borrows_projection<V>)
      footprint.add(variant.feature_map.projection, "feature_map.projection");
    footprint.require_addresses();
    capacity_ = decoder_capacity(variant, mix, shape);
    mix_shape_ = problem.shape;
    extents_ = {recurrent ? Index{0} : mix.extent[1],
                variant.blocks.block,
                problem.feature_dim,
                shape.value_dim,
                problem.shape.matrices(),
                normalized};
    if constexpr (recurrent) extents_.states = variant.mixing.states;
    extents_.rounds = cpu::multiplies_pairs<T>(attention_, problem, false) &&
                      variant.blocks.block >= cpu::pairs::least_decode_tile;
    allocate();
    const Index rows = mix.extent[1];
    const Index columns = mix.extent[2];
    for (Index h = 0; h < mix.extent[0]; ++h)
      for (Index i = 0; i < rows; ++i)
        for (Index c = 0; c < columns; ++c)
          mixing_[(h * rows + i) * columns + c] = recurrent || c <= i ? mix(h, i, c) : A(0);
    fingerprint_ = fingerprint();
    reset();
  }

  /// \cond INTERNAL
  MHLA_ANY_CALL(Decoder, { this->template explain_constructor<Given...>(); })
  using DecoderErrors::load;
  using DecoderErrors::prefill;
  using DecoderErrors::save;
  using DecoderErrors::step;
  /// \endcond

  /// A snapshot.
  Decoder(const Decoder& other)
      : attention_(other.attention_),
        shape_(other.shape_),
        positions_(other.positions_),
        capacity_(other.capacity_),
        mix_shape_(other.mix_shape_),
        extents_(other.extents_),
        fingerprint_(other.fingerprint_) {
    allocate();
    std::copy_n(other.memory_.data(), memory_.size(), memory_.data());
  }
  /// Restores a snapshot.
  Decoder& operator=(const Decoder& other) {
    Decoder copy(other);
    return *this = (std::move)(copy);
  }
  /// Leaves a decoder that can only be assigned to or destroyed.
  Decoder(Decoder&&) noexcept = default;
  /// Leaves a decoder that can only be assigned to or destroyed.
  Decoder& operator=(Decoder&&) noexcept = default;

  /// Maximum tokens of a sequence: mix has no row for the next one, or no tensor could hold more.
  Index capacity() const { return capacity_; }
  /// Tokens that a sequence has seen. \throws ShapeError if there is no such sequence.
  Index position(Index sequence) const {
    return positions_[static_cast<std::size_t>(checked_sequence(shape_, sequence))];
  }

  /// Forgets the tokens of one sequence. \throws ShapeError if there is no such sequence.
  void reset(Index sequence) {
    positions_[static_cast<std::size_t>(checked_sequence(shape_, sequence))] = 0;
  }
  /// Forgets the tokens of all sequences.
  void reset() { std::fill(positions_.begin(), positions_.end(), Index{0}); }

  /// The next tokens of every sequence: q and y [batch, heads, tokens, dim], k and v
  /// [batch, kv_heads, tokens, dim], for any number of tokens.
  /// y shares no element with q, k and v. Allocates nothing.
  /// \throws ShapeError if they do not fit, StateError if a sequence would exceed capacity() or
  /// the executor has more slots than the decoder; nothing has changed then. What the feature map
  /// or the executor throws passes through: the decoder is unchanged, but y may have been written.
  template <Executor E>
  void step(const E& executor, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
            const TensorView<const T, 4>& v, const TensorView<T, 4>& y) {
    advance(executor, 0, shape_.batch, {q, k, v, y});
  }
  /// On the calling thread.
  void step(const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
            const TensorView<const T, 4>& v, const TensorView<T, 4>& y) {
    step(SerialExecutor{}, q, k, v, y);
  }

  /// The next tokens of one sequence: as step(), with a batch axis of 1.
  template <Executor E>
  void prefill(const E& executor, Index sequence, const TensorView<const T, 4>& q,
               const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
               const TensorView<T, 4>& y) {
    advance(executor, checked_sequence(shape_, sequence), 1, {q, k, v, y});
  }
  /// On the calling thread.
  void prefill(Index sequence, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
               const TensorView<const T, 4>& v, const TensorView<T, 4>& y) {
    prefill(SerialExecutor{}, sequence, q, k, v, y);
  }

  /// Number of bytes that save() writes.
  Index saved_size() const {
    return static_cast<Index>(sizeof(Header)) + shape_.batch * static_cast<Index>(sizeof(Index)) +
           state_bytes_;
  }

  /// Writes the state, without mix, into `bytes`, for load() on the same kind of machine by a
  /// decoder of the same variant, sizes and mix.
  /// \throws StateError if there are fewer than saved_size() bytes.
  void save(Span<std::byte> bytes) const {
    if (bytes.size < saved_size())
      throw StateError(
          {"mhla: save: ", saved_size(), " bytes are needed, ", bytes.size, " were given"});
    std::byte* const state =
        std::copy_n(reinterpret_cast<const std::byte*>(positions_.data()),
                    positions_.size() * sizeof(Index), bytes.data + sizeof(Header));
    std::copy_n(memory_.data(), state_bytes_, state);
    Header header = this->header();
    header.checksum = checksum(bytes.data + sizeof(Header), saved_size() - Index{sizeof(Header)});
    std::memcpy(bytes.data, &header, sizeof(header));
  }

  /// Restores a state that save() wrote, of a decoder of the same variant, sizes and mix.
  /// \throws StateError if `bytes` are too few, damaged, or of another decoder; nothing has
  /// changed then.
  void load(Span<const std::byte> bytes) {
    if (bytes.size < saved_size())
      throw StateError({"mhla: load: the saved state is cut short: ", saved_size(),
                        " bytes are needed, ", bytes.size, " were given"});
    Header stored;
    std::memcpy(&stored, bytes.data, sizeof(stored));
    Header expected = header();
    if (std::memcmp(stored.magic, expected.magic, sizeof(stored.magic)) != 0)
      throw StateError("mhla: load: the bytes are not a decoder's saved state");
    if (stored.version != expected.version)
      throw StateError({"mhla: load: the saved state has format ", stored.version,
                        ", this library reads format ", expected.version});
    expected.checksum = stored.checksum;
    if (std::memcmp(&stored, &expected, sizeof(stored)) != 0)
      throw StateError(
          "mhla: load: the state was saved by a decoder of another variant, size or mixing matrix");
    const std::byte* from = bytes.data + sizeof(Header);
    if (stored.checksum != checksum(from, saved_size() - Index{sizeof(Header)}))
      throw StateError("mhla: load: the saved state is damaged: its checksum does not match");
    const auto stored_position = [&](std::size_t sequence) -> Index {
      Index position;
      std::memcpy(&position, from + sequence * sizeof(position), sizeof(position));
      return position;
    };
    for (std::size_t s = 0; s < positions_.size(); ++s)
      if (stored_position(s) < 0 || stored_position(s) > capacity_)
        throw StateError({"mhla: load: the saved state is damaged: a sequence has ",
                          stored_position(s), " tokens"});
    for (std::size_t s = 0; s < positions_.size(); ++s) positions_[s] = stored_position(s);
    std::copy_n(from + positions_.size() * sizeof(Index), state_bytes_, memory_.data());
  }

 private:
  static constexpr bool normalized = normalizes<V>;
  static constexpr bool recurrent = is_structured<V>;

  static constexpr bool may_round = std::is_same_v<cpu::InPairs<T>, bool>;
  using Slot = std::conditional_t<may_round, cpu::pairs::DecodeSlot, cpu::DecodeSlot<A>>;

  // What save() writes first. Compared bytewise: it has no padding.
  struct Header {
    char magic[8];
    std::int64_t version;
    std::int64_t scalar_bytes;
    std::int64_t extents[9];
    std::uint64_t fingerprint;  // of the variant and the mixing matrix
    std::uint64_t checksum;     // of what follows
  };

  void take_tables(Arena& arena) {
    mixing_ = arena.take<A>(checked_mul(
        mix_shape_.mix_heads, checked_mul(mix_shape_.mix_query_blocks, mix_shape_.mix_key_blocks)));
    const Grid positions{{1, 1, capacity_}, {1, 1, extents_.block_tokens}};
    rotation_ = cpu::rotation_table<A>(arena, attention_.rotation, 1, extents_.feature_dim,
                                       positions.grid_box(), SerialExecutor{});
  }
  // Lays everything out in one piece of memory: first the state, then what is derived or scratch.
  // What is repeated is measured once. If y is always empty there is no state.
  void allocate() {
    const bool empty = group_size() == 0 || shape_.value_dim == 0;
    const Index units = empty ? 0 : checked_mul(shape_.batch, shape_.kv_heads);
    Arena unit, undo, slot, tables;
    cpu::DecodeUnit<A>(unit, extents_);
    cpu::DecodeUndo<A>(undo, extents_);
    Slot(slot, extents_, shape_.key_dim, recurrent);
    take_tables(tables);
    state_bytes_ = checked_mul(units, unit.used());
    const Index derived = checked_add(checked_mul(units, undo.used()), tables.used());
    const Index scratch = checked_mul(shape_.num_slots, slot.used());
    memory_ = Workspace(checked_add(state_bytes_, checked_add(derived, scratch)));
    std::fill_n(memory_.data(), memory_.size(), std::byte{0});

    Arena arena(memory_);
    for (Index u = 0; u < units; ++u) units_.emplace_back(arena, extents_);
    for (Index u = 0; u < units; ++u) undos_.emplace_back(arena, extents_);
    take_tables(arena);
    for (Index s = 0; s < shape_.num_slots; ++s)
      slots_.emplace_back(arena, extents_, shape_.key_dim, recurrent);
  }
  Index group_size() const { return mix_shape_.group_size(); }

  Header header() const {
    Header h{};
    std::memcpy(h.magic, "mhla dec", sizeof(h.magic));
    h.version = 1;
    h.scalar_bytes = sizeof(A);
    const Index sizes[9] = {
        shape_.batch,    shape_.heads,          shape_.kv_heads,
        shape_.key_dim,  extents_.feature_dim,  extents_.value_dim,
        extents_.blocks, extents_.block_tokens, extents_.matrices * 2 + (normalized ? 1 : 0)};
    std::copy(sizes, sizes + 9, h.extents);
    h.fingerprint = fingerprint_;
    return h;
  }
  // Variants are told apart by their numbers: phi of two rows, the rotation's table, and mix.
  std::uint64_t fingerprint() const {
    const auto hash_of = [](std::uint64_t hash, const auto* values, Index count) {
      return checksum(reinterpret_cast<const std::byte*>(values),
                      count * static_cast<Index>(sizeof(*values)), hash);
    };
    const double numbers[] = {attention_.scale, [&] {
                                if constexpr (normalized) return attention_.normalizer.epsilon;
                                return 0.0;
                              }()};
    std::uint64_t hash = hash_of(first_hash, numbers, 2);
    if constexpr (recurrent) {
      const Index extents[] = {extents_.states, mix_shape_.mix_heads};  // its rows are the rest
      hash = hash_of(hash, extents, 2);
    }
    const Span<A> in{slots_[0].row.input.data, shape_.key_dim};
    const Span<A> out{slots_[0].queries.data, extents_.feature_dim};
    for (const A sign : {A(1), A(-1)}) {
      for (Index c = 0; c < in.size; ++c)
        in[c] = (c % 2 == 0 ? sign : -sign) * (A(c) + A(0.5)) / A(in.size);
      if constexpr (RowwiseFeatureMap<typename V::FeatureMapType>) {
        attention_.feature_map.value(Span<const A>(in), out);
      } else {
        for (Index c = 0; c < in.size; ++c) out[c] = attention_.feature_map.value(in[c]);
      }
      hash = hash_of(hash, out.data, out.size);
    }
    const auto& axis = rotation_.axis[2];
    hash = hash_of(hash, &rotation_.layout, 1);
    hash = hash_of(hash, axis.cosine.data, axis.cosine.size);
    hash = hash_of(hash, axis.sine.data, axis.sine.size);
    return hash_of(hash, mixing_.data, mixing_.size);
  }
  static constexpr std::uint64_t first_hash = 14695981039346656037u;
  static std::uint64_t checksum(const std::byte* bytes, Index count,
                                std::uint64_t hash = first_hash) {  // FNV-1a
    for (Index i = 0; i < count; ++i)
      hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 1099511628211u;
    return hash;
  }

  void advance(const ExecutorRef& executor, Index first_sequence, Index sequences,
               const DecodeTensors<T>& x) {
    const Index tokens = checked_decoder_tokens(shape_, sequences, x);
    for (Index s = first_sequence; s < first_sequence + sequences; ++s)
      require_room(s, position(s), tokens, capacity_, mix_limits<V>(mix_shape_.mix_query_blocks));
    require_decoder_tensors(attention_, x).require_addresses();
    if (executor.num_slots() > shape_.num_slots)
      throw StateError({"mhla: num_slots: the executor has ", executor.num_slots(),
                        " but the decoder was made for ", shape_.num_slots});

    if (x.y.size() > 0) {
      const Index first = first_sequence * shape_.kv_heads;
      const Index units = sequences * shape_.kv_heads;
      for (Index u = first; u < first + units; ++u) undo(u).forget();
      try {
        executor.parallel_for(units, [&](Index task, Index slot) {
          run_unit(first + task, slots_[static_cast<std::size_t>(slot)], first_sequence, x);
        });
      } catch (...) {
        for (Index u = first; u < first + units; ++u) undo(u).restore(extents_, unit(u));
        throw;
      }
    }
    for (Index s = first_sequence; s < first_sequence + sequences; ++s)
      positions_[static_cast<std::size_t>(s)] += tokens;
  }

  // All tokens of one kv head of one sequence; the first sequence is item 0 of the tensors.
  void run_unit(Index index, const Slot& slot, Index first_sequence, const DecodeTensors<T>& x) {
    const Index sequence = index / shape_.kv_heads;
    const Index tokens = x.y.extent[2];
    Index at = position(sequence);
    undo(index).begin(unit(index), at / extents_.block_tokens, at % extents_.block_tokens);
    for (Index done = 0; done < tokens;) {
      const Index first = at % extents_.block_tokens;
      const cpu::DecodeTile tile{
          at / extents_.block_tokens, first,
          (std::min)({tokens - done, extents_.block_tokens - first, cpu::max_decode_tile})};
      undo(index).keep(extents_, unit(index), tile);
      // Tokens [done, done + tile.tokens) of q, k, v and y, as a table of one run, whose positions
      // count from the sequence's first token.
      cpu::TokenRun run{done, tile.tokens, {0, 0, at}};
      cpu::BlockTable table;
      table.runs = {&run, 1};
      table.places = slot.places;
      for (Index t = 0; t < tile.tokens; ++t) slot.places[t] = done + t;
      run_tile({tile, unit(index), slot, table, sequence, sequence - first_sequence,
                index % shape_.kv_heads},
               x);
      at += tile.tokens;
      done += tile.tokens;
    }
  }
  const cpu::DecodeUnit<A>& unit(Index index) const {
    return units_[static_cast<std::size_t>(index)];
  }
  cpu::DecodeUndo<A>& undo(Index index) { return undos_[static_cast<std::size_t>(index)]; }

  // One tile of one kv head at work.
  struct TileRun {
    const cpu::DecodeTile& tile;
    const cpu::DecodeUnit<A>& unit;
    const Slot& slot;
    const cpu::BlockTable& table;  // of the tile's tokens alone
    Index sequence;
    Index item;
    Index kv_head;
    cpu::TokenTile tokens{0, 1, 0, tile.tokens, 0};

    cpu::Panel<A> panel(Span<A> memory, Index cols) const {
      return cpu::panel(memory.data, tile.tokens, cols);
    }
  };

  void run_tile(const TileRun& at, const DecodeTensors<T>& step) const {
    const cpu::DecodeTile& tile = at.tile;
    const cpu::DecodeUnit<A>& unit = at.unit;
    const cpu::DecodeExtents& e = extents_;
    const cpu::Panel<A> keys = pack_open_keys(at, step);
    Span<A> key_sum;
    if constexpr (normalized) {
      key_sum = unit.open_key_sum(e, tile.block);
      if (tile.first == 0) std::fill_n(key_sum.data, key_sum.size, A(0));
    }
    if constexpr (may_round)
      if (rounds(tile)) cpu::pairs::round_kept_tokens(e, unit, tile, at.slot);
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const cpu::DecodeWeights<A> weights = weights_of(mix_of(at, matrix), tile.block);
      if constexpr (may_round)
        if (rounds(tile)) cpu::pairs::round_mixture(e, unit, tile, matrix, at.slot);
      if constexpr (normalized) sum_running_keys(at, matrix, weights.open, keys, key_sum);
      const Index heads_end = e.matrices == 1 ? group_size() : matrix + 1;
      for (Index g = e.matrices == 1 ? 0 : matrix; g < heads_end; ++g)
        read_out(at, step, matrix, weights, at.kv_head * group_size() + g);
    }
    if constexpr (normalized) cpu::weighted_row_sum<A>(key_sum, keys, {}, Into::add);
    const bool closes = normalized && tile.first + tile.tokens == e.block_tokens;
    if constexpr (recurrent) {
      const auto row = [&](Index matrix, Index block) {
        return recurrent_row(mix_of(at, matrix), block);
      };
      cpu::advance_states(e, unit, tile, row, at.slot.summary.data);
      if (closes) cpu::advance_key_sums(e, unit, tile.block, row);
    } else {
      const auto next_row = [&](Index matrix) {
        return mixing_row(mix_of(at, matrix), tile.block + 1);
      };
      cpu::prepare_next_block(e, unit, tile, next_row);
      if (closes) cpu::mix_next_key_sums(e, unit, tile.block, next_row);
    }
  }

  // What s R phi of the tile's rows of x is computed from, for one head.
  cpu::TileFeatures<typename V::FeatureMapType, T, A> features_of(const TileRun& at, A scale,
                                                                  const TensorView<const T, 4>& x,
                                                                  Index head) const {
    return {attention_.feature_map, rotation_, scale, at.table, at.tokens, {x, at.item, head}};
  }
  Index mix_of(const TileRun& at, Index matrix) const {
    return mix_shape_.mix_of(at.sequence, at.kv_head * group_size() + matrix);
  }

  // Adds the tile to the open block's keys and values; returns its keys before the rotation.
  cpu::Panel<A> pack_open_keys(const TileRun& at, const DecodeTensors<T>& step) const {
    const cpu::DecodeTile& tile = at.tile;
    const cpu::Panel<A> keys = at.panel(at.slot.keys, extents_.feature_dim);
    const cpu::Panel<A> open_keys =
        at.unit.key_rows(extents_, tile.open_turn(), tile.first, tile.tokens);
    cpu::pack_features(features_of(at, A(1), step.k, at.kv_head),
                       cpu::FeaturePanels<A>{keys, open_keys}, at.slot.row);
    if (!rotation_.rotates())
      for (Index t = 0; t < tile.tokens; ++t)
        cpu::copy_row(open_keys.row(t), keys.row(t), extents_.feature_dim);
    cpu::gather<T, A>(at.table, at.tokens, cpu::TokenRows<const T>(step.v, at.item, at.kv_head), {},
                      at.unit.value_rows(extents_, tile.open_turn(), tile.first, tile.tokens));
    return keys;
  }
  // p_t by one matrix, in the slot's key_sums.
  void sum_running_keys(const TileRun& at, Index matrix, A open_weight, const cpu::Panel<A>& keys,
                        Span<const A> key_sum) const {
    const Index features = extents_.feature_dim;
    A* const running = at.slot.running.data;
    if (at.tile.block == 0) {
      std::fill_n(running, features, A(0));
    } else {
      cpu::copy_row(running, at.unit.mixed_sum(extents_, at.tile.open_turn(), matrix), features);
    }
    cpu::add_scaled_row(running, open_weight, key_sum.data, features);
    cpu::add_rows<A>({at.slot.running}, open_weight, keys, Into::add,
                     at.panel(at.slot.key_sums, features));
  }
  // Whether a tile's queries read in pairs.
  bool rounds(const cpu::DecodeTile& tile) const {
    return extents_.rounds && tile.tokens >= cpu::pairs::least_decode_tile;
  }
  cpu::Panel<A> numerators(const TileRun& at, Index matrix, const cpu::DecodeWeights<A>& weights,
                           const cpu::Panel<const A>& rotated) const {
    const cpu::DecodeExtents& e = extents_;
    if constexpr (may_round)
      if (rounds(at.tile))
        return cpu::pairs::read_out_decode_tile(e, at.unit, at.tile, weights, rotated, at.slot);
    const cpu::Panel<A> out = at.panel(at.slot.numerators, e.value_dim);
    cpu::read_out_decode_tile<A>(e, at.unit, at.tile, matrix, weights, rotated,
                                 at.panel(at.slot.scores, e.block_tokens), out);
    return out;
  }
  // y of a query head.
  void read_out(const TileRun& at, const DecodeTensors<T>& step, Index matrix,
                const cpu::DecodeWeights<A>& weights, Index head) const {
    const cpu::DecodeExtents& e = extents_;
    const Slot& slot = at.slot;
    const cpu::Panel<A> features = at.panel(slot.queries, e.feature_dim);
    const cpu::Panel<A> rotated =
        rotation_.rotates() ? at.panel(slot.rotated, e.feature_dim) : features;
    cpu::pack_features(features_of(at, static_cast<A>(attention_.scale), step.q, head),
                       cpu::FeaturePanels<A>{features, rotated}, slot.row);
    const cpu::Panel<A> out = numerators(at, matrix, weights, rotated);
    if constexpr (normalized) {
      const Span<A> denominators{slot.denominators.data, at.tile.tokens};
      cpu::mixed_key_sum_denominators<A>(features, at.panel(slot.key_sums, e.feature_dim),
                                         static_cast<A>(attention_.normalizer.epsilon),
                                         denominators);
      cpu::divide_rows<A>(out, denominators);
    }
    cpu::scatter<T, A>(at.table, at.tokens, out, {}, cpu::TokenRows<T>(step.y, at.item, head),
                       Update::overwrite);
  }

  // Row `block` of one of mix's matrices, or null if there is none.
  const A* mixing_row(Index matrix, Index block) const {
    const Index rows = mix_shape_.mix_query_blocks;
    if (recurrent && rows == 1) block = 0;
    return block < rows ? mixing_.data + (matrix * rows + block) * mix_shape_.mix_key_blocks
                        : nullptr;
  }
  RecurrentRow<A> recurrent_row(Index matrix, Index block) const {
    return {mixing_row(matrix, block), extents_.states};
  }
  cpu::DecodeWeights<A> weights_of(Index matrix, Index block) const {
    if constexpr (recurrent) {
      const auto row = recurrent_row(matrix, block);
      return {row.closing(), row.own()};
    }
    const A* const row = mixing_row(matrix, block);
    return {block == 0 ? A(0) : row[block - 1], row[block]};
  }

  V attention_;
  DecoderShape shape_;
  std::vector<Index> positions_;
  Index capacity_ = 0;
  Shape mix_shape_;  // of mix, in a call of the decoder's sizes
  cpu::DecodeExtents extents_{};
  std::uint64_t fingerprint_ = 0;
  Workspace memory_;
  Index state_bytes_ = 0;
  std::vector<cpu::DecodeUnit<A>> units_;
  std::vector<cpu::DecodeUndo<A>> undos_;  // of each unit
  Span<A> mixing_;  // [mix_heads, rows, columns]; dense: 0 above the diagonal
  cpu::RotationTable<A> rotation_;
  std::vector<Slot> slots_;
};

/// \cond INTERNAL
template <class V, class T>
requires(!VariantOfTensors<V, T>) class Decoder<V, T> : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

MHLA_NAMESPACE_END
