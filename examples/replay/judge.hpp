// SPDX-License-Identifier: MIT
// Judges one case: reads its folder, runs it, compares, and writes the results where asked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <mhla/core/error.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/mixing_matrix.hpp>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "../checkpoints/npy.hpp"
#include "attention_case.hpp"
#include "attention_run.hpp"
#include "case_file.hpp"
#include "command_line.hpp"
#include "executor.hpp"
#include "mix_init_case.hpp"

namespace replay {

using checkpoints::read_npy;
using checkpoints::shape_text;
using checkpoints::UnwritableFile;
using checkpoints::write_npy;

enum class Verdict { ok, fails, unsupported, unreadable };

struct Judgement {
  Verdict verdict = Verdict::ok;
  std::string text;  ///< the errors of the results, or the reason why there are none
};

/// max |result - expected|; NaN equals nothing, and is an infinite error.
inline double largest_error(const Array& result, const Array& expected) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    if (result.values[i] == expected.values[i]) continue;  // equal infinities, too
    const double error = std::abs(result.values[i] - expected.values[i]);
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, error);
  }
  return largest;
}

/// How many tokens to prefill before the steps begin: around the boundaries of the first block and
/// of the sequence, as far as there are so many.
inline std::vector<Index> prefill_lengths(const AttentionCase& c) {
  const Index block = std::min(c.query_side.block[0], c.tokens + 1);  // block + 1 cannot overflow
  std::set<Index> lengths;
  for (const Index length :
       {Index{0}, Index{1}, block - 1, block, block + 1, c.tokens / 2, c.tokens - 1, c.tokens})
    if (length >= 0 && length <= c.tokens) lengths.insert(length);
  return {lengths.begin(), lengths.end()};
}

class Judge {
 public:
  Judge(const CommandLine& line, const ChosenExecutor& executor)
      : line_(line), executor_(executor) {}

  /// Throws UnwritableFile where results cannot be written, and nothing else of this program's.
  Judgement judge(const CaseFolder& folder) const {
    try {
      const CaseFile file(folder.path);
      return read_kind(file) == Kind::attention ? judge_attention(folder, file)
                                                : judge_mix_init(folder, file);
    } catch (const UnreadableFile& problem) {
      return {Verdict::unreadable, problem.what()};
    } catch (const UnsupportedCase& problem) {
      return {Verdict::unsupported, problem.what()};
    } catch (const mhla::Error& problem) {
      return {Verdict::unsupported, problem.what()};
    } catch (const std::bad_alloc&) {
      return {Verdict::unsupported, "the case does not fit into memory"};
    }
  }

 private:
  static Array read(const CaseFolder& folder, const char* name, const std::vector<Index>& shape) {
    const std::filesystem::path file = folder.path / (std::string(name) + ".npy");
    Array array = read_npy(file);
    if (array.shape != shape)
      throw UnreadableFile(file, "has shape " + shape_text(array.shape) + ", but case.txt says " +
                                     shape_text(shape));
    return array;
  }

  Judgement judge_attention(const CaseFolder& folder, const CaseFile& file) const {
    const AttentionCase c = read_attention_case(file);
    const std::vector<Index> query{c.batch, c.heads, c.tokens, c.key_dim};
    const std::vector<Index> key{c.batch, c.kv_heads, c.key_tokens, c.key_dim};
    const std::vector<Index> value{c.batch, c.kv_heads, c.key_tokens, c.value_dim};
    const std::vector<Index> output{c.batch, c.heads, c.tokens, c.value_dim};
    AttentionInputs inputs;
    inputs.q = read(folder, "q", query);
    inputs.k = read(folder, "k", key);
    inputs.v = read(folder, "v", value);
    // A sequence's matrix may be larger than its layout; the library says when it may not.
    const std::filesystem::path mix_file = folder.path / "mix.npy";
    inputs.mix = read_npy(mix_file);
    if (inputs.mix.shape.size() != 3 || inputs.mix.shape[0] != c.mix_heads)
      throw UnreadableFile(mix_file, "has shape " + shape_text(inputs.mix.shape) +
                                         ", but is [mix_heads, query blocks, key blocks] with " +
                                         std::to_string(c.mix_heads) + " mix_heads");
    if (c.feature_map == FeatureMapName::favor) {
      const std::filesystem::path projection_file = folder.path / "proj.npy";
      inputs.projection = read_npy(projection_file);
      if (inputs.projection.shape.size() != 2 || inputs.projection.shape[1] != c.key_dim)
        throw UnreadableFile(projection_file, "has shape " + shape_text(inputs.projection.shape) +
                                                  ", but is [features, key_dim]");
    }
    if (line_.decode) return judge_decoding(folder, c, inputs, read(folder, "out", output));

    inputs.dout = read(folder, "dout", output);
    AttentionResults expected;
    expected.out = read(folder, "out", output);
    expected.dq = read(folder, "dq", query);
    expected.dk = read(folder, "dk", key);
    expected.dv = read(folder, "dv", value);
    expected.dmix = read(folder, "dmix", inputs.mix.shape);

    const AttentionResults results = line_.scalar == Scalar::f32
                                         ? run_attention<float>(c, inputs, executor_)
                                         : run_attention<double>(c, inputs, executor_);
    return compare(folder, {{"out", results.out, expected.out, c.error_scale.out},
                            {"dq", results.dq, expected.dq, c.error_scale.dq},
                            {"dk", results.dk, expected.dk, c.error_scale.dk},
                            {"dv", results.dv, expected.dv, c.error_scale.dv},
                            {"dmix", results.dmix, expected.dmix, c.error_scale.dmix}});
  }

