// SPDX-License-Identifier: MIT
// train_recall: its sequences against a dictionary that is read along, and the program as its user
// runs it.
#include <map>
#include <string>

#include "examples/train_recall/recall.hpp"
#include "tests/examples/run_program.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace test;
using namespace train_recall;
using training::TokenBatch;

Run train_recall_run(const std::string& arguments) {
  return run_program("'" MHLA_TRAIN_RECALL "' " + arguments);
}

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

/// Of `kind` in a CSV of one length.
double right(const std::string& csv, const std::string& kind) {
  const std::size_t line = csv.find("\n" + kind + ",");
  REQUIRE(line != std::string::npos);
  return std::stod(csv.substr(csv.find(',', line + kind.size() + 2) + 1));
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
       {"--heads 5", "--shortest 33", "--lengths", "what", "--mixing separable", "--states 0"}) {
    const Run run = train_recall_run(arguments);
    INFO(run.output);
    CHECK(run.status == 2);
    CHECK(run.output.find("train_recall: ") != std::string::npos);
  }
}

TEST_CASE("train_recall: attention finds what nothing else can", "[train_recall]") {
  const TemporaryFolder temporary;
  const std::string csv = (temporary / "right.csv").string();
  const std::string svg = (temporary / "right.svg").string();
  const Run run = train_recall_run(
      "--shortest 32 --lengths 1 --keys 4 --block 8 --layers 1 --width 32 --steps 200 --csv '" +
      csv + "' --svg '" + svg + "'");
  INFO(run.output);
  REQUIRE(run.status == 0);
  CHECK(run.output.find("right, by tokens") != std::string::npos);
  CHECK(text_of(svg).find("<svg") != std::string::npos);
  const std::string numbers = text_of(csv);
  CHECK(right(numbers, "none") < 15);  // of 16 values
  for (const char* kind : {"linear", "softmax", "MHLA"}) CHECK(right(numbers, kind) > 30);
  const Run both = train_recall_run(
      "--mixing recurrent --shortest 32 --lengths 1 --keys 4 --block 8 --layers 1 --width 32 "
      "--steps 200 --csv '" +
      csv + "'");
  INFO(both.output);
  const std::string mixings = text_of(csv);
  CHECK(right(mixings, "dense") == right(numbers, "MHLA"));
  CHECK(right(mixings, "recurrent") > 30);
  CHECK(right(mixings, "recurrent") != right(mixings, "dense"));
  const Run once = train_recall_run("--once --shortest 8 --lengths 2 --width 8 --steps 2");
  INFO(once.output);
  CHECK(once.status == 0);
  CHECK(once.output.find("16 tokens, 8 keys") != std::string::npos);
}
