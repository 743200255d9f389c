// SPDX-License-Identifier: MIT
// Case folders for what no golden case covers; the oracle says what is expected.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <type_traits>

#include "tests/examples/case_folder.hpp"

namespace test {

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

/// Makes a case. `words` are the lines of case.txt that name feature map and rotation.
template <class V>
void write_oracle_case(const Case& to, const V& attention, const mhla::Shape& s,
                       const std::string& words) {
  using namespace mhla::testing;
  const auto random = [&](std::uint64_t seed, auto... extents) {
    return random_tensor<double>(AwayFromKink{}, seed, extents...);
  };
  const auto q = random(1, s.batch, s.heads, s.query_tokens, s.key_dim);
  const auto k = random(2, s.batch, s.kv_heads, s.key_tokens, s.key_dim);
  const auto v = random(3, s.batch, s.kv_heads, s.key_tokens, s.value_dim);
  const auto dout = random(4, s.batch, s.heads, s.query_tokens, s.value_dim);
  const auto mix =
      random_tensor<double>(Positive{}, 5, s.mix_heads, s.mix_query_blocks, s.mix_key_blocks);
  auto out = dout, dq = q, dk = k, dv = v;
  auto dmix = mix;
  mhla::reference::mhla_forward(attention, q.view(), k.view(), v.view(), mix.view(), out.view());
  mhla::reference::mhla_backward(attention, q.view(), k.view(), v.view(), mix.view(), dout.view(),
                                 {dq.view(), dk.view(), dv.view(), dmix.view()});

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
  using Normalizer = typename V::NormalizerType;
  if constexpr (std::is_same_v<Normalizer, mhla::Unnormalized>) {
    text += "normalizer none\nnormalizer_epsilon 0\n";
  } else {
    text += std::is_same_v<Normalizer, mhla::MixedProduct> ? "normalizer official\n"
                                                           : "normalizer paper\n";
    line("normalizer_epsilon", attention.normalizer.epsilon);
  }
  // Writes an array; its largest element.
  const auto array = [&]<int Rank>(const std::string& name,
                                   const HostTensor<double, Rank>& tensor) {
    checkpoints::Array values{{}, tensor.elements()};
    for (int axis = 0; axis < Rank; ++axis) values.shape.push_back(tensor.extent(axis));
    to.write(name, values);
    double largest = 0;
    for (const double value : values.values) largest = std::max(largest, std::abs(value));
    return largest;
  };
  array("q", q);
  array("k", k);
  array("v", v);
  array("mix", mix);
  array("dout", dout);
  line("tol_scale.out", array("out", out));
  line("tol_scale.dq", array("dq", dq));
  line("tol_scale.dk", array("dk", dk));
  line("tol_scale.dv", array("dv", dv));
  line("tol_scale.dmix", array("dmix", dmix));
  write_text(to.text(), text);
}

}  // namespace test
