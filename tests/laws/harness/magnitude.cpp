// SPDX-License-Identifier: MIT
// The formulas of the definition (arXiv 2601.07832, eq. 5, and its adjoint) with every factor
// replaced by its absolute value.
#include "tests/laws/harness/magnitude.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

namespace laws {

namespace {

// Signs and sizes are all that counts here: double does.
using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row row_of(const TensorView<const Wide, 4>& x, Index n, Index h, Index t) {
  Row row;
  for (Index c = 0; c < x.extent[3]; ++c) row.push_back(static_cast<double>(x(n, h, t, c)));
  return row;
}

double sum_of_magnitudes(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += std::abs(a[c]) * std::abs(b[c]);
  return sum;
}

void add(Row& to, double factor, const Row& from) {
  for (std::size_t c = 0; c < to.size(); ++c) to[c] += factor * std::abs(from[c]);
}

/// |R|, or its transpose, of every position of a grid.
class AbsoluteRotation {
 public:
  AbsoluteRotation(const Policies& policies, const Setting& setting, const Grid& grid,
                   Index features)
      : rotates_(policies.rotates()) {
    if (!rotates_) return;
    for (Index t = 0; t < grid.num_tokens(); ++t) {
      Rows columns;  // column c is what the c-th unit vector turns into
      for (Index c = 0; c < features; ++c) {
        std::vector<Wide> unit(static_cast<std::size_t>(features));
        unit[static_cast<std::size_t>(c)] = 1;
        rotate(policies, setting, grid, t, Span<Wide>{unit.data(), features});
        columns.emplace_back(unit.begin(), unit.end());
      }
      columns_.push_back(columns);
    }
  }
  Row of(Index token, const Row& x) const {
    Row sum(x.size());
    if (!rotates_) {
      add(sum, 1, x);
    } else {
      for (std::size_t c = 0; c < x.size(); ++c) add(sum, x[c], columns(token)[c]);
    }
    return sum;
  }
  Row transposed_of(Index token, const Row& x) const {
    if (!rotates_) return of(token, x);
    Row sum;
    for (std::size_t c = 0; c < x.size(); ++c)
      sum.push_back(sum_of_magnitudes(columns(token)[c], x));
    return sum;
  }

 private:
  const Rows& columns(Index token) const { return columns_[static_cast<std::size_t>(token)]; }

  bool rotates_;
  std::vector<Rows> columns_;
};

/// phi and its Jacobian at one row x. What rounding does to phi_r is what it would do if x came
/// rounded: |phi_r| + sum_c |J_rc x_c|; an exponential of 20 has 20 roundings.
struct RowFeatures {
  Row value;
  Row magnitude;
  Rows jacobian;  // [features][key_dim], its entries as often as `magnitude` exceeds |value|

  RowFeatures(const Variant& variant, const Setting& setting, const Row& x) {
    const auto size = static_cast<Index>(x.size());
    const auto features = static_cast<std::size_t>(variant.feature_dim(setting, size));
    const std::vector<Wide> in(x.begin(), x.end());
    std::vector<Wide> out(features);
    variant.phi(setting, Span<const Wide>{in.data(), size},
                Span<Wide>{out.data(), static_cast<Index>(features)});
    std::vector<Wide> unit(features);
    std::vector<Wide> gradient(x.size());
    for (std::size_t r = 0; r < features; ++r) {
      unit[r] = 1;
      variant.phi_adjoint(setting, Span<const Wide>{in.data(), size},
                          Span<const Wide>{unit.data(), static_cast<Index>(features)},
                          Span<Wide>{gradient.data(), size});
      unit[r] = 0;
      Row row(gradient.begin(), gradient.end());
      const double phi = static_cast<double>(out[r]);
      const double rounded = sum_of_magnitudes(row, x);
      if (phi != 0)
        for (double& entry : row) entry *= 1 + rounded / std::abs(phi);
      value.push_back(phi);
      magnitude.push_back(std::abs(phi) + rounded);
      jacobian.push_back(row);
    }
  }
};

/// The tokens of one head.
struct Features {
  std::vector<RowFeatures> row;
  Rows plain;    // magnitudes of phi
  Rows rotated;  // and of R phi

