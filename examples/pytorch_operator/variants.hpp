// SPDX-License-Identifier: MIT
// The variants of the attention that the operator is compiled for. Grids of two axes are those of
// three with one frame, which halves their number.
#pragma once

#include <mhla/core/scalar.hpp>
#include <mhla/policy/variant.hpp>

namespace mhla_torch {

template <class Normalizer>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;
template <class Normalizer>
using Causal = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, Normalizer>;
template <class Normalizer>
using Video = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional, Normalizer>;

}  // namespace mhla_torch
