// SPDX-License-Identifier: MIT
// Whether a model computes what its folder says:
//
//   config.json, model.safetensors
//   forward.safetensors     inputs, intermediate values, the output
//   gradients.safetensors   loss_weight.<output> R, and grad.<name> of L = sum(R o output)
//
// and, for a block alone, gradients_block.safetensors. The error of a tensor is max |a - b| over
// max |b|, b the file's.
//
// The bound on the error depends on the model: sums grow with its size and depth, and normalizers
// and norms amplify rounding errors. So it is measured. The same program runs again in the same
// precision, with every parameter moved to a neighbouring number, up or down at random, and with
// the loss multiplied by a number that is not a power of two, by which gradients are divided. That
// is one rounding for each operand of each product, and it draws all roundings anew, those of long
// sums of one sign included. So two runs differ by as much as the error of either (the standard
// deviations are as sqrt(2) to 1), plus the effect of the operands' own rounding. An error may be
// `margin` times the largest such change of an element of its tensor. Two constants account for
// what no run moves: a few units in the last place of constants (epsilons, scales, the
// exponential), and the rounding of what the file stores in float. In double the file has errors of
// its own, since its program may sum in order: up to `of_reference` times as large.
//
// The gradient has a step where an argument of Relu crosses 0, and in large models some arguments
// are so close to 0 that float gets their sign wrong. So compared runs take the same side
// (branches.hpp): moved runs take that of the run they are compared with. Where float took another
// side than double, the file's gradient is corrected by the change of double's gradient between the
// sides.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <mhla/testing/random_tensor.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "checkpoint.hpp"
#include "config.hpp"
#include "record.hpp"
#include "run_context.hpp"

namespace released {

/// The bound on a tensor's largest error, relative to its largest change. The largest of many
/// normal errors with a standard deviation of 1 is 3 to 6; changes have one of at least sqrt(2).
inline constexpr double margin = 4;
/// A tensor with few elements needs several moved runs to show as many changes, at most
/// `most_runs`. (If it has one element, its error exceeds 4 times the largest of four changes about
/// once in a thousand draws.)
inline constexpr Index least_changes = 64;
inline constexpr Index most_runs = 4;
/// Measured: sums in order against sums in blocks, 1.4 to 4 times.
inline constexpr double of_reference = 4;
/// Holds for any bound, which is infinite where moved runs have NaN: one digit must be right.
inline constexpr double largest_error = 0.1;
/// Units in the last place of constants, in a chain of some operations.
inline constexpr double constants = 8;

/// Compares, prints a line for each tensor, and remembers whether all were within bounds.
class Comparison {
 public:
  explicit Comparison(std::string precision) : precision_(std::move(precision)) {}

  void compare(const std::string& name, double error, double bound) {
    const bool is_within = error <= std::min(bound, largest_error);
    std::printf("%-7s %-52s %8.1e  at most %.1e%s\n", precision_.c_str(), name.c_str(), error,
                bound, is_within ? "" : "  FAILED");
    ++compared_;
    if (!is_within) ++failed_;
  }
  void fail(const std::string& name, const std::string& reason) {
    std::printf("%-7s %-52s %s  FAILED\n", precision_.c_str(), name.c_str(), reason.c_str());
    ++compared_, ++failed_;
  }

  int compared() const { return compared_; }
  int failed() const { return failed_; }

 private:
  std::string precision_;
  int compared_ = 0;
  int failed_ = 0;
};

/// A folder's files.
struct ReferenceFiles {
  explicit ReferenceFiles(const std::filesystem::path& folder)
      : model(folder / "model.safetensors"),
        forward(folder / "forward.safetensors"),
        gradients(folder / "gradients.safetensors"),
        config(folder / "config.json") {
    const auto path = folder / "gradients_block.safetensors";
    if (std::filesystem::exists(path)) block.emplace(path);
  }

