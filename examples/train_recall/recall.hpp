// SPDX-License-Identifier: MIT
// Associative recall: values are written under keys and asked for, in turns, so that every second
// token is a query.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "../training/token_sequences.hpp"

namespace train_recall {

using training::Index;
using training::Part;

/// What is written, and so what a query can ask for.
enum class Writing {
  again,  ///< the same keys again and again: the latest value counts, whatever was written before
  once    ///< each key once
};

class Recall : public training::TokenSequences {
 public:
  static constexpr int values = 16;  ///< symbols; the next one stands where a value is asked for
  static constexpr int query = values;
  static constexpr int first_key = values + 1;

  Recall(Writing writing, Index tokens, Index keys, std::uint64_t seed)
      : writing_(writing),
        writes_(tokens / 2),
        keys_(writing == Writing::once ? writes_ : keys),
        seed_(seed) {}

  Index tokens() const override { return 2 * writes_; }
  Index symbols() const override { return first_key + keys_; }
  Index classes() const override { return values; }
  Index predictions() const override { return writes_; }
  Index validation() const override { return mhla::ceil_div(Index{8192}, writes_); }
  Index keys() const { return keys_; }

  void append(Part part, Index number, training::TokenBatch& batch) const override {
    training::Draws draws(seed_, part, number);
    const std::vector<int> keys = written_keys(draws);
    std::vector<int> latest(static_cast<std::size_t>(keys_), -1);
    std::vector<int> known;  // keys, each of them once
    batch.symbols.resize(2);
    const auto add = [&](int value, int key) {
      batch.symbols[0].push_back(value);
      batch.symbols[1].push_back(first_key + key);
    };
    for (const int key : keys) {
      int& value = latest[static_cast<std::size_t>(key)];
      if (value < 0) known.push_back(key);
      value = static_cast<int>(draws.below(values));
      add(value, key);
      const int asked = known[below(draws, known.size())];
      batch.predictions.push_back({batch.tokens(), latest[static_cast<std::size_t>(asked)]});
      add(query, asked);
    }
  }

 private:
  static std::size_t below(training::Draws& draws, std::size_t bound) {
    return static_cast<std::size_t>(draws.below(static_cast<Index>(bound)));
  }

  std::vector<int> written_keys(training::Draws& draws) const {
    std::vector<int> keys(static_cast<std::size_t>(writes_));
    std::iota(keys.begin(), keys.end(), 0);
    for (std::size_t left = keys.size(); left > 0; --left)
      if (writing_ == Writing::once)
        std::swap(keys[left - 1], keys[below(draws, left)]);
      else
        keys[left - 1] = static_cast<int>(draws.below(keys_));
    return keys;
  }

  Writing writing_;
  Index writes_;
  Index keys_;
  std::uint64_t seed_;
};

}  // namespace train_recall