  Judgement judge_decoding(const CaseFolder& folder, const AttentionCase& c,
                           const AttentionInputs& inputs, const Array& expected) const {
    const std::vector<Index> lengths = prefill_lengths(c);
    const std::vector<Array> outputs =
        line_.scalar == Scalar::f32 ? decode_attention<float>(c, inputs, lengths, executor_)
                                    : decode_attention<double>(c, inputs, lengths, executor_);
    std::vector<double> errors;
    for (const Array& out : outputs) errors.push_back(largest_error(out, expected));
    const auto worst =
        static_cast<std::size_t>(std::max_element(errors.begin(), errors.end()) - errors.begin());
    Judgement judgement = compare(folder, {{"out", outputs[worst], expected, c.error_scale.out}});
    judgement.text += "  the largest of " + std::to_string(lengths.size()) +
                      " prefill lengths, at " + std::to_string(lengths[worst]);
    return judgement;
  }

  Judgement judge_mix_init(const CaseFolder& folder, const CaseFile& file) const {
    const MixInitCase c = read_mix_init_case(file);
    const mhla::Grid query_grid = grid_of(c.layout);
    const mhla::Grid key_grid = grid_of(c.key_layout);
    const Array expected = read(folder, "mix", {query_grid.num_blocks(), key_grid.num_blocks()});
    const Array mix = line_.scalar == Scalar::f32
                          ? initial<float>(query_grid, key_grid, c.options)
                          : initial<double>(query_grid, key_grid, c.options);
    return compare(folder, {{"mix", mix, expected, 1.0}});
  }

  /// A grid of one token per block: only the layout matters.
  static mhla::Grid grid_of(const std::vector<Index>& layout) {
    mhla::Grid grid;
    for (std::size_t axis = 0; axis < layout.size(); ++axis)
      grid.extent[3 - layout.size() + axis] = layout[axis];
    return grid;
  }

  template <class T>
  static Array initial(const mhla::Grid& query_grid, const mhla::Grid& key_grid,
                       const mhla::InitialMixing& options) {
    const Index rows = query_grid.num_blocks();
    const Index columns = key_grid.num_blocks();
    std::vector<T> mix(static_cast<std::size_t>(rows * columns));
    mhla::initialize(mhla::make_view(mix.data(), rows, columns), query_grid, key_grid, options);
    return {{rows, columns}, {mix.begin(), mix.end()}};
  }

  struct Comparison {
    const char* name;
    const Array& result;
    const Array& expected;
    double scale;
  };

  Judgement compare(const CaseFolder& folder, const std::vector<Comparison>& comparisons) const {
    Judgement judgement;
    for (const Comparison& c : comparisons) {
      const double error = largest_error(c.result, c.expected);
      if (!(error <= line_.tolerance * c.scale)) judgement.verdict = Verdict::fails;
      char text[64];
      std::snprintf(text, sizeof(text), "%s%s %.1e", judgement.text.empty() ? "" : "  ", c.name,
                    error == 0 ? 0 : error / c.scale);
      judgement.text += text;
    }
    if (!line_.write.empty()) {
      const std::filesystem::path to = line_.write / folder.name;
      std::error_code error;
      std::filesystem::create_directories(to, error);
      if (error) throw UnwritableFile(to, "cannot be created: " + error.message());
      for (const Comparison& c : comparisons)
        write_npy(to / (std::string(c.name) + ".npy"), c.result);
    }
    return judgement;
  }

  const CommandLine& line_;
  const ChosenExecutor& executor_;
};

}  // namespace replay
