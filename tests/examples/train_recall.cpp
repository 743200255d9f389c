// SPDX-License-Identifier: MIT
// train_recall: its sequences against a dictionary that is read along, and the program as its user
// runs it.
#include <map>
#include <string>

#include "examples/train_recall/recall.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using namespace train_recall;
using training::TokenBatch;

const Program program{MHLA_TRAIN_RECALL};

/// Two sequences; how often the keys of the first are written.
std::map<int, int> require_latest_values(const Recall& recall) {
  TokenBatch batch;
  recall.append(Part::training, 0, batch);
  recall.append(Part::training, 1, batch);
  REQUIRE(batch.tokens() == 2 * recall.tokens());
  REQUIRE(batch.symbols.size() == 2);
  auto prediction = batch.predictions.begin();
  std::map<int, int> memory, writes;
  for (Index t = 0; t < batch.tokens(); ++t) {
    if (t == recall.tokens()) memory.clear();
    const int value = batch.symbols[0][static_cast<std::size_t>(t)];
    const int key = batch.symbols[1][static_cast<std::size_t>(t)];
    REQUIRE(key >= Recall::first_key);
    REQUIRE(key < recall.symbols());
    if (t % 2 == 0) {
      REQUIRE(value < Recall::values);
      memory[key] = value;
      if (t < recall.tokens()) ++writes[key];
    } else {
      REQUIRE(value == Recall::query);
      REQUIRE(memory.count(key) == 1);
      REQUIRE(prediction != batch.predictions.end());
      REQUIRE(prediction->row == t);
      REQUIRE(prediction->target == memory[key]);
      ++prediction;
    }
  }
  REQUIRE(prediction == batch.predictions.end());
  return writes;
}

}  // namespace

TEST_CASE("train_recall: a query asks for the latest value under its key", "[train_recall]") {
  const Recall again(Writing::again, 256, 10, 3);
  const std::map<int, int> writes = require_latest_values(again);
  CHECK(writes.size() == 10);
  for (const auto& [key, count] : writes) CHECK(count > 1);

  const Recall once(Writing::once, 256, 10, 3);
  CHECK(once.keys() == 128);
  CHECK(require_latest_values(once).size() == 128);  // of 128 writes: none is repeated

  TokenBatch batch, same, other;
  again.append(Part::training, 7, batch);
  again.append(Part::training, 7, same);
  again.append(Part::validation, 7, other);
  CHECK(batch.symbols == same.symbols);
  CHECK(batch.symbols != other.symbols);
  CHECK(static_cast<Index>(batch.predictions.size()) == again.predictions());
}

TEST_CASE("train_recall: what cannot be done", "[train_recall]") {
  for (const char* arguments :
       {"--heads 5", "--shortest 33", "--lengths", "what", "--mixing separable", "--states 0"})
    program.check(arguments, 2, {"train_recall: "});
}

TEST_CASE("train_recall: attention finds what nothing else can", "[train_recall]") {
  const TemporaryFolder temporary;
  const fs::path csv = temporary / "right.csv", svg = temporary / "right.svg";
  const std::string small =
      " --shortest 32 --lengths 1 --keys 4 --block 8 --layers 1 --width 32 --steps 100 --csv" +
      quoted(csv);
  // Of 16 values, by a kind.
  const auto right = [&](const std::string& kind) {
    return figure_after(text_of(csv), "\n" + kind + ",32,");
  };
  program.check("--svg" + quoted(svg) + small, 0, {"right, by tokens"});
  CHECK(says(text_of(svg), "<svg"));
  CHECK(right("none") < 15);
  for (const char* kind : {"linear", "softmax", "MHLA"}) CHECK(right(kind) > 30);
  const double dense = right("MHLA");
  program.check("--mixing recurrent" + small, 0);
  CHECK(right("dense") == dense);
  CHECK(right("recurrent") > 30);
  CHECK(right("recurrent") != dense);
  program.check("--once --shortest 8 --lengths 2 --width 8 --steps 2", 0, {"16 tokens, 8 keys"});
}
