// SPDX-License-Identifier: MIT
// The backward pass through 16-bit summaries, put together from its kernels, with the mixing
// between them as plain loops in double: what the kernels compute is seen alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/tables.cuh>
#include <mhla/policy/problem.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cuda/machine.hpp"

namespace fused_backward {

using namespace mhla;
namespace cuda = mhla::cuda;
namespace fused = mhla::cuda::fused;

template <class T>
using Buffer = mhla::testing::Elements<T>;

/// Not a number, in every storage type.
template <class T>
T poison() {
  T value;
  mhla::store(value, std::numeric_limits<float>::quiet_NaN());
  return value;
}
template <class T>
Buffer<T> poisoned(Index count) {
  return Buffer<T>(static_cast<std::size_t>(count), poison<T>());
}

/// Summaries in planes, with the key sums.
template <class T, int Planes>
struct BlockSums {
  static constexpr int parts = Planes;
  Index count;
  Index size;
  Index feature_dim;
  float scale;
  Buffer<T> planes;
  Buffer<float> sums;

  BlockSums(Index summaries, Index features, Index values, float power)
      : count(summaries),
        size(features * values),
        feature_dim(features),
        scale(power),
        planes(poisoned<T>(parts * count * size)),
        sums(poisoned<float>(count * feature_dim)) {}

  double element(Index summary, Index c) const {
    double value = 0;
    for (int part = 0; part < parts; ++part)
      value += static_cast<double>(mhla::load(planes[at(part, summary, c)]));
    return value / static_cast<double>(scale);
  }
  double key_sum(Index summary, Index c) const {
    return static_cast<double>(sums[static_cast<std::size_t>(summary * feature_dim + c)]);
  }
  void set(Index summary, Index c, double value) {
    value *= static_cast<double>(scale);
    for (int part = 0; part < parts; ++part) {
      T& to = planes[at(part, summary, c)];
      mhla::store(to, static_cast<float>(value));
      value -= static_cast<double>(mhla::load(to));
    }
  }
  void set_key_sum(Index summary, Index c, double value) {
    sums[static_cast<std::size_t>(summary * feature_dim + c)] = static_cast<float>(value);
  }
  fused::Summaries<T> view() { return {planes.data(), count * size, scale}; }

 private:
  std::size_t at(int part, Index summary, Index c) const {
    return static_cast<std::size_t>((part * count + summary) * size + c);
  }
};

/// What a call wants: gradients without data are omitted.
template <class T>
struct Request {
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const T, 4> dy;
  TensorView<T, 4> dq;
  TensorView<T, 4> dk;
  TensorView<T, 4> dv;
  Update update = Update::overwrite;
  float weight_scale = std::is_same_v<T, mhla::Half> ? 64.0f : 1.0f;
  float summary_scale = std::is_same_v<T, mhla::Half> ? 0.125f : 1.0f;
};

/// A call of one variant, stage by stage.
template <class V, class T, int KeyDim, int ValueDim>
class Backward {
 public:
  using Map = typename V::FeatureMapType;
  static constexpr bool rotates = mhla::rotates<V>;
  static constexpr bool normalizes = mhla::normalizes<V>;
  static constexpr bool own = mhla::is_causal_within_block<V>;
  static constexpr int parts = fused::backward_parts<V>;
  using Sums = BlockSums<T, parts>;
  using Features = fused::FeatureTokens<T, Map, rotates>;
  template <fused::Side side>
  using Own = std::conditional_t<own, fused::OwnTokens<T, Map, rotates, side>, fused::NoOwnTokens>;
  using OwnKeys = Own<fused::Side::keys>;
  using OwnQueries = Own<fused::Side::queries>;
  using Traits = fused::KernelTraits<T, Map, rotates, KeyDim, ValueDim>;
  using Summarize =
      fused::SummarizeBlocks<Traits, parts,
                             normalizes ? fused::KeySums::plain : fused::KeySums::none>;
  using SummarizeGradient =
      fused::SummarizeBlocks<Traits, parts,
                             normalizes ? fused::KeySums::weighted : fused::KeySums::none>;
  using QueryGradient =
      fused::FeatureGradient<Traits, parts, fused::Side::queries, normalizes, OwnKeys>;
  using KeyGradient =
      fused::FeatureGradient<Traits, parts, fused::Side::keys, normalizes, OwnQueries>;

