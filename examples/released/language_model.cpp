// SPDX-License-Identifier: MIT
#include "language_model.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <mhla/testing/random_tensor.hpp>

#include "models.hpp"
#include "run.hpp"

namespace released {

namespace {

void check_language_model(const std::filesystem::path& folder, const RunContext& run,
                          Comparison& in_float, Comparison& in_double) {
  check<LanguageModel>(folder, {"input_ids"}, run, in_float, in_double);
}

/// Draws an id with probability p(id)^(1 / temperature); `unit` is uniform on [0, 1).
template <class Row>
Index draw(const Row& logits, double temperature, double unit) {
  Index likeliest = 0;
  const double largest = static_cast<double>(logits.maxCoeff(&likeliest));
  if (temperature <= 0) return likeliest;
  const Eigen::ArrayXd p =
      ((logits.template cast<double>().array() - largest) / temperature).exp().transpose();
  double left = unit * p.sum();
  for (Index id = 0; id < p.size(); ++id)
    if (left -= p(id); left < 0) return id;
  return likeliest;  // rounding left something over
}

/// The piece of text of each token id, from a tokenizer.json or vocab.json.
std::map<Index, std::string> pieces_of(const std::filesystem::path& file) {
  const checkpoints::MappedFile mapped(file);
  nlohmann::json root = checkpoints::parse_json(file, "the vocabulary", mapped.text(), 64);
  if (root.is_object() && root.contains("model") && root["model"].is_object() &&
      root["model"].contains("vocab"))
    root = nlohmann::json(root["model"]["vocab"]);
  if (!root.is_object()) throw UnreadableFile(file, "holds no vocabulary");
  std::map<Index, std::string> pieces;
  for (const auto& [piece, id] : root.items()) {
    if (!id.is_number_unsigned() || id > std::numeric_limits<std::int32_t>::max())
      throw UnreadableFile(file, piece + " is " + id.dump() + ", which is not a token id");
    std::string text = piece;
    // Tokenizers write the space in front of a word, and the end of a line, as other letters.
    const std::pair<const char*, const char*> letters[] = {
        {"\xc4\xa0", " "}, {"\xe2\x96\x81", " "}, {"\xc4\x8a", "\n"}};
    for (const auto& [written, meant] : letters)
      for (std::size_t at = 0; (at = text.find(written, at)) != std::string::npos;)
        text.replace(at, std::string(written).size(), meant);
    pieces[id.get<Index>()] = text;
  }
  return pieces;
}

/// Goes on from a prompt of ids, through decoders.
void run_language_model(const Arguments& arguments, const RunContext& run) {
  LoadedModel<LanguageModel> loaded(arguments, run);
  std::vector<Index> ids;
  for (const std::string& word : arguments.inputs)
    ids.push_back(number(word, "a token id", Index{0}, Index{1} << 31));
  if (ids.empty()) throw UsageError("name the ids of the prompt's tokens");
  auto past = loaded.model.no_past(loaded.values);
  Matrix<float> logits = loaded.model.forward(loaded.values, ids, past);
  write(arguments, {1, logits.rows(), logits.cols()}, logits);
  for (Index t = 0; t < arguments.tokens; ++t) {
    const double unit = mhla::testing::Uniform{}(arguments.seed, static_cast<std::uint64_t>(t));
    ids.push_back(draw(logits.row(logits.rows() - 1), arguments.temperature, unit));
    if (t + 1 < arguments.tokens) logits = loaded.model.forward(loaded.values, {ids.back()}, past);
  }
  if (arguments.vocabulary.empty()) {
    for (const Index id : ids) std::printf("%td ", id);
  } else {
    const auto pieces = pieces_of(arguments.vocabulary);
    for (const Index id : ids) {
      const auto piece = pieces.find(id);
      std::printf("%s", piece == pieces.end() ? "?" : piece->second.c_str());
    }
  }
  std::printf("\n");
}

}  // namespace

const ReleasedModel language_model = {"lm", LanguageModel<float>::classes, &check_language_model,
                                      &run_language_model};

}  // namespace released
