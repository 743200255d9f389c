// SPDX-License-Identifier: MIT
// Destinations of a backward pass: four gradients, each of which may be omitted.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup views
/// \{

/// The type of mhla::skip.
struct Skip {};
/// Takes the place of a gradient that is not wanted: it is not computed.
inline constexpr Skip skip{};

/// What a backward pass does with what its destinations hold.
enum class Update {
  overwrite,  ///< replaces it
  accumulate  ///< adds to it
};

/// \cond INTERNAL
// What an internal product does with what its result holds.
enum class Into { overwrite, add };
/// \endcond

/// A view to write one gradient to, or mhla::skip. Converts from both.
template <class T, int Rank>
struct GradientView {
  TensorView<T, Rank> view{};  ///< the destination
  bool wanted = false;         ///< false: skipped

  constexpr GradientView() = default;
  /// Not wanted.
  constexpr GradientView(Skip) {}  // NOLINT: reads as a list
  /// Written to `destination`.
  constexpr GradientView(TensorView<T, Rank> destination)  // NOLINT: reads as a list
      : view(destination), wanted(true) {}
  /// dmix of a mix [query blocks, key blocks].
  constexpr GradientView(TensorView<T, 2> matrix)  // NOLINT: reads as a list
      requires(Rank == 3)
      : view(matrix), wanted(true) {}
};

/// {dq, dk, dv, dmix}, each a view shaped as its operand, or mhla::skip. dmix is summed over the
/// batch and the heads where mix is shared by them.
template <class T>
struct GradientViews {
  GradientView<T, 4> query;             ///< dq
  GradientView<T, 4> key;               ///< dk
  GradientView<T, 4> value;             ///< dv
  GradientView<Accumulator<T>, 3> mix;  ///< dmix
};

/// \}

MHLA_NAMESPACE_END
