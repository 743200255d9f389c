// SPDX-License-Identifier: MIT
/// \defgroup mixings Mixings
/// \ingroup variant
/// How the mixed summaries S~_i come from the block summaries S_b: S~_i = sum_b m_ib S_b
/// (arXiv 2601.07832, eq. 4) by a matrix m of which every entry is a parameter, or by one that
/// fewer parameters make. Key sums are mixed by the same matrix. Parameters take mix's place in
/// every call: [1 | heads | batch * heads, rows, columns], so that they may be shared, or belong to
/// a head, or to a head of a batch item and be computed from the call's input.
///
/// A structured mixing says nothing to a backend but a list of small dense products
/// (mhla::MixingProduct) that together are m, and how their coefficients come from its parameters.
#pragma once

#include <mhla/policy/recurrent_mixing.hpp>
#include <mhla/policy/separable_mixing.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup mixings
/// \{

/// Every entry of m is a parameter: mix [.., query blocks, key blocks]. Causal, BlockCausal and
/// packed calls use the leading corner of a larger mix. Bidirectional calls do so only for Blocks1D
/// with `leading_corner`, since a larger mix may mean another block size.
struct DenseMixing {
  bool leading_corner = false;  ///< also Bidirectional calls take a larger mix (Blocks1D)

  /// \cond INTERNAL
  // `any_length`: sequences may have any length, as causal and packed ones. Without tokens any
  // number of blocks fits.
  MHLA_ONCE_A_CALL void require_parameters(const MixingLayout& layout, Index rows, Index columns,
                                           bool any_length = false) const {
    const bool corner = layout.rank == 1 && (any_length || leading_corner);
    const auto fits = [&](Index extent, Index blocks) {
      return extent == blocks || (extent > blocks && (corner || (layout.rank == 1 && blocks == 0)));
    };
    const char* const rule =
        corner ? "mix needs a row per query block and a column per key block (of a larger matrix "
                 "the leading corner is used)"
        : layout.rank == 1
            ? "mix needs exactly a row per query block and a column per key block: check the block "
              "size, or set mixing.leading_corner to use a part of a larger matrix"
            : "mix needs exactly a row per query block and a column per key block: check blocks";
    if (!fits(rows, layout.query_blocks()))
      throw_shape_error("mix", "query blocks", rows, layout.query_blocks(), rule);
    if (!fits(columns, layout.key_blocks()))
      throw_shape_error("mix", "key blocks", columns, layout.key_blocks(), rule);
  }
  /// \endcond
};

/// A mixing by fewer parameters than m has entries: RecurrentMixing, SeparableMixing, or a type of
/// yours, trivially copyable, with
///  - `causal`: true for Causal and BlockCausal, of sequences of any number of blocks; false for
///    Bidirectional;
///  - `require_parameters(layout, rows, columns)`, which throws ShapeError unless mix is
///    [.., rows, columns];
///  - `num_coefficients(layout)`, `num_rows(layout)`, the latter of the work array, and
///    `for_each_product(layout, visit)`, which calls visit(MixingProduct) in order;
///  - `coefficients(layout, mix, to)` for a TensorView<const A, 2> and a Span<A>, and its adjoint
///    `vjp(layout, mix, grad, grad_mix)`, which adds to grad_mix;
///  - if it is causal, `own_coefficient(i)`, the coefficient that is m_ii under Causal. A shorter
///    sequence has fewer products, with coefficients of the longer one.
///
/// On a GPU `coefficients`, `vjp` and `own_coefficient` are MHLA_HOST_DEVICE functions, and run by
/// one thread for each of mix's matrices; by as many as there are parts, where both take a further
/// argument, `part` of `num_parts(layout)` or `num_gradient_parts(layout, rows)`, none of which
/// writes what another does.
template <class M>
concept StructuredMixing = std::is_trivially_copyable_v<M> &&
    requires(const M& mixing, const MixingLayout& layout, Index extent,
             const TensorView<const double, 2>& mix, const Span<double>& to,
             const Span<const double>& grad, const TensorView<double, 2>& grad_mix,
             void (*visit)(const MixingProduct&)) {
  { M::causal } -> std::convertible_to<bool>;
  mixing.require_parameters(layout, extent, extent);
  { mixing.num_coefficients(layout) } -> std::same_as<Index>;
  { mixing.num_rows(layout) } -> std::same_as<Index>;
  mixing.for_each_product(layout, visit);
  mixing.coefficients(layout, mix, to);
  mixing.vjp(layout, mix, grad, grad_mix);
};

