// SPDX-License-Identifier: MIT
// MHLA over the heads of matrices of tokens: q [batch * tokens, heads * key_dim], k and v likewise
// with kv heads, in raster order.
#pragma once

#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/fork_join.hpp>
#include <vector>

#include "parameters.hpp"

namespace layers {

/// The numbers of heads, and of sequences in a matrix.
struct Heads {
  Index query = 1;
  Index kv = 1;
  Index batch = 1;
};

/// What tensors are stored in while attention reads them; all else is in T.
enum class Storage { as_computed, bfloat16 };

template <class Variant>
class MhlaAttention {
 public:
  MhlaAttention(const Variant& variant, const mhla::ForkJoin& team,
                Storage storage = Storage::as_computed)
      : variant_(variant), team_(team), storage_(storage) {}

  const Variant& variant() const { return variant_; }

  /// y [batch * tokens, heads * value_dim], for mix [query blocks, key blocks] shared by all heads.
  template <class T, class Q, class K, class V, class Mix>
  void forward(const Heads& heads, const Q& q, const K& k, const V& v, const Mix& mix,
               Matrix<T>& y) const {
    y.resize(q.rows(), v.cols() / heads.kv * heads.query);
    if (storage_ == Storage::bfloat16) {
      if constexpr (std::is_same_v<T, float>) return forward_in_bfloat16(heads, q, k, v, mix, y);
      throw mhla::ShapeError("bfloat16 is computed in float");
    }
    mhla::forward_into(variant_, team_, mhla::heads_view(q, heads.query, heads.batch),
                       mhla::heads_view(k, heads.kv, heads.batch),
                       mhla::heads_view(v, heads.kv, heads.batch), mhla::mix_view(mix),
                       mhla::heads_view(y, heads.query, heads.batch));
  }
  /// Into matrices, or blocks of them, of the operands' extents.
  template <class T, class Q, class K, class V, class Mix, class GradQ, class GradK, class GradV,
            class GradMix>
  void backward(const Heads& heads, const Q& q, const K& k, const V& v, const Mix& mix,
                const Matrix<T>& dy, GradQ&& dq, GradK&& dk, GradV&& dv, GradMix&& dmix) const {
    mhla::backward_into(variant_, team_, mhla::heads_view(q, heads.query, heads.batch),
                        mhla::heads_view(k, heads.kv, heads.batch),
                        mhla::heads_view(v, heads.kv, heads.batch), mhla::mix_view(mix),
                        mhla::heads_view(dy, heads.query, heads.batch),
                        {mhla::heads_view(dq, heads.query, heads.batch),
                         mhla::heads_view(dk, heads.kv, heads.batch),
                         mhla::heads_view(dv, heads.kv, heads.batch), mhla::mix_view(dmix)});
  }

 private:
  using Row16 = std::vector<mhla::BFloat16>;

  template <class X>
  static Row16 rounded(const X& x) {
    Row16 all(static_cast<std::size_t>(x.size()));
    for (Index r = 0; r < x.rows(); ++r)
      for (Index c = 0; c < x.cols(); ++c)
        mhla::store(all[static_cast<std::size_t>(r * x.cols() + c)], x(r, c));
    return all;
  }
  template <class Elements>
  static auto view(Elements& all, Index rows, Index columns, Index heads, Index batch) {
    return mhla::heads_view(all.data(), rows / batch, heads, columns / heads, columns, batch);
  }
  template <class Q, class K, class V, class Mix>
  void forward_in_bfloat16(const Heads& heads, const Q& q, const K& k, const V& v, const Mix& mix,
                           Matrix<float>& y) const {
    const Row16 q16 = rounded(q), k16 = rounded(k), v16 = rounded(v);
    Row16 y16(static_cast<std::size_t>(y.size()));
    mhla::forward_into(variant_, team_, view(q16, q.rows(), q.cols(), heads.query, heads.batch),
                       view(k16, k.rows(), k.cols(), heads.kv, heads.batch),
                       view(v16, v.rows(), v.cols(), heads.kv, heads.batch), mhla::mix_view(mix),
                       view(y16, y.rows(), y.cols(), heads.query, heads.batch));
    for (Index i = 0; i < y.size(); ++i) y.data()[i] = mhla::load(y16[static_cast<std::size_t>(i)]);
  }

  Variant variant_;
  const mhla::ForkJoin& team_;
  Storage storage_;
};

}  // namespace layers
