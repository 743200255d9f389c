// SPDX-License-Identifier: MIT
// Decoders: tokens in pieces of any length, sequences that begin anew, copies, saved states, bytes
// that were damaged. Whatever the order, token t of a sequence has the output of the forward pass.
#include <cstring>
#include <map>
#include <mhla/core/error.hpp>

#include "tests/fuzz/attack.hpp"

namespace fuzz {

namespace {

using Bytes = std::vector<std::byte>;

std::uint64_t fnv1a(const Bytes& bytes, std::size_t first) {
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t i = first; i < bytes.size(); ++i)
    hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 1099511628211u;
  return hash;
}

// Where the checksum of all that follows it stands.
std::size_t place_of_checksum(const Bytes& bytes) {
  for (std::size_t at = 0; at + 8 <= bytes.size() && at < 1024; at += 8) {
    std::uint64_t stored;
    std::memcpy(&stored, bytes.data() + at, 8);
    if (stored == fnv1a(bytes, at + 8)) return at;
  }
  fail("a saved state without a checksum");
}

Bytes damaged(Bytes bytes, Draw& draw) {
  const std::size_t checksum = place_of_checksum(bytes);
  if (draw.once_in(6)) {
    bytes.resize(static_cast<std::size_t>(draw.below(std::ssize(bytes))));
    return bytes;
  }
  const Size header = static_cast<Size>(checksum) + 8;
  for (Size count = draw.between(1, 4); count > 0; --count) {
    const Size reach = draw.once_in(2) ? header + 64 : std::ssize(bytes);
    auto& byte = bytes[static_cast<std::size_t>(draw.below(std::min(reach, std::ssize(bytes))))];
    byte ^= static_cast<std::byte>(1 + draw.below(255));
  }
  if (draw.once_in(2)) {  // mended
    const std::uint64_t mended = fnv1a(bytes, checksum + 8);
    std::memcpy(bytes.data() + checksum, &mended, 8);
  }
  return bytes;
}

// A decoder, and what is known about it.
struct Stream {
  std::unique_ptr<AnyDecoder> decoder;
  std::vector<Size> positions;
  bool sound = true;  ///< its state is not a damaged one
};

class Attack {
 public:
  Attack(Draw& draw, Tally& tally)
      : draw_(draw), tally_(tally), random_(random_case(draw, Wish::decodable)) {
    situation = "decoder: " + description_of(random_);
    Problem& problem = random_.problem;
    // A decoder's matrix is square, and its capacity what all its rows make.
    sequences_ = problem.q.extent[0];
    slots_ = draw.between(1, 3);
    placed_ = place(random_, &draw);
    const Call& call = placed_.call;
    stream_ = {random_.entry->decoder(call, sequences_, slots_),
               std::vector<Size>(static_cast<std::size_t>(sequences_)), true};
    if (stream_.decoder->capacity() < problem.q.extent[2]) fail("a small capacity");
    problem.numbers.fast = false;  // which a decoder is not
    expected_ = attend(problem, random_.precision(), false).y;
  }

  void run() {
    for (Size action = draw_.between(3, 14); action > 0; --action) {
      switch (draw_.below(9)) {
        case 0:
          reset();
          break;
        case 1:
          saved_.emplace_back(stream_.decoder->save(), stream_.positions, stream_.sound);
          break;
        case 2:
          if (!saved_.empty()) load();
          break;
        case 3:
          load_damaged();
          break;
        case 4:
          copy();
          break;
        case 5:
          load_foreign();
          break;
        case 6:
          feed_wrongly();
          break;
        default:
          feed();
      }
      for (Size s = 0; s < sequences_; ++s)
        if (stream_.decoder->position(s) != stream_.positions[static_cast<std::size_t>(s)])
          fail("a sequence is at another position");
    }
    feed();
  }

 private:
  void reset() {
    const bool all = draw_.once_in(3);
    if (sequences_ == 0 && !all) return;
    const Size which = all ? every_sequence : draw_.below(sequences_);
    stream_.decoder->reset(which);
    for (Size s = 0; s < sequences_; ++s)
      if (all || s == which) stream_.positions[static_cast<std::size_t>(s)] = 0;
    // Nothing that a sequence has seen is seen again.
    if (all) stream_.sound = true;
  }

  void load() {
    const auto& [bytes, positions, sound] = draw_.any_of(saved_);
    stream_.decoder->load(bytes);
    stream_.positions = positions;
    stream_.sound = sound;
  }

  void load_damaged() {
    const Bytes good = stream_.decoder->save();
    const Bytes bytes = damaged(good, draw_);
    if (bytes == good) return;
    ++tally_.calls;
    try {
      stream_.decoder->load(bytes);
    } catch (const mhla::StateError&) {
      if (stream_.decoder->save() != good) fail("a refused state has changed the decoder");
      return;
    }
    // Numbers of a state may be any, if the checksum says so.
    if (fnv1a(bytes, place_of_checksum(good) + 8) == fnv1a(good, place_of_checksum(good) + 8))
      fail("a damaged header was taken for a good one");
    stream_.sound = false;
    for (Size s = 0; s < sequences_; ++s)
      stream_.positions[static_cast<std::size_t>(s)] = stream_.decoder->position(s);
    for (const Size position : stream_.positions)
      if (position < 0 || position > stream_.decoder->capacity()) fail("a position out of range");
  }

  // What a decoder with one number changed has saved.
  void load_foreign() {
    Case other = random_;
    if (draw_.once_in(2)) {
      other.problem.numbers.scale += 0.25;
    } else {
      for (double& weight : other.problem.mix.elements) weight += 1;
      if (other.problem.mix.elements.empty()) return;
    }
    Placed placed = place(other, nullptr);
    const Bytes bytes = other.entry->decoder(placed.call, sequences_, slots_)->save();
    const Bytes before = stream_.decoder->save();
    ++tally_.calls;
    try {
      stream_.decoder->load(bytes);
      fail("the state of another decoder was taken");
    } catch (const mhla::StateError&) {
      if (stream_.decoder->save() != before) fail("a refused state has changed the decoder");
    }
  }