  Features(const Variant& variant, const Setting& setting, const AbsoluteRotation& rotation,
           const TensorView<const Wide, 4>& x, Index n, Index h) {
    for (Index t = 0; t < x.extent[2]; ++t) {
      row.emplace_back(variant, setting, row_of(x, n, h, t));
      plain.push_back(row.back().magnitude);
      rotated.push_back(rotation.of(t, plain.back()));
    }
  }
};

/// One call at the level of tokens.
class Magnitudes {
 public:
  Magnitudes(const Variant& variant, const Setting& setting, const Operands<Wide>& operands)
      : variant_(variant),
        setting_(setting),
        operands_(operands),
        policies_(variant.policies()),
        rotation_q_(policies_, setting, setting.queries,
                    variant.feature_dim(setting, operands.q.extent[3])),
        rotation_k_(policies_, setting, setting.keys,
                    variant.feature_dim(setting, operands.q.extent[3])) {
    for (Index t = 0; t < setting.queries.num_tokens(); ++t) {
      const Index block = setting.queries.block_of(t);
      block_q_.push_back(block);
      Index offset = 0;
      for (Index u = 0; u < t; ++u) offset += block_q_[static_cast<std::size_t>(u)] == block;
      offset_.push_back(offset);
      tokens_.resize(static_cast<std::size_t>(setting.queries.num_blocks()));
      tokens_[static_cast<std::size_t>(block)].push_back(t);
    }
    for (Index j = 0; j < setting.keys.num_tokens(); ++j)
      block_k_.push_back(setting.keys.block_of(j));
  }

  void add_all(const HostTensor<Wide, 4>& y, const HostTensor<Wide, 4>* dy,
               CallMagnitudes& sum) const {
    for (Index n = 0; n < operands_.q.extent[0]; ++n)
      for (Index kv_head = 0; kv_head < operands_.k.extent[1]; ++kv_head) {
        const Features k(variant_, setting_, rotation_k_, operands_.k, n, kv_head);
        Rows values;
        for (Index j = 0; j < operands_.v.extent[2]; ++j)
          values.push_back(row_of(operands_.v, n, kv_head, j));
        const Index group_size = operands_.q.extent[1] / operands_.k.extent[1];
        for (Index h = kv_head * group_size; h < (kv_head + 1) * group_size; ++h) {
          const Features q(variant_, setting_, rotation_q_, operands_.q, n, h);
          const Head head(*this, q, k, values, h);
          add_output(head, n, h, y, sum.y);
          if (dy != nullptr) add_gradients(head, n, h, kv_head, dy->view(), sum.gradients);
        }
      }
  }

 private:
  struct Denominator {
    double value;      // |den|
    double condition;  // sum of |terms| / |den|; 0 without a normalizer
  };

  struct Head {
    const Magnitudes& call;
    const Features& q;
    const Features& k;
    const Rows& values;
    Index index;
    double scale;
    std::vector<Denominator> denominators;

    Head(const Magnitudes& of, const Features& query, const Features& key, const Rows& value,
         Index head)
        : call(of),
          q(query),
          k(key),
          values(value),
          index(head),
          scale(std::abs(of.setting_.scale)) {
      for (std::size_t t = 0; t < q.row.size(); ++t) denominators.push_back(denominator(t));
    }

    bool sees(std::size_t t, std::size_t j) const {
      if (call.policies_.causality == Causality::causal) return j <= t;
      if (call.policies_.causality == Causality::block_causal)
        return call.block_k_[j] <= call.block_q_[t];
      return true;
    }
    double signed_mix(std::size_t t, std::size_t j) const {
      const auto& mix = call.operands_.mix;
      return static_cast<double>(
          mix(mix.extent[0] == 1 ? 0 : index, call.block_q_[t], call.block_k_[j]));
    }
    double mix(std::size_t t, std::size_t j) const { return std::abs(signed_mix(t, j)); }
    double weight(std::size_t t, std::size_t j) const {
      return scale * mix(t, j) * sum_of_magnitudes(q.rotated[t], k.rotated[j]);
    }
    std::size_t normalizing_query(std::size_t t, std::size_t j) const {
      if (!call.policies_.mixes_products()) return t;
      const auto& block = call.tokens_[static_cast<std::size_t>(call.block_k_[j])];
      return static_cast<std::size_t>(block[static_cast<std::size_t>(call.offset_[t])]);
    }
    Denominator denominator(std::size_t t) const {
      if (!call.policies_.normalizes()) return {1, 0};
      const double epsilon = call.setting_.normalizer_epsilon;
      double den = epsilon;
      double magnitude = epsilon;
      for (std::size_t j = 0; j < call.block_k_.size(); ++j) {
        if (!sees(t, j)) continue;
        const std::size_t u = normalizing_query(t, j);
        double inner = 0;
        for (std::size_t c = 0; c < q.row[u].value.size(); ++c)
          inner += q.row[u].value[c] * k.row[j].value[c];
        den += scale * signed_mix(t, j) * inner;
        magnitude += scale * mix(t, j) * sum_of_magnitudes(q.plain[u], k.plain[j]);
      }
      return {std::abs(den), den == 0 ? 0 : magnitude / std::abs(den)};
    }
  };

