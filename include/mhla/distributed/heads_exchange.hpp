// SPDX-License-Identifier: MIT
// Tensors of which every rank has some tokens of all heads, and then all tokens of some heads, or
// the other way round: an all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509).
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/distributed/agreement.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// The tokens of every rank.
struct TokenShares {
  std::vector<std::vector<Index>> of;  // [ranks]: indices into the whole sequence

  template <class List>
  TokenShares(const List& list, const Shares& blocks) {
    for (const BlockRange& share : blocks) of.push_back(tokens_of(list, share));
  }
  const std::vector<Index>& operator[](Index rank) const {
    return of[static_cast<std::size_t>(rank)];
  }
};

/// One tensor before and after.
template <class T>
struct ExchangedTensor {
  TensorView<T, 4> of_tokens;  // [batch, all heads, this rank's tokens, dim]
  TensorView<T, 4> of_heads;   // [batch, this rank's heads, all tokens, dim]
  const TokenShares* tokens;
};

template <class T>
using Tensors = std::vector<ExchangedTensor<T>>;

enum class To { heads, tokens };

/// Moves tensors between ranks, all by one all_to_all.
template <Communicator C>
class HeadsExchange {
 public:
  /// `kv_heads` are those of every rank, who has the query heads that share them.
  HeadsExchange(const C& communicator, Shares kv_heads)
      : communicator_(&communicator), kv_heads_(std::move(kv_heads)) {}

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
  template <class T, class Executor>
  void run(const Executor& executor, To to, const Tensors<T>& tensors, Update update,
           Span<T> buffer) const {
    const Side sent = to == To::heads ? Side::tokens : Side::heads;
    const Side received = to == To::heads ? Side::heads : Side::tokens;
    const std::vector<Part> sent_parts = parts(sent, tensors);
    const std::vector<Part> received_parts = parts(received, tensors);
    auto* const out = reinterpret_cast<std::byte*>(buffer.data);
    std::byte* const in = out + sent_parts.back().first + sent_parts.back().bytes;
    const Index ranks = communicator_->size();
    for_each_row(executor, sent, tensors, out, [](T* row, T* packed, Index step, Index dim) {
      for (Index c = 0; c < dim; ++c) packed[c] = row[c * step];
    });
    communicator_->all_to_all(out, {sent_parts.data(), ranks}, in, {received_parts.data(), ranks});
    if (to == To::tokens) confirm(*communicator_);
    for_each_row(executor, received, tensors, in, [&](T* row, T* packed, Index step, Index dim) {
      for (Index c = 0; c < dim; ++c)
        if (update == Update::overwrite)
          row[c * step] = packed[c];
        else
          store(row[c * step], load(row[c * step]) + load(packed[c]));
    });
  }

 private:
  // A tensor as it is shared out by tokens, whose heads go to other ranks or come from them, or by
  // heads, whose tokens do.
  enum class Side { tokens, heads };

  // What is exchanged with a rank: these heads and tokens of one side.
  template <class T>
  struct Piece {
    TensorView<T, 4> tensor;  // [batch, heads, .., dim]
    const Index* tokens;      // null: all in turn
    Index count;

    Index rows() const { return tensor.extent[0] * tensor.extent[1] * count; }
    Index elements() const { return rows() * tensor.extent[3]; }
    T* row(Index i) const {
      const Index t = i % count;
      const Index head = i / count % tensor.extent[1];
      return &tensor(i / count / tensor.extent[1], head, tokens == nullptr ? t : tokens[t], 0);
    }
  };
  template <class T>
  Piece<T> piece(Side side, const ExchangedTensor<T>& tensor, Index rank) const {
    if (side == Side::heads) {
      const std::vector<Index>& tokens = (*tensor.tokens)[rank];
      return {tensor.of_heads, tokens.data(), static_cast<Index>(tokens.size())};
    }
    const BlockRange heads = heads_of(rank, tensor.of_tokens.extent[1]);
    TensorView<T, 4> part = tensor.of_tokens;
    if (part.data != nullptr) part.data += heads.first * part.stride[1];
    part.extent[1] = heads.count;
    return {part, nullptr, part.extent[2]};
  }

  // What is exchanged with each rank: all tensors' pieces, one behind the other.
  template <class T>
  std::vector<Part> parts(Side side, const Tensors<T>& tensors) const {
    std::vector<Part> all;
    Index end = 0;
    for (Index r = 0; r < communicator_->size(); ++r) {
      Index elements = 0;
      for (const auto& tensor : tensors) elements += piece(side, tensor, r).elements();
      all.push_back({end, elements * static_cast<Index>(sizeof(T))});
      end += all.back().bytes;
    }
    return all;
  }
  template <class T, class Executor, class Visit>
  void for_each_row(const Executor& executor, Side side, const Tensors<T>& tensors,
                    std::byte* packed, const Visit& visit) const {
    T* next = reinterpret_cast<T*>(packed);
    for (Index r = 0; r < communicator_->size(); ++r)
      for (const auto& tensor : tensors) {
        const Piece<T> part = piece(side, tensor, r);
        const Index dim = part.tensor.extent[3];
        if (part.elements() > 0)
          executor.parallel_for(part.rows(), [&](Index i, Index) {
            visit(part.row(i), next + i * dim, part.tensor.stride[3], dim);
          });
        next += part.elements();
      }
  }

  const C* communicator_;
  Shares kv_heads_;
};

MHLA_NAMESPACE_END
