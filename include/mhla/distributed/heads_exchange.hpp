// SPDX-License-Identifier: MIT
// Tensors of which every rank has some tokens of all heads, and then all tokens of some heads, or
// the other way round: an all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509).
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/distributed/agreement.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// The tokens of every rank, as backend H lists them.
template <class H>
struct TokenShares {
  std::vector<typename H::Tokens> of;  // [ranks]

  template <class List>
  TokenShares(const List& list, const Shares& blocks) {
    for (const BlockRange& share : blocks) of.push_back(H::tokens(list, share));
  }
  const typename H::Tokens& operator[](Index rank) const {
    return of[static_cast<std::size_t>(rank)];
  }
};

/// One tensor before and after.
template <class H>
struct ExchangedTensor {
  using T = typename H::Scalar;
  TensorView<T, 4> of_tokens;  // [batch, all heads, this rank's tokens, dim]
  TensorView<T, 4> of_heads;   // [batch, this rank's heads, all tokens, dim]
  const TokenShares<H>* tokens;
};

template <class H>
using Tensors = std::vector<ExchangedTensor<H>>;

enum class To { heads, tokens };

/// Moves tensors between ranks, all by one all_to_all. H packs what goes to a rank: see HostHeads.
template <class H, Communicator C>
class HeadsExchange {
  using T = typename H::Scalar;
  static constexpr auto element_bytes = static_cast<Index>(sizeof(T));

 public:
  /// `kv_heads` are those of every rank, who has the query heads that share them.
  HeadsExchange(const C& communicator, Shares kv_heads)
      : communicator_(&communicator), kv_heads_((std::move)(kv_heads)) {}

  const C& communicator() const { return *communicator_; }
  /// Of a tensor with `heads` heads, those of a rank.
  BlockRange heads_of(Index rank, Index heads) const {
    const BlockRange& share = kv_heads_[static_cast<std::size_t>(rank)];
    const Index all = kv_heads_.back().end();
    const Index group = all == 0 ? 0 : heads / all;
    return {share.first * group, share.count * group};
  }

  /// `buffer` takes all elements of both sides of all tensors. `update` says what is done with what
  /// the destinations hold. Results, which go to tokens, are written when all ranks have received
  /// theirs.
  template <class Executor>
  void run(const Executor& executor, To to, const Tensors<H>& tensors, Update update,
           Span<T> buffer) const {
    const Side sent = to == To::heads ? Side::tokens : Side::heads;
    const Side received = to == To::heads ? Side::heads : Side::tokens;
    const std::vector<Part> sent_parts = parts(sent, tensors);
    const std::vector<Part> received_parts = parts(received, tensors);
    T* const out = buffer.data;
    T* const in = out + (sent_parts.back().first + sent_parts.back().bytes) / element_bytes;
    const Index ranks = communicator_->size();
    for_each_piece(sent, tensors, [&](const Piece& piece, Index first) {
      H::pack(executor, piece.tensor, piece.tokens, out + first);
    });
    communicator_->all_to_all(out, {sent_parts.data(), ranks}, in, {received_parts.data(), ranks});
    if (to == To::tokens) confirm(*communicator_);
    for_each_piece(received, tensors, [&](const Piece& piece, Index first) {
      H::unpack(executor, in + first, piece.tensor, piece.tokens, update);
    });
  }

 private:
  // A tensor as it is divided by tokens, whose heads go to other ranks or come from them, or by
  // heads, whose tokens do.
  enum class Side { tokens, heads };

  // What is exchanged with a rank: these heads and tokens of one side.
  struct Piece {
    TensorView<T, 4> tensor;           // [batch, heads, .., dim]
    const typename H::Tokens* tokens;  // null: all in turn

    Index elements() const {
      const Index count = tokens == nullptr ? tensor.extent[2] : static_cast<Index>(tokens->size());
      return tensor.extent[0] * tensor.extent[1] * count * tensor.extent[3];
    }
  };
  Piece piece(Side side, const ExchangedTensor<H>& tensor, Index rank) const {
    if (side == Side::heads) return {tensor.of_heads, &(*tensor.tokens)[rank]};
    const BlockRange heads = heads_of(rank, tensor.of_tokens.extent[1]);
    TensorView<T, 4> part = tensor.of_tokens;
    if (part.data != nullptr) part.data += heads.first * part.stride[1];
    part.extent[1] = heads.count;
    return {part, nullptr};
  }

  // Calls visit(piece, its first element in the message) for what is exchanged with each rank: all
  // tensors' pieces, one after the other.
  template <class Visit>
  void for_each_piece(Side side, const Tensors<H>& tensors, const Visit& visit) const {
    Index end = 0;
    for (Index r = 0; r < communicator_->size(); ++r)
      for (const auto& tensor : tensors) {
        const Piece part = piece(side, tensor, r);
        if (part.elements() > 0) visit(part, end);
        end += part.elements();
      }
  }
  std::vector<Part> parts(Side side, const Tensors<H>& tensors) const {
    std::vector<Part> all;
    Index end = 0;
    for (Index r = 0; r < communicator_->size(); ++r) {
      Index elements = 0;
      for (const auto& tensor : tensors) elements += piece(side, tensor, r).elements();
      all.push_back({end, elements * element_bytes});
      end += all.back().bytes;
    }
    return all;
  }

  const C* communicator_;
  Shares kv_heads_;
};

MHLA_NAMESPACE_END