/// DenseMixing or a StructuredMixing.
template <class M>
concept Mixing = std::same_as<M, DenseMixing> || StructuredMixing<M>;

/// \cond INTERNAL
// One of mix's matrices.
template <class A>
MHLA_HOST_DEVICE TensorView<A, 2> matrix_view(const TensorView<A, 3>& mix, Index matrix) {
  const bool empty = mix.size() == 0;  // its address may be null
  return {empty ? mix.data : mix.data + matrix * mix.stride[0],
          {mix.extent[1], mix.extent[2]},
          {mix.stride[1], mix.stride[2]}};
}

template <class M>
constexpr bool mixing_fits(Sight sight) {
  if constexpr (StructuredMixing<M>) return M::causal == (sight != Sight::all);
  return true;
}

// A borrowed structured mixing of any type with the layout of a call, so that what uses it is
// compiled once for all of them.
template <class A>
class MixingRef {
 public:
  MixingRef() = default;
  template <StructuredMixing M>
  MixingRef(const M& mixing, const MixingLayout& layout)
      : mixing_(&mixing),
        layout_(layout),
        own_coefficient_([](const void* object, Index block) {
          if constexpr (M::causal) return static_cast<const M*>(object)->own_coefficient(block);
          return Index{0};
        }),
        products_([](const void* object, const MixingLayout& of, MixingProduct* to) {
          Index count = 0;
          static_cast<const M*>(object)->for_each_product(of, [&](const MixingProduct& product) {
            if (to != nullptr) to[count] = product;
            ++count;
          });
          return count;
        }),
        coefficients_(
            [](const void* object, const MixingLayout& of, const TensorView<const A, 2>& mix,
               const Span<A>& to) { static_cast<const M*>(object)->coefficients(of, mix, to); }),
        vjp_([](const void* object, const MixingLayout& of, const TensorView<const A, 2>& mix,
                const Span<const A>& grad, const TensorView<A, 2>& grad_mix) {
          static_cast<const M*>(object)->vjp(of, mix, grad, grad_mix);
        }),
        causal_(M::causal),
        num_coefficients_(mixing.num_coefficients(layout)),
        num_rows_(mixing.num_rows(layout)) {
    if constexpr (requires { mixing.states; }) num_states_ = mixing.states;
  }

  Index num_coefficients() const { return num_coefficients_; }
  Index num_rows() const { return num_rows_; }
  Index num_states() const { return num_states_; }  // of a recurrence
  Index num_products() const { return products_(mixing_, layout_, nullptr); }
  // m_ii under Causal.
  Index own_coefficient(Index block) const { return own_coefficient_(mixing_, block); }
  // Blocks that a sequence of `blocks` blocks takes part with; of a part of one, whether it has
  // blocks after.
  MixingLayout layout_of(Index blocks, bool after = false) const {
    MixingLayout layout = layout_;
    layout.after = after;
    if (causal_) layout.queries[2] = layout.keys[2] = blocks;
    return layout;
  }
  // The products of a sequence, in memory for num_products() of them.
  Span<const MixingProduct> products(Index blocks, bool after, Span<MixingProduct> memory) const {
    return {memory.data, products_(mixing_, layout_of(blocks, after), memory.data)};
  }
  void coefficients(const TensorView<const A, 2>& mix, const Span<A>& to) const {
    coefficients_(mixing_, layout_, mix, to);
  }
  void vjp(const TensorView<const A, 2>& mix, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    vjp_(mixing_, layout_, mix, grad, grad_mix);
  }

 private:
  const void* mixing_ = nullptr;
  MixingLayout layout_;
  Index (*own_coefficient_)(const void*, Index) = nullptr;
  Index (*products_)(const void*, const MixingLayout&, MixingProduct*) = nullptr;
  void (*coefficients_)(const void*, const MixingLayout&, const TensorView<const A, 2>&,
                        const Span<A>&) = nullptr;
  void (*vjp_)(const void*, const MixingLayout&, const TensorView<const A, 2>&,
               const Span<const A>&, const TensorView<A, 2>&) = nullptr;
  bool causal_ = false;
  Index num_coefficients_ = 0;
  Index num_rows_ = 0;
  Index num_states_ = 0;
};
/// \endcond

/// \}

MHLA_NAMESPACE_END
