// SPDX-License-Identifier: MIT
#include "token_mixing.hpp"

#include <mhla/testing/host_tensor.hpp>

#include "softmax_attention.hpp"

namespace training {

namespace {

void copy(const ConstView& from, const View& to) {
  mhla::testing::for_each_element([](const Scalar& source, Scalar& target) { target = source; },
                                  from, to);
}
void fill_zero(const View& view) {
  mhla::testing::for_each_element([](Scalar& element) { element = 0; }, view);
}

}  // namespace

TokenMixing::TokenMixing(ParameterList& list, const std::string& name, Mixing mixing,
                         const std::shared_ptr<const AnyAttention>& attention, Index tokens,
                         Index heads, Index head_dim)
    : mixing_(mixing),
      attention_(mixing == Mixing::linear ? attention->with_one_block(tokens) : attention),
      heads_(heads),
      head_dim_(head_dim) {
  if (has_mix()) extents_ = attention_->mix_extents(tokens);
  mix_ = list.add(name, {heads, extents_.rows * extents_.columns}, 0, 0);
}

std::unique_ptr<AnyDecoder> TokenMixing::decoder(const Values& values) const {
  return attention_->decoder(mix_in(values), head_dim_);
}

void TokenMixing::initialize(Values& values) const {
  if (has_mix()) attention_->initialize(mix_in(values));
}
void TokenMixing::project(Values& values) const {
  if (has_mix()) attention_->project(mix_in(values));
}

void TokenMixing::forward(const Values& values, const ConstView& q, const ConstView& k,
                          const ConstView& v, const View& y, Saved& saved) const {
  if (has_mix())
    attention_->forward(q, k, v, mix_in(values), y, saved);
  else if (mixing_ == Mixing::softmax)
    softmax_forward(*attention_, q, k, v, y);
  else
    copy(v, y);
}

void TokenMixing::backward(const Values& values, const ConstView& q, const ConstView& k,
                           const ConstView& v, const ConstView& dy, const Saved& saved,
                           const View& dq, const View& dk, const View& dv, Values& gradient) const {
  if (mixing_ == Mixing::mhla) {
    attention_->backward(q, k, v, mix_in(values), dy, saved, {dq, dk, dv, mix_in(gradient)});
  } else if (mixing_ == Mixing::linear) {  // its one entry stays 1
    mix_.in(gradient).setZero();
    attention_->backward(q, k, v, mix_in(values), dy, saved, {dq, dk, dv, mhla::skip});
  } else if (mixing_ == Mixing::softmax) {
    softmax_backward(*attention_, q, k, v, dy, dq, dk, dv);
  } else {
    fill_zero(dq);
    fill_zero(dk);
    copy(dy, dv);
  }
}

MixView TokenMixing::mix_in(Values& values) const {
  return mhla::make_view(values.data() + mix_.begin, heads_, extents_.rows, extents_.columns);
}
ConstMixView TokenMixing::mix_in(const Values& values) const {
  return mhla::make_view(values.data() + mix_.begin, heads_, extents_.rows, extents_.columns);
}

}  // namespace training