  Safetensors model, forward, gradients;
  std::optional<Safetensors> block;
  Config config;
};

/// The tensors of a folder that are compared, by the names that compute() gives them.
using Expected = std::map<std::string, const checkpoints::StoredTensor*>;

inline constexpr char in_portions[] = "logits, a few tokens at a time";
inline constexpr char alone[] = "alone: ";

/// `inputs` are the names of what the forward pass is given.
template <class Model>
Expected expected_of(const ReferenceFiles& files, const std::set<std::string>& inputs) {
  Expected expected;
  for (const auto& [name, tensor] : files.forward.tensors())
    if (inputs.count(name) == 0) expected[name] = &tensor;
  const auto add_gradients = [&](const Safetensors& file, const std::string& part) {
    for (const auto& [name, tensor] : file.tensors())
      if (name.rfind("grad.", 0) == 0) expected[part + name] = &tensor;
  };
  add_gradients(files.gradients, "");
  if constexpr (requires { typename Model::Past; })
    expected[in_portions] = &files.forward.tensor(Model::output);
  if constexpr (requires { &Model::run_block; }) {
    if (files.block) {
      expected[std::string(alone) + "blocks.0.out"] = &files.block->tensor("blocks.0.out");
      add_gradients(*files.block, alone);
    }
  }
  return expected;
}

/// Records the parameters' gradients.
template <class T>
void record_gradients(const layers::ParameterList& list, const Values<T>& gradient,
                      const Record& record) {
  for (const layers::Parameter& parameter : list.all())
    record("grad." + parameter.name, parameter.shape, parameter.in(gradient));
}

/// The logits of a language model that gets its tokens in portions of growing length.
template <class Model, class T>
void record_portions(Model& model, const Values<T>& values, const Safetensors& inputs,
                     const Record& record) {
  const auto& stored = inputs.tensor("input_ids");
  const Index batch = stored.shape[0], tokens = stored.shape[1];
  const std::vector<Index> ids = stored.elements<Index>();
  Matrix<T> logits(batch * tokens, model.vocabulary());
  for (Index b = 0; b < batch; ++b) {
    auto past = model.no_past(values);
    Index portion = 1;
    for (Index first = 0; first < tokens; first += portion++) {
      const auto begin = ids.begin() + b * tokens + first;
      const Index count = std::min(portion, tokens - first);
      logits.middleRows(b * tokens + first, count) =
          model.forward(values, std::vector<Index>(begin, begin + count), past);
    }
  }
  record(in_portions, {batch, tokens, model.vocabulary()}, logits);
}

/// Moves every value to a neighbouring number, up or down at random.
template <class T>
void move(Values<T>& values, std::uint64_t seed) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  for (Index i = 0; i < values.size(); ++i) {
    const bool up = (mhla::testing::random_bits(seed, static_cast<std::uint64_t>(i)) & 1) != 0;
    values[i] = std::nextafter(values[i], up ? infinity : -infinity);
  }
}

/// All results of Model<T> on a folder. A moved run multiplies the loss by a number that is not a
/// power of two, and divides gradients by it.
template <template <class> class Model, class T>
void compute(const ReferenceFiles& files, const RunContext& run, const Record& record) {
  const Checkpoint checkpoint(files.model);
  Model<T> model(files.config, checkpoint, run);
  Values<T> values = checkpoint.values_of<T>(model.parameters());
  files.config.require_all_read();
  checkpoint.require_all_used(model.parameters());
  if (run.moved != 0) move(values, run.moved);

  const double scale = 1 + 0.19 * static_cast<double>(run.moved);
  const auto scaled = [&](const Record& to, const char* part) {
    return Record([&to, part, scale](const std::string& name, RecordedTensor tensor) {
      if (name.rfind("grad.", 0) == 0)
        for (double& value : tensor.values) value /= scale;
      to.take(part + name, std::move(tensor));
    });
  };
  const Record of_model = scaled(record, ""), of_block = scaled(record, alone);

  run.branches->part = "";
  const Matrix<T> result = model.forward(values, files.forward, of_model);
  const auto& loss_weight = files.gradients.tensor(std::string("loss_weight.") + Model<T>::output);
  Values<T> gradient = Values<T>::Zero(values.size());
  model.backward(values, T(scale) * matrix_of<T>(loss_weight, result.rows()), gradient, of_model);
  record_gradients(model.parameters(), gradient, of_model);

  if constexpr (requires { model.no_past(values); })
    record_portions(model, values, files.forward, record);
  if constexpr (requires { &Model<T>::run_block; }) {
    if (!files.block) return;
    run.branches->part = alone;
    gradient.setZero();
    const auto& of_out = files.block->tensor("loss_weight.blocks.0.out");
    model.run_block(values, files.forward, T(scale) * matrix_of<T>(of_out), gradient, of_block,
                    of_block);
    record_gradients(model.parameters(), gradient, of_block);
  }
}

/// The results in one precision, and how far rounding changes them.
struct Measured {
  std::map<std::string, RecordedTensor> tensors;  ///< those expected
  std::map<std::string, double> largest_change;   ///< of an element, in the moved runs
  Branches branches;
};

