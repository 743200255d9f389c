// SPDX-License-Identifier: MIT
// What passes information from token to token: MHLA and, to compare it with, linear attention,
// softmax attention, and nothing at all.
#pragma once

#include <memory>
#include <string>

#include "any_attention.hpp"
#include "mixing.hpp"

namespace training {

class TokenMixing {
 public:
  TokenMixing(ParameterList& list, const std::string& name, Mixing mixing,
              const std::shared_ptr<const AnyAttention>& attention, Index tokens, Index heads,
              Index head_dim);

  bool has_decoder() const { return has_mix() && attention_->is_causal(); }
  std::unique_ptr<AnyDecoder> decoder(const Values& values) const;

  void initialize(Values& values) const;
  /// Back to where a mixing matrix may be, after an update.
  void project(Values& values) const;

  void forward(const Values& values, const ConstView& q, const ConstView& k, const ConstView& v,
               const View& y, Saved& saved) const;
  void backward(const Values& values, const ConstView& q, const ConstView& k, const ConstView& v,
                const ConstView& dy, const Saved& saved, const View& dq, const View& dk,
                const View& dv, Values& gradient) const;

 private:
  bool has_mix() const { return mixing_ == Mixing::mhla || mixing_ == Mixing::linear; }
  // Among the parameters.
  MixView mix_in(Values& values) const;
  ConstMixView mix_in(const Values& values) const;

  Mixing mixing_;
  std::shared_ptr<const AnyAttention> attention_;
  Index heads_;
  Index head_dim_;
  mhla::MixExtents extents_;
  Parameter mix_;
};

}  // namespace training