  Backward(const V& attention, const mhla::Problem& problem, const TensorView<const float, 3>& mix,
           const Request<T>& request)
      : attention_(attention),
        request_(request),
        workspace_(measured(attention, problem)),
        arena_(workspace_),
        e_(arena_, attention, problem, problem.shape.batch),
        rotation_(cuda::rotation_table<float>(arena_, attention.rotation, V::GeometryType::rank,
                                              problem.feature_dim, problem.grid_box(),
                                              cuda::strip_width(problem.feature_dim))),
        summaries_(e_.key_summaries(), KeyDim, ValueDim, request.summary_scale),
        mixed_(e_.mixed_summaries(), KeyDim, ValueDim, request.summary_scale),
        grad_mixed_(e_.mixed_summaries(), KeyDim, ValueDim, grad_scale()),
        grad_summaries_(e_.key_summaries(), KeyDim, ValueDim, grad_scale()),
        weights_(poisoned<float>(e_.queries.count())),
        sum_weights_(poisoned<float>(e_.queries.count())),
        own_products_(poisoned<float>(e_.queries.count())) {
    cuda::fill_tables(device_, attention, e_.queries.table, e_.keys.table, rotation_,
                      cuda::PackMixing<float>{});
    for (Index h = 0; h < e_.mix_heads; ++h)
      for (Index i = 0; i < e_.mix_rows; ++i)
        for (Index b = 0; b < e_.mix_columns; ++b) mixing_.push_back(mix(h, i, b));
  }

  /// Runs all of it.
  void run() {
    fused::summarize(device_, e_.keys.batch, summarize());
    mix();
    fused::run_over_items(device_, e_.queries.batch, query_gradient());
    fused::summarize(device_, e_.queries.batch, summarize_gradient());
    mix_gradient();
    fused::run_over_items(device_, e_.keys.batch, key_gradient());
  }

  // The kernels.
  Summarize summarize() {
    return {key_features(),
            values(),
            {static_cast<int>(e_.keys.kv_heads), 1, 1},
            nullptr,
            nullptr,
            1.0f,
            summaries_.view(),
            summaries_.sums.data()};
  }
  QueryGradient query_gradient() {
    QueryGradient body{query_features(),
                       output_gradients(),
                       fused::tokens(request_.dq, e_.queries.table),
                       request_.dq.data != nullptr,
                       request_.update,
                       query_sharing(),
                       mixed_.view(),
                       mixed_.sums.data(),
                       epsilon(),
                       {weights_.data(), sum_weights_.data(), own_products_.data()},
                       {}};
    if constexpr (own) body.own = {key_features(), values(), mixing(), request_.weight_scale};
    return body;
  }
  SummarizeGradient summarize_gradient() {
    return {query_features(),    output_gradients(),
            query_sharing(),     normalizes ? weights_.data() : nullptr,
            sum_weights_.data(), normalizes ? request_.weight_scale : 1.0f,
            grad_mixed_.view(),  grad_mixed_.sums.data()};
  }
  KeyGradient key_gradient() {
    return {key_features(),
            values(),
            fused::tokens(request_.dk, e_.keys.table),
            request_.dk.data != nullptr,
            request_.update,
            {static_cast<int>(e_.keys.kv_heads), 1, 1},
            grad_summaries_.view(),
            grad_summaries_.sums.data(),
            0.0f,
            {fused::tokens(request_.dv, e_.keys.table), request_.dv.data != nullptr},
            own_queries()};
  }

