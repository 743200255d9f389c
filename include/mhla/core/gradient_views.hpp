// SPDX-License-Identifier: MIT
// Destinations of a backward pass: four gradients, each of which may be omitted.
#pragma once

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

/// A view to write one gradient to, or mhla::skip. Converts from both. It has no default: only
/// mhla::skip leaves a gradient out.
template <class T, int Rank>
struct GradientView {
  TensorView<T, Rank> view{};  ///< the destination
  bool wanted;                 ///< false: skipped

  /// Not wanted.
  constexpr GradientView(Skip) : wanted(false) {}  // NOLINT: reads as a list
  /// Written to `destination`.
  constexpr GradientView(TensorView<T, Rank> destination)  // NOLINT: reads as a list
      : view(destination), wanted(true) {}
  /// dmix of a mix [query blocks, key blocks].
  constexpr GradientView(TensorView<T, 2> matrix)  // NOLINT: reads as a list
      requires(Rank == 3)
      : view(matrix), wanted(true) {}
};

/// {dq, dk, dv, dmix}, each a view shaped as its operand, or mhla::skip. dmix is summed over the
/// batch and the heads where mix is shared by them. Fewer than four do not compile.
template <class T>
struct GradientViews {
  GradientView<T, 4> query;             ///< dq
  GradientView<T, 4> key;               ///< dk
  GradientView<T, 4> value;             ///< dv
  GradientView<Accumulator<T>, 3> mix;  ///< dmix

  /// Each is a view, mhla::skip, or what converts to a view. (Templates, so that the error for
  /// anything else is one sentence.)
  template <class Query, class Key, class Value, class Mix>
  constexpr GradientViews(Query&& dq, Key&& dk, Value&& dv, Mix&& dmix)
      : query(destination<T, 4>(dq)),
        key(destination<T, 4>(dk)),
        value(destination<T, 4>(dv)),
        mix(destination<Accumulator<T>, 3>(dmix)) {}

  /// \cond INTERNAL
  template <class... Gradients>
  requires(sizeof...(Gradients) != 4) constexpr GradientViews(const Gradients&...)
      : query(skip), key(skip), value(skip), mix(skip) {
    static_assert(sizeof...(Gradients) == 4,
                  "mhla: gradients are four, in braces: {dq, dk, dv, dmix}; write mhla::skip in "
                  "place of one that is not wanted");
  }
  // f(view, name) for each that is wanted.
  template <class F>
  void for_each(const F& f) const {
    if (query.wanted) f(query.view, "dq");
    if (key.wanted) f(key.view, "dk");
    if (value.wanted) f(value.view, "dv");
    if (mix.wanted) f(mix.view, "dmix");
  }

 private:
  template <class Element, int Rank, class Gradient>
  static constexpr GradientView<Element, Rank> destination(Gradient& gradient) {
    using Matrix = TensorView<Element, 2>;
    if constexpr (std::is_convertible_v<Gradient&, GradientView<Element, Rank>>) {
      return gradient;
    } else if constexpr (std::is_convertible_v<Gradient&, TensorView<Element, Rank>>) {
      return TensorView<Element, Rank>(gradient);
    } else if constexpr (Rank == 3 && std::is_convertible_v<Gradient&, Matrix>) {
      return Matrix(gradient);
    } else {
      constexpr bool is_const = std::is_convertible_v<Gradient&, TensorView<const Element, Rank>>;
      static_assert(!is_const, "mhla: gradients are written to, and one of them is const");
      static_assert(is_const,
                    "mhla: a gradient is a view with the rank and scalar of its operand, "
                    "mhla::TensorView<T, 4> for dq, dk and dv, or mhla::skip; dmix has rank 3 or "
                    "2, and float elements where T has 16 bits");
      return skip;
    }
  }
  /// \endcond
};

/// \}

MHLA_NAMESPACE_END
