// SPDX-License-Identifier: MIT
// The part of LibTorch's C++ interface that examples/other_code_bases/torch_layer.hpp calls:
// strided tensors of float, modules, and one derivative at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch {

using Sizes = std::vector<std::int64_t>;

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Sizes sizes) : sizes_(std::move(sizes)), strides_(sizes_.size()) {
    std::int64_t count = 1;
    for (std::size_t axis = sizes_.size(); axis-- > 0; count *= sizes_[axis])
      strides_[axis] = count;
    memory_ = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count), -77.0f);
  }

  template <class T>
  T* data_ptr() const {
    return memory_->data() + offset_;
  }
  std::int64_t size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }
  const Sizes& sizes() const { return sizes_; }

  Tensor permute(const Sizes& order) const {
    Tensor result = *this;
    for (std::size_t axis = 0; axis < order.size(); ++axis) {
      result.sizes_[axis] = sizes_[static_cast<std::size_t>(order[axis])];
      result.strides_[axis] = strides_[static_cast<std::size_t>(order[axis])];
    }
    return result;
  }
  Tensor transpose(int a, int b) const {
    Tensor result = *this;
    std::swap(result.sizes_[static_cast<std::size_t>(a)],
              result.sizes_[static_cast<std::size_t>(b)]);
    std::swap(result.strides_[static_cast<std::size_t>(a)],
              result.strides_[static_cast<std::size_t>(b)]);
    return result;
  }
  Tensor operator[](std::int64_t index) const {
    Tensor result = *this;
    result.offset_ += index * strides_[0];
    result.sizes_.erase(result.sizes_.begin());
    result.strides_.erase(result.strides_.begin());
    return result;
  }
  /// The last axis in several, of which one may be -1.
  Tensor unflatten(int axis, Sizes parts) const {
    std::int64_t known = 1;
    for (const std::int64_t part : parts) known *= part;
    for (std::int64_t& part : parts)
      if (part < 0) part = -size(axis) / known;
    Sizes sizes(sizes_.begin(), sizes_.begin() + axis);
    sizes.insert(sizes.end(), parts.begin(), parts.end());
    Tensor result(sizes);
    result.memory_ = memory_;
    return result;
  }
  /// A copy whose axes from `axis` on are one.
  Tensor flatten(int axis) const {
    Sizes sizes(sizes_.begin(), sizes_.begin() + axis + 1);
    for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < sizes_.size(); ++i)
      sizes.back() *= sizes_[i];
    Tensor result(sizes);
    float* to = result.memory_->data();
    copy(data_ptr<float>(), 0, to);
    return result;
  }

 private:
  void copy(const float* from, std::size_t axis, float*& to) const {
    if (axis == sizes_.size()) {
      *to++ = *from;
      return;
    }
    for (std::int64_t i = 0; i < sizes_[axis]; ++i) copy(from + i * strides_[axis], axis + 1, to);
  }

  Sizes sizes_, strides_;
  std::shared_ptr<std::vector<float>> memory_;
  std::int64_t offset_ = 0;
};

inline Tensor empty(const Sizes& sizes) { return Tensor(sizes); }
inline Tensor empty_like(const Tensor& x) { return Tensor(x.sizes()); }

struct NoGradGuard {
  NoGradGuard() {}  // has a name and no use
};

namespace autograd {
using variable_list = std::vector<Tensor>;

class AutogradContext {
 public:
  void save_for_backward(variable_list saved) { saved_ = std::move(saved); }
  const variable_list& get_saved_variables() const { return saved_; }

 private:
  variable_list saved_;
};

/// The derivative of the last function that was applied.
inline std::function<variable_list(variable_list)> last_backward;

template <class F>
struct Function {
  template <class... X>
  static Tensor apply(const X&... x) {
    auto context = std::make_shared<AutogradContext>();
    last_backward = [context](variable_list dy) {
      return F::backward(context.get(), std::move(dy));
    };
    return F::forward(context.get(), x...);
  }
};
}  // namespace autograd

namespace nn {
struct Module {
  template <class M>
  M register_module(const std::string& /*name*/, M module) {
    return module;
  }
  Tensor register_parameter(const std::string& /*name*/, Tensor parameter) { return parameter; }
};

/// y = x in the first `in` outputs, and so on: enough to see where they go.
class Linear {
 public:
  Linear(std::int64_t /*in*/, std::int64_t out) : out_(out) {}
  Tensor operator()(const Tensor& x) const {
    Sizes sizes = x.sizes();
    const std::int64_t in = sizes.back(), rows = x.size(0) * x.size(1);
    sizes.back() = out_;
    Tensor y(sizes);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < out_; ++c)
        y.data_ptr<float>()[r * out_ + c] = x.data_ptr<float>()[r * in + c % in];
    return y;
  }

 private:
  std::int64_t out_;
};
}  // namespace nn

}  // namespace torch

#define TORCH_MODULE(Name) using Name = Name##Impl