  // The copy goes on, or the original does when the copy has.
  void copy() {
    Stream other{stream_.decoder->copy(), stream_.positions, stream_.sound};
    if (draw_.once_in(2)) std::swap(stream_, other);
    feed();
    if (draw_.once_in(2)) std::swap(stream_, other);
  }

  // The next tokens of one sequence, or of all. Positions are those of the tokens in the problem.
  void feed() {
    const bool all = draw_.once_in(2);
    if (sequences_ == 0 && !all) return;
    const Size first = all ? 0 : draw_.below(sequences_);
    const Size count = all ? sequences_ : 1;
    Size room = random_.problem.q.extent[2];
    for (Size s = first; s < first + count; ++s)
      room = std::min(room,
                      random_.problem.q.extent[2] - stream_.positions[static_cast<std::size_t>(s)]);
    if (room < 0) return;  // a damaged state may have more tokens than the problem
    const Size tokens = draw_.once_in(2) ? std::min(Size{1}, room) : draw_.between(0, room);
    Case piece = piece_of(first, count, tokens);
    Placed placed = place(piece, &draw_);
    placed.memory.freeze();
    placed.memory.may_change(random_.entry->scalar, placed.call.y);
    ++tally_.calls;
    stream_.decoder->feed(executor(), all ? every_sequence : first, placed.call);
    if (!placed.memory.intact()) fail("something beside y was written");
    if (stream_.sound) {
      Dense<Estimate> expected(placed.call.y.extent);
      for_each_element(placed.call.y, [&](Size, Size n, Size h, Size t, Size c) {
        expected(n, h, t, c) = expected_(first + n, h, position(first + n) + t, c);
      });
      require_near("y", random_.entry->scalar, read(random_.entry->scalar, placed.call.y), expected,
                   nullptr, tally_);
    }
    for (Size s = first; s < first + count; ++s)
      stream_.positions[static_cast<std::size_t>(s)] += tokens;
  }

  // Tokens that do not fit, of which nothing may remain.
  void feed_wrongly() {
    if (sequences_ == 0) return;
    const Bytes before = stream_.decoder->save();
    Case piece = piece_of(0, 1, 0);
    Placed placed = place(piece, &draw_);
    Call& call = placed.call;
    View* const views[] = {&call.q, &call.k, &call.v, &call.y};
    Size sequence = 0;
    const Size choice = draw_.below(3);
    if (choice == 0) {
      sequence = draw_.one_of({sequences_, Size{-2}, Size{1} << 62});
    } else if (choice == 1) {
      const auto axis = static_cast<std::size_t>(draw_.below(4));
      Size& extent = views[draw_.below(4)]->extent[axis];
      extent = draw_.one_of({extent + 1, 2 * extent + 7, Size{-1}, Size{1} << 62});
    } else {
      const Size beyond = stream_.decoder->capacity() + 1;
      const Size tokens = draw_.one_of({beyond, beyond + (Size{1} << 40), Size{-1}, -beyond});
      for (View* view : views) view->extent[2] = tokens;
      for (View* view : views) view->stride[2] = 0;
    }
    placed.memory.freeze();
    ++tally_.calls;
    bool refused = false;
    try {
      stream_.decoder->feed(mhla::SerialExecutor{}, sequence, call);
    } catch (const mhla::Error&) {
      refused = true;
    }
    if (!refused) fail("tokens that do not fit were taken");
    if (!placed.memory.intact()) fail("a refused step has written");
    if (stream_.decoder->save() != before) fail("a refused step has changed the decoder");
  }

  Case piece_of(Size first, Size count, Size tokens) {
    Case piece = random_;
    const auto cut = [&](Dense<double>& tensor) {
      const Dense<double> whole = tensor;
      tensor = Dense<double>(Extents{count, whole.extent[1], tokens, whole.extent[3]});
      for (Size n = 0; n < count; ++n)
        for (Size h = 0; h < whole.extent[1]; ++h)
          for (Size t = 0; t < tokens; ++t)
            for (Size c = 0; c < whole.extent[3]; ++c)
              tensor(n, h, t, c) = whole(first + n, h, position(first + n) + t, c);
    };
    for (Dense<double>* tensor :
         {&piece.problem.q, &piece.problem.k, &piece.problem.v, &piece.problem.dy,
          &piece.initial[0], &piece.initial[1], &piece.initial[2]})
      cut(*tensor);
    piece.expanded = {};  // sequences are at positions of their own
    return piece;
  }
  Size position(Size sequence) const {
    return stream_.positions[static_cast<std::size_t>(sequence)];
  }
  AnyExecutor executor() {
    while (true) {
      const AnyExecutor any(draw_);
      if (any.num_slots() <= slots_) return any;
    }
  }

  struct Saved {
    Bytes bytes;
    std::vector<Size> positions;
    bool sound;
    Saved(Bytes b, std::vector<Size> p, bool s)
        : bytes(std::move(b)), positions(std::move(p)), sound(s) {}
  };

  Draw& draw_;
  Tally& tally_;
  Case random_;
  Placed placed_;  // of which decoders borrow Favor's projection
  Size sequences_ = 0;
  Size slots_ = 1;
  Stream stream_;
  std::vector<Saved> saved_;
  Dense<Estimate> expected_;
};

}  // namespace

void attack_decoder(Draw& draw, Tally& tally) { Attack(draw, tally).run(); }

}  // namespace fuzz