  void add_output(const Head& head, Index n, Index h, const HostTensor<Wide, 4>& exact,
                  HostTensor<double, 4>& y) const {
    for (std::size_t t = 0; t < block_q_.size(); ++t) {
      const Index token = static_cast<Index>(t);
      const Denominator& den = head.denominators[t];
      if (den.value == 0) continue;
      Row sum(static_cast<std::size_t>(y.extent(3)));
      for (std::size_t j = 0; j < block_k_.size(); ++j)
        if (head.sees(t, j)) add(sum, head.weight(t, j) / den.value, head.values[j]);
      for (Index c = 0; c < y.extent(3); ++c)
        y(n, h, token, c) = sum[static_cast<std::size_t>(c)] +
                            den.condition * static_cast<double>(std::abs(exact(n, h, token, c)));
    }
  }

  void add_gradients(const Head& head, Index n, Index h, Index kv_head,
                     const TensorView<const Wide, 4>& dy, Gradients<double>& grad) const {
    const Index mix_head = operands_.mix.extent[0] == 1 ? 0 : h;
    const Row zero(head.q.plain[0].size());
    Rows dq_plain(block_q_.size(), zero), dq_rotated(block_q_.size(), zero);
    Rows dk_plain(block_k_.size(), zero), dk_rotated(block_k_.size(), zero);
    for (std::size_t t = 0; t < block_q_.size(); ++t) {
      const Row out = row_of(dy, n, h, static_cast<Index>(t));
      const Denominator& den = head.denominators[t];
      if (den.value == 0) continue;
      const double inexact = 1 + den.condition;
      double dden = 0;
      for (std::size_t j = 0; j < block_k_.size(); ++j) {
        if (!head.sees(t, j)) continue;
        const double dweight = inexact * sum_of_magnitudes(out, head.values[j]) / den.value;
        const double score = head.scale * sum_of_magnitudes(head.q.rotated[t], head.k.rotated[j]);
        const double weight = head.mix(t, j) * score;
        dden += weight * dweight / den.value;
        grad.mix(mix_head, block_q_[t], block_k_[j]) += score * dweight;
        add(dq_rotated[t], head.scale * head.mix(t, j) * dweight, head.k.rotated[j]);
        add(dk_rotated[j], head.scale * head.mix(t, j) * dweight, head.q.rotated[t]);
        for (Index c = 0; c < grad.v.extent(3); ++c)
          grad.v(n, kv_head, static_cast<Index>(j), c) +=
              inexact * weight / den.value * std::abs(out[static_cast<std::size_t>(c)]);
      }
      if (!policies_.normalizes()) continue;
      dden *= inexact;
      for (std::size_t j = 0; j < block_k_.size(); ++j) {
        if (!head.sees(t, j)) continue;
        const std::size_t u = head.normalizing_query(t, j);
        add(dq_plain[u], head.scale * head.mix(t, j) * dden, head.k.plain[j]);
        add(dk_plain[j], head.scale * head.mix(t, j) * dden, head.q.plain[u]);
        grad.mix(mix_head, block_q_[t], block_k_[j]) +=
            head.scale * sum_of_magnitudes(head.q.plain[u], head.k.plain[j]) * dden;
      }
    }
    add_input_gradients(head.q, rotation_q_, n, h, dq_plain, dq_rotated, grad.q);
    add_input_gradients(head.k, rotation_k_, n, kv_head, dk_plain, dk_rotated, grad.k);
  }

  static void add_input_gradients(const Features& x, const AbsoluteRotation& rotation, Index n,
                                  Index h, const Rows& plain, const Rows& rotated,
                                  HostTensor<double, 4>& grad) {
    for (std::size_t t = 0; t < plain.size(); ++t) {
      Row total = rotation.transposed_of(static_cast<Index>(t), rotated[t]);
      add(total, 1, plain[t]);
      Row dx(static_cast<std::size_t>(grad.extent(3)));
      for (std::size_t r = 0; r < total.size(); ++r) add(dx, total[r], x.row[t].jacobian[r]);
      for (std::size_t c = 0; c < dx.size(); ++c)
        grad(n, h, static_cast<Index>(t), static_cast<Index>(c)) += dx[c];
    }
  }

  const Variant& variant_;
  const Setting& setting_;
  const Operands<Wide>& operands_;
  Policies policies_;
  AbsoluteRotation rotation_q_;
  AbsoluteRotation rotation_k_;
  std::vector<Index> block_q_;  // of every query
  std::vector<Index> block_k_;  // of every key
  std::vector<Index> offset_;   // of every query in its block
  std::vector<std::vector<Index>> tokens_;
};

}  // namespace

CallMagnitudes magnitudes_of(const Variant& variant, const Setting& setting,
                             const Operands<Wide>& operands, const HostTensor<Wide, 4>& y,
                             const HostTensor<Wide, 4>* dy) {
  CallMagnitudes sum{HostTensor<double, 4>::like(y.view()), zero_gradients<double>(operands)};
  Magnitudes(variant, setting, operands).add_all(y, dy, sum);
  return sum;
}

}  // namespace laws
