// SPDX-License-Identifier: MIT
// Destinations of a backward pass: four gradients, each of which may be omitted.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// Stands in for a gradient that is not wanted: its work is not done.
struct Skip {};
inline constexpr Skip skip{};

/// What a backward pass does with what its destinations hold.
enum class Update { overwrite, accumulate };

/// What a product of the library's own does with what its result holds.
enum class Into { overwrite, add };

/// A view to write one gradient to, or mhla::skip.
template <class T, int Rank>
struct GradientView {
  TensorView<T, Rank> view{};
  bool wanted = false;

  constexpr GradientView() = default;
  constexpr GradientView(Skip) {}                          // NOLINT: reads as a list
  constexpr GradientView(TensorView<T, Rank> destination)  // NOLINT: reads as a list
      : view(destination), wanted(true) {}
  /// dmix of a mix [query blocks, key blocks].
  constexpr GradientView(TensorView<T, 2> matrix)  // NOLINT: reads as a list
      requires(Rank == 3)
      : view(matrix), wanted(true) {}
};

/// {dq, dk, dv, dmix}, each a view shaped as its operand, or mhla::skip. dmix is summed over the
/// batch, and over the heads where mix is shared by them.
template <class T>
struct GradientViews {
  GradientView<T, 4> query;
  GradientView<T, 4> key;
  GradientView<T, 4> value;
  GradientView<Accumulator<T>, 3> mix;
};

MHLA_NAMESPACE_END