  /// dm_ib, summed over the batch and the heads that share a matrix.
  std::vector<double> grad_mixing() const {
    std::vector<double> sums(mixing_.size());
    for_each_pair([&](Index mixed, Index summary, std::size_t m) {
      for (Index c = 0; c < e_.summary_size(); ++c)
        sums[m] += grad_mixed_.element(mixed, c) * summaries_.element(summary, c);
      if constexpr (normalizes)
        for (Index c = 0; c < e_.feature_dim; ++c)
          sums[m] += grad_mixed_.key_sum(mixed, c) * summaries_.key_sum(summary, c);
    });
    if constexpr (own) {
      const cuda::RowFinder rows(e_.queries);
      for (Index r = 0; r < e_.queries.count(); ++r) {
        const Index head = rows[static_cast<std::uint32_t>(r)].head;
        const Index i =
            e_.queries.table.mix_rows[r / e_.queries.of_block() % e_.queries.table.blocks];
        sums[mixing_at(head, i, i)] +=
            static_cast<double>(own_products_[static_cast<std::size_t>(r)]);
      }
    }
    return sums;
  }
  /// Watches summaries and key sums.
  Sums& of_keys() { return summaries_; }
  Sums& of_queries() { return grad_mixed_; }
  static void poison(Sums& of) {
    const auto planes = poisoned<T>(static_cast<Index>(of.planes.size()));
    const auto sums = poisoned<float>(static_cast<Index>(of.sums.size()));
    std::copy(planes.begin(), planes.end(), of.planes.begin());  // where kernels know them
    std::copy(sums.begin(), sums.end(), of.sums.begin());
  }

  template <class Watch>
  void watch(Watch& watch) const {
    const auto add = [&](const std::string& name, const Sums& of) {
      watch(name, of.planes.data(), static_cast<Index>(of.planes.size()));
      watch(name + " sums", of.sums.data(), static_cast<Index>(of.sums.size()));
    };
    add("S", summaries_);
    add("S~", mixed_);
    add("dS~", grad_mixed_);
    add("dS", grad_summaries_);
    if constexpr (rotates) watch.broadcast("rows of angles", rotation_.halves);
  }
  const cuda::Extents<V>& extents() const { return e_; }
  const mhla::CudaDevice& device() const { return device_; }
  bool numbers_written() const {
    for (std::size_t r = 0; r < weights_.size(); ++r) {
      if (normalizes && !(weights_[r] == weights_[r] && sum_weights_[r] == sum_weights_[r]))
        return false;
      if (own && !(own_products_[r] == own_products_[r])) return false;
    }
    return true;
  }

  void mix() {
    for_each_mixed(mixed_, [&](Index mixed, Index c, bool of_keys) {
      double sum = 0;
      for_each_seen(mixed, [&](Index summary, std::size_t m) {
        sum += static_cast<double>(mixing_[m]) *
               (of_keys ? summaries_.key_sum(summary, c) : summaries_.element(summary, c));
      });
      return sum;
    });
  }
  void mix_gradient() {
    std::vector<double> elements(
        static_cast<std::size_t>(grad_summaries_.count * grad_summaries_.size));
    std::vector<double> sums(static_cast<std::size_t>(grad_summaries_.count * KeyDim));
    for_each_pair([&](Index mixed, Index summary, std::size_t m) {
      const auto weight = static_cast<double>(mixing_[m]);
      for (Index c = 0; c < e_.summary_size(); ++c)
        elements[static_cast<std::size_t>(summary * e_.summary_size() + c)] +=
            weight * grad_mixed_.element(mixed, c);
      if constexpr (normalizes)
        for (Index c = 0; c < KeyDim; ++c)
          sums[static_cast<std::size_t>(summary * KeyDim + c)] +=
              weight * grad_mixed_.key_sum(mixed, c);
    });
    for_each_mixed(grad_summaries_, [&](Index summary, Index c, bool of_keys) {
      return of_keys ? sums[static_cast<std::size_t>(summary * KeyDim + c)]
                     : elements[static_cast<std::size_t>(summary * e_.summary_size() + c)];
    });
  }

 private:
  static Index measured(const V& attention, const mhla::Problem& problem) {
    mhla::Arena arena;
    const cuda::Extents<V> e(arena, attention, problem, problem.shape.batch);
    cuda::rotation_table<float>(arena, attention.rotation, V::GeometryType::rank,
                                problem.feature_dim, problem.grid_box(),
                                cuda::strip_width(problem.feature_dim));
    return arena.used();
  }
  const Sums& mixed() const { return mixed_; }
  const Sums& grad_summaries() const { return grad_summaries_; }

