// SPDX-License-Identifier: MIT
// A case of kind mix_init: the layout and the options of one initial mixing matrix.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/mixing_matrix.hpp>
#include <vector>

#include "case_file.hpp"

namespace replay {

inline constexpr Word<mhla::Transform> transforms[] = {
    {"linear", mhla::Transform::linear},     {"cos", mhla::Transform::cos},
    {"exp", mhla::Transform::exp},           {"gaussian", mhla::Transform::gaussian},
    {"local", mhla::Transform::local},       {"uniform", mhla::Transform::uniform},
    {"identity", mhla::Transform::identity}, {"causal", mhla::Transform::causal}};
inline constexpr Word<mhla::MaxMode> max_modes[] = {{"global", mhla::MaxMode::global},
                                                    {"row", mhla::MaxMode::row}};
inline constexpr Word<mhla::NormAxis> norm_axes[] = {
    {"col", mhla::NormAxis::column}, {"row", mhla::NormAxis::row}, {"none", mhla::NormAxis::none}};

/// Every key of such a case.
inline std::vector<Key> mix_init_keys() {
  return {{"kind", "mix_init"},
          {"name", "not read"},
          {"note", "not read"},
          {"layout", "N [N [N]]: blocks on each axis"},
          {"key_layout", "N [N [N]]: of the keys' side (layout)"},
          {"transform", listed(transforms)},
          {"max_mode", listed(max_modes)},
          {"norm_axis", listed(norm_axes)},
          {"exp_sigma", "X, of exp alone"},
          {"local_threshold", "X, of local alone"}};
}

/// kind mix_init.
struct MixInitCase {
  std::vector<Index> layout;
  std::vector<Index> key_layout;  ///< as many axes
  mhla::InitialMixing options;
};

inline MixInitCase read_mix_init_case(const CaseFile& file) {
  using mhla::Transform;
  file.require_known(mix_init_keys());
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
  c.options.transform = file.one_of("transform", transforms);
  c.options.max_mode = file.one_of("max_mode", max_modes);
  c.options.norm_axis = file.one_of("norm_axis", norm_axes);
  if (c.options.transform == Transform::exp) c.options.exp_sigma = file.number("exp_sigma");
  if (c.options.transform == Transform::local)
    c.options.local_threshold = file.number("local_threshold");
  return c;
}

}  // namespace replay
