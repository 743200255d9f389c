// SPDX-License-Identifier: MIT
// Sequences of symbols, some of which have to be predicted.
#pragma once

#include <vector>

#include "../layers/cross_entropy.hpp"
#include "draws.hpp"

namespace training {

/// Sequences of equal length, one after another. What a token holds is the sum of the vectors of
/// its symbols.
struct TokenBatch {
  std::vector<std::vector<int>> symbols;  ///< [symbols of a token][tokens of all sequences]
  std::vector<layers::Prediction> predictions;

  Index tokens() const { return symbols.empty() ? 0 : static_cast<Index>(symbols[0].size()); }
};

/// Numbered sequences of two parts; those of training never end.
class TokenSequences {
 public:
  virtual ~TokenSequences() = default;
  virtual Index tokens() const = 0;  ///< of a sequence
  virtual Index symbols() const = 0;
  /// The first symbols, which are all that a prediction chooses from.
  virtual Index classes() const = 0;
  virtual Index predictions() const = 0;  ///< of a sequence
  /// How many there are to judge by.
  virtual Index validation() const = 0;
  /// Adds a sequence to the batch.
  virtual void append(Part part, Index number, TokenBatch& batch) const = 0;
};

}  // namespace training