  /// Gradients of summaries are as small as 1 / den.
  float grad_scale() const {
    return normalizes ? request_.weight_scale * request_.summary_scale : request_.summary_scale;
  }
  float scale() const { return static_cast<float>(attention_.scale); }
  float epsilon() const {
    if constexpr (normalizes) return static_cast<float>(attention_.normalizer.epsilon);
    return 0;
  }
  Features query_features() const {
    return {fused::tokens(request_.q, e_.queries.table), attention_.feature_map, scale(),
            rotation_};
  }
  Features key_features() const {
    return {fused::tokens(request_.k, e_.keys.table), attention_.feature_map, 1.0f, rotation_};
  }
  fused::Tokens<const T> values() const { return fused::tokens(request_.v, e_.keys.table); }
  fused::Tokens<const T> output_gradients() const {
    return fused::tokens(request_.dy, e_.queries.table);
  }
  fused::Sharing query_sharing() const {
    return {static_cast<int>(e_.queries.kv_heads), static_cast<int>(e_.queries.group_size),
            static_cast<int>(e_.matrices)};
  }
  fused::MixingWeights mixing() const {
    return {mixing_.data(), static_cast<int>(e_.mix_heads), static_cast<int>(e_.mix_rows),
            static_cast<int>(e_.mix_columns)};
  }
  OwnQueries own_queries() const {
    if constexpr (own) {
      return {query_features(),
              output_gradients(),
              mixing(),
              request_.weight_scale,
              e_.queries.group_size,
              normalizes ? weights_.data() : nullptr,
              normalizes ? sum_weights_.data() : nullptr};
    } else {
      return {};
    }
  }

  std::size_t mixing_at(Index head, Index i, Index b) const {
    const Index h = e_.mix_heads == 1 ? 0 : head;
    return static_cast<std::size_t>((h * e_.mix_rows + i) * e_.mix_columns + b);
  }
  /// Calls f(summary, element of mix) for the key blocks that a mixed summary is made of.
  template <class F>
  void for_each_seen(Index mixed, const F& f) const {
    const Index matrix = mixed % e_.matrices;
    const Index block = mixed / e_.matrices % e_.queries.table.blocks;
    const Index unit = mixed / e_.matrices / e_.queries.table.blocks;
    const Index head = unit % e_.queries.kv_heads * e_.queries.group_size + matrix;
    const Index i = e_.queries.table.mix_rows[block];
    for (Index of_keys = 0; of_keys < e_.keys.table.blocks; ++of_keys) {
      const Index b = e_.keys.table.mix_rows[of_keys];
      const bool same_sequence = !mhla::is_packed<V> || block - i == of_keys - b;
      if (!same_sequence || (mhla::is_causal<V> && b + (own ? 1 : 0) > i)) continue;
      f(unit * e_.keys.table.blocks + of_keys, mixing_at(head, i, b));
    }
  }
  template <class F>
  void for_each_pair(const F& f) const {
    for (Index mixed = 0; mixed < e_.mixed_summaries(); ++mixed)
      for_each_seen(mixed, [&](Index summary, std::size_t m) { f(mixed, summary, m); });
  }
  template <class F>
  void for_each_mixed(Sums& to, const F& f) const {
    for (Index summary = 0; summary < to.count; ++summary) {
      for (Index c = 0; c < to.size; ++c) to.set(summary, c, f(summary, c, false));
      if constexpr (normalizes)
        for (Index c = 0; c < KeyDim; ++c) to.set_key_sum(summary, c, f(summary, c, true));
    }
    // In a call the device would do that, before the next kernel.
    auto& written = machine::context().written_since_kernel;
    written.push_back({to.planes.data(), to.planes.size() * sizeof(T)});
    written.push_back({to.sums.data(), to.sums.size() * sizeof(float)});
  }

  const V& attention_;
  Request<T> request_;
  mhla::CudaDevice device_ = machine::device();
  mhla::Workspace workspace_;
  mhla::Arena arena_;
  cuda::Extents<V> e_;
  cuda::RotationTable<float> rotation_;
  std::vector<float> mixing_;
  Sums summaries_;
  Sums mixed_;
  Sums grad_mixed_;
  Sums grad_summaries_;
  Buffer<float> weights_;
  Buffer<float> sum_weights_;
  Buffer<float> own_products_;
};

}  // namespace fused_backward