/// The largest |a - b|; infinity if it is NaN or the shapes differ.
inline double largest_difference(const RecordedTensor& a, const RecordedTensor& b) {
  if (a.shape != b.shape) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const double difference = std::abs(a.values[i] - b.values[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

template <template <class> class Model, class T>
Measured measure(const ReferenceFiles& files, const Expected& expected, RunContext run) {
  Measured measured;
  run.branches = &measured.branches;
  compute<Model, T>(files, run, Record([&](const std::string& name, RecordedTensor tensor) {
                      if (expected.count(name) != 0) measured.tensors[name] = std::move(tensor);
                    }));
  Index smallest = least_changes;
  for (const auto& [name, tensor] : expected) smallest = std::min(smallest, tensor->size());
  const Index runs =
      std::min(most_runs, mhla::ceil_div(least_changes, std::max<Index>(1, smallest)));
  measured.branches.follows = true;
  for (run.moved = 1; run.moved <= static_cast<std::uint64_t>(runs); ++run.moved)
    compute<Model, T>(files, run,
                      Record([&](const std::string& name, const RecordedTensor& tensor) {
                        const auto found = measured.tensors.find(name);
                        if (found == measured.tensors.end()) return;
                        double& largest = measured.largest_change[name];
                        largest = std::max(largest, largest_difference(tensor, found->second));
                      }));
  return measured;
}

/// `correction` is the change of the file's gradient on float's side of the kinks, or null.
inline void compare(const std::string& name, const checkpoints::StoredTensor& stored,
                    const RecordedTensor& found, double largest_change,
                    const RecordedTensor* correction, double epsilon, Comparison& comparison) {
  RecordedTensor reference{stored.shape, stored.elements<double>()};
  if (found.shape != reference.shape)
    return comparison.fail(
        name, "has the shape " + text_of(found.shape) + ", not " + text_of(reference.shape));
  double largest = 0;
  for (const double value : reference.values) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; correction != nullptr && i < reference.values.size(); ++i)
    reference.values[i] += correction->values[i];
  const double rounding = constants * epsilon / 2 + (stored.dtype == "F64" ? 0 : 0x1p-24);
  const bool is_double = epsilon == std::numeric_limits<double>::epsilon();
  const double allowed = margin * (is_double ? 1 + of_reference : 1);
  const double unit = largest > 0 ? largest : 1;
  comparison.compare(name, largest_difference(found, reference) / unit,
                     allowed * largest_change / unit + (largest > 0 ? rounding : 0));
}

inline void compare(const Expected& expected, const Measured& measured,
                    const std::map<std::string, RecordedTensor>& corrections, double epsilon,
                    Comparison& comparison) {
  for (const auto& [name, stored] : expected) {
    const auto found = measured.tensors.find(name);
    const auto correction = corrections.find(name);
    if (found == measured.tensors.end())
      comparison.fail(name, "is not computed");
    else
      compare(name, *stored, found->second, measured.largest_change.at(name),
              correction == corrections.end() ? nullptr : &correction->second, epsilon, comparison);
  }
}

/// Model on a folder, in float and in double. `inputs` are the names of what the forward pass is
/// given.
template <template <class> class Model>
void check(const std::filesystem::path& folder, const std::set<std::string>& inputs,
           const RunContext& run, Comparison& in_float, Comparison& in_double) {
  const ReferenceFiles files(folder);
  const Expected expected = expected_of<Model<double>>(files, inputs);
  Measured of_double = measure<Model, double>(files, expected, run);
  compare(expected, of_double, {}, std::numeric_limits<double>::epsilon(), in_double);

  std::erase_if(of_double.tensors, [](const auto& tensor) {  // large, and not needed any more
    return tensor.first.find("grad.") == std::string::npos;
  });

  const Measured of_float = measure<Model, float>(files, expected, run);
  std::map<std::string, RecordedTensor> correction;
  if (!(of_float.branches == of_double.branches)) {
    Branches branches = of_float.branches;
    RunContext following = run;
    following.branches = &branches;
    compute<Model, double>(files, following,
                           Record([&](const std::string& name, RecordedTensor tensor) {
                             const auto found = of_double.tensors.find(name);
                             if (found == of_double.tensors.end()) return;
                             for (std::size_t i = 0; i < tensor.values.size(); ++i)
                               tensor.values[i] -= found->second.values[i];
                             correction[name] = std::move(tensor);
                           }));
  }
  compare(expected, of_float, correction, std::numeric_limits<float>::epsilon(), in_float);
}

}  // namespace released
