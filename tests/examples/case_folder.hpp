// SPDX-License-Identifier: MIT
// Case folders to hand to mhla_replay: golden ones, and, for what no golden case covers, others of
// which the oracle says what is expected.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "examples/checkpoints/npy.hpp"
#include "tests/cpu/call.hpp"
#include "tests/examples/run_program.hpp"

namespace test {

inline fs::path golden_folder(const std::string& name) {
  return fs::path(MHLA_SOURCE_DIR) / "tests/golden" / name;
}

/// A case in a folder of its own, which is gone at the end.
struct Case {
  TemporaryFolder temporary;
  fs::path folder;

  /// A copy of a golden case.
  explicit Case(const std::string& golden, const std::string& name = "case")
      : folder(temporary / name) {
    fs::copy(golden_folder(golden), folder);
  }
  /// An empty folder.
  Case() : folder(temporary / "case") { fs::create_directory(folder); }

  fs::path text() const { return folder / "case.txt"; }
  fs::path array(const std::string& name) const { return folder / (name + ".npy"); }

  /// Gives a key of case.txt another value, behind which lines of others may be; an empty one
  /// removes the line.
  void set(const std::string& key, const std::string& value) const {
    const std::string added = key + " " + value + "\n";
    std::string changed = value.empty() ? "" : added;
    std::istringstream lines(text_of(text()));
    for (std::string line; std::getline(lines, line);)
      if (!says("\n" + added, "\n" + line.substr(0, line.find(' ') + 1))) changed += line + "\n";
    write_text(text(), changed);
  }
  double number(const std::string& key) const {
    return figure_after(text_of(text()), "\n" + key + " ");
  }
  void write(const std::string& name, const checkpoints::Array& values) const {
    checkpoints::write_npy(array(name), values);
  }
  /// Adds to one element of an array.
  void add(const std::string& name, std::size_t element, double what) const {
    checkpoints::Array changed = checkpoints::read_npy(array(name));
    changed.values.at(element) += what;
    write(name, changed);
  }
};

/// The lines of case.txt about one side's tokens.
template <class Blocks>
std::string grid_lines(const std::string& prefix, const Blocks& blocks, mhla::Index tokens) {
  const mhla::Grid grid = blocks.grid_of(tokens);
  std::string lines[3] = {prefix + "grid", prefix + "block", prefix + "layout"};
  for (int axis = 3 - Blocks::rank; axis < 3; ++axis) {
    lines[0] += " " + std::to_string(grid.extent[axis]);
    lines[1] += " " + std::to_string(grid.block[axis]);
    lines[2] += " " + std::to_string(grid.layout(axis));
  }
  return lines[0] + "\n" + lines[1] + "\n" + lines[2] + "\n";
}

/// Makes a case. `words` are the lines of case.txt that name its policies.
template <class V>
void write_oracle_case(const Case& to, const V& attention, const mhla::Shape& s,
                       const std::string& words) {
  const auto x = call::operands<double>(attention, s);
  const auto out = call::oracle_forward(attention, x);
  const auto gradients = call::oracle_backward(attention, x);

  std::string text = "kind attention\n" + words;
  const auto line = [&](const char* key, auto value) {
    text += key + (" " + std::to_string(value)) + "\n";
  };
  line("batch", s.batch);
  line("heads", s.heads);
  line("kv_heads", s.kv_heads);
  line("tokens", s.query_tokens);
  line("key_dim", s.key_dim);
  line("value_dim", s.value_dim);
  line("mix_heads", s.mix_heads);
  line("scale", attention.scale);
  text += grid_lines("", attention.blocks, s.query_tokens);
  if (!attention.key_blocks.unset()) {
    line("key_tokens", s.key_tokens);
    text += grid_lines("key_", attention.key_blocks, s.key_tokens);
  }
  // Writes an array; its largest element.
  const auto array = [&]<int Rank>(const std::string& name,
                                   const call::HostTensor<double, Rank>& tensor) {
    checkpoints::Array values{{}, tensor.elements()};
    for (int axis = 0; axis < Rank; ++axis) values.shape.push_back(tensor.extent(axis));
    to.write(name, values);
    double largest = 0;
    for (const double value : values.values) largest = std::max(largest, std::abs(value));
    return largest;
  };
  array("q", x.q);
  array("k", x.k);
  array("v", x.v);
  array("mix", x.mix);
  array("dout", x.dy);
  line("tol_scale.out", array("out", out));
  line("tol_scale.dq", array("dq", gradients.query));
  line("tol_scale.dk", array("dk", gradients.key));
  line("tol_scale.dv", array("dv", gradients.value));
  line("tol_scale.dmix", array("dmix", gradients.mix));
  write_text(to.text(), text);
}

}  // namespace test
