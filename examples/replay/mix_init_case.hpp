// SPDX-License-Identifier: MIT
// A case of kind mix_init: the layout and the options of one initial mixing matrix.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/mixing_matrix.hpp>
#include <vector>

#include "case_file.hpp"

namespace replay {

/// kind mix_init.
struct MixInitCase {
  std::vector<Index> layout;
  std::vector<Index> key_layout;  ///< as many axes
  mhla::InitialMixing options;
};

inline MixInitCase read_mix_init_case(const CaseFile& file) {
  using mhla::MaxMode;
  using mhla::NormAxis;
  using mhla::Transform;
  file.require_known(
      "name kind note layout key_layout transform max_mode norm_axis exp_sigma local_threshold");
  MixInitCase c;
  c.layout = file.axes("layout", 1);
  c.key_layout = file.has("key_layout") ? file.axes("key_layout", 1) : c.layout;
  if (c.key_layout.size() != c.layout.size())
    file.fail("has another number of axes for key_layout than for layout");
  for (const std::vector<Index>& layout : {c.layout, c.key_layout}) {
    double blocks = 1;
    for (const Index extent : layout) blocks *= static_cast<double>(extent);
    if (blocks > 1e6) file.fail("has a layout beyond reason");
  }
  c.options.transform = file.one_of<Transform>("transform", {{"linear", Transform::linear},
                                                             {"cos", Transform::cos},
                                                             {"exp", Transform::exp},
                                                             {"gaussian", Transform::gaussian},
                                                             {"local", Transform::local},
                                                             {"uniform", Transform::uniform},
                                                             {"identity", Transform::identity},
                                                             {"causal", Transform::causal}});
  c.options.max_mode =
      file.one_of<MaxMode>("max_mode", {{"global", MaxMode::global}, {"row", MaxMode::row}});
  c.options.norm_axis = file.one_of<NormAxis>(
      "norm_axis", {{"col", NormAxis::column}, {"row", NormAxis::row}, {"none", NormAxis::none}});
  if (c.options.transform == Transform::exp) c.options.exp_sigma = file.number("exp_sigma");
  if (c.options.transform == Transform::local)
    c.options.local_threshold = file.number("local_threshold");
  return c;
}

}  // namespace replay
