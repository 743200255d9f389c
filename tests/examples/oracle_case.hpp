// SPDX-License-Identifier: MIT
// Case folders for what no golden case covers; the oracle says what is expected.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "tests/examples/case_folder.hpp"

namespace test {

template <int Rank>
using Tensor = mhla::testing::HostTensor<double, Rank>;

/// Writes an array, and as its tol_scale its largest element: what a dump would say.
template <int Rank>
std::string write_array(const fs::path& folder, const std::string& name,
                        const Tensor<Rank>& tensor) {
  checkpoints::Array array;
  for (int axis = 0; axis < Rank; ++axis) array.shape.push_back(tensor.extent(axis));
  array.values = tensor.elements();
  checkpoints::write_npy(folder / (name + ".npy"), array);
  double largest = 0;
  for (const double value : array.values) largest = std::max(largest, std::abs(value));
  return "tol_scale." + name + " " + std::to_string(largest) + "\n";
}

/// Makes the folder of a case. `keys` are the lines of case.txt that name the variant; extents and
/// error scales are added.
template <class V>
void write_oracle_case(const fs::path& folder, const V& attention, const mhla::Shape& s,
                       const std::string& keys) {
  using mhla::testing::random_tensor;
  const mhla::testing::AwayFromKink numbers;
  const auto q = random_tensor<double>(numbers, 1, s.batch, s.heads, s.query_tokens, s.key_dim);
  const auto k = random_tensor<double>(numbers, 2, s.batch, s.kv_heads, s.key_tokens, s.key_dim);
  const auto v = random_tensor<double>(numbers, 3, s.batch, s.kv_heads, s.key_tokens, s.value_dim);
  const auto dout =
      random_tensor<double>(numbers, 4, s.batch, s.heads, s.query_tokens, s.value_dim);
  const auto mix = random_tensor<double>(mhla::testing::Positive{}, 5, s.mix_heads,
                                         s.mix_query_blocks, s.mix_key_blocks);
  auto out = dout;
  auto dq = q;
  auto dk = k;
  auto dv = v;
  auto dmix = mix;
  mhla::reference::mhla_forward(attention, q.view(), k.view(), v.view(), mix.view(), out.view());
  mhla::reference::mhla_backward(attention, q.view(), k.view(), v.view(), mix.view(), dout.view(),
                                 {dq.view(), dk.view(), dv.view(), dmix.view()});

  fs::create_directories(folder);
  std::string text = "name " + folder.filename().string() + "\nkind attention\n";
  text += "batch " + std::to_string(s.batch) + "\nheads " + std::to_string(s.heads);
  text += "\nkv_heads " + std::to_string(s.kv_heads) + "\ntokens " + std::to_string(s.query_tokens);
  text += "\nkey_dim " + std::to_string(s.key_dim) + "\nvalue_dim " + std::to_string(s.value_dim);
  text += "\nmix_heads " + std::to_string(s.mix_heads) + "\n" + keys;
  write_array(folder, "q", q);
  write_array(folder, "k", k);
  write_array(folder, "v", v);
  write_array(folder, "mix", mix);
  write_array(folder, "dout", dout);
  text += write_array(folder, "out", out);
  text += write_array(folder, "dq", dq);
  text += write_array(folder, "dk", dk);
  text += write_array(folder, "dv", dv);
  text += write_array(folder, "dmix", dmix);
  write_text(folder / "case.txt", text);
}

}  // namespace test
