// SPDX-License-Identifier: MIT
// An attention layer to copy from, y = MHLA(x Wq, x Wk, x Wv) Wo with its backward pass. It learns
// to look values up by their keys, and its gradients are checked first.
#include <array>
#include <cmath>
#include <cstdio>
#include <mhla/mhla.hpp>
#include <mhla/testing/gradient_check.hpp>

namespace {

using mhla::Index;
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Parameters, or their gradients.
template <class T>
struct Weights {
  Matrix<T> qkv;  // Wq, Wk and Wv side by side: [width, 3 * width]
  Matrix<T> out;  // Wo: [width, width]
  Matrix<T> mix;  // [blocks, blocks]

  std::array<Matrix<T>*, 3> all() { return {&qkv, &out, &mix}; }
};

/// x and y are [batch * tokens, width].
template <class T>
class AttentionLayer {
 public:
  using Attention = mhla::Attention<mhla::Softmax, mhla::Blocks1D>;

  AttentionLayer(Index batch, Index tokens, Index heads, Index width, Index block)
      : batch_(batch), heads_(heads), width_(width), attention_{.blocks = {.block = block}} {
    const T gain = std::sqrt(T(3) / static_cast<T>(width));
    const Index blocks = (tokens + block - 1) / block;
    weights.qkv = Matrix<T>::Random(width, 3 * width) * gain;
    weights.out = Matrix<T>::Random(width, width) * gain;
    weights.mix.resize(blocks, blocks);
    mhla::initialize(mhla::mix_view(weights.mix), attention_);
  }

  const Matrix<T>& forward(const Matrix<T>& x) {
    x_ = x;
    qkv_.noalias() = x * weights.qkv;
    attended_.resize(x.rows(), width_);
    mhla::forward_into(attention_, serial_, q(qkv_), k(qkv_), v(qkv_), mhla::mix_view(weights.mix),
                       mhla::heads_view(attended_, heads_, batch_));
    y_.noalias() = attended_ * weights.out;
    return y_;
  }

  /// The gradients of a loss whose gradient in the last y is dy; returns that in x.
  Matrix<T> backward(const Matrix<T>& dy, Weights<T>& gradient) {
    gradient.out.noalias() = attended_.transpose() * dy;
    const Matrix<T> d_attended = dy * weights.out.transpose();
    Matrix<T> d_qkv(qkv_.rows(), qkv_.cols());
    gradient.mix.resizeLike(weights.mix);
    mhla::backward_into(attention_, serial_, q(qkv_), k(qkv_), v(qkv_), mhla::mix_view(weights.mix),
                        mhla::heads_view(d_attended, heads_, batch_),
                        {q(d_qkv), k(d_qkv), v(d_qkv), mhla::mix_view(gradient.mix)});
    gradient.qkv.noalias() = x_.transpose() * d_qkv;
    return d_qkv * weights.qkv.transpose();
  }

  Weights<T> weights;

 private:
  template <class M>
  auto q(M& qkv) const {
    return mhla::heads_view(qkv.leftCols(width_), heads_, batch_);
  }
  template <class M>
  auto k(M& qkv) const {
    return mhla::heads_view(qkv.middleCols(width_, width_), heads_, batch_);
  }
  template <class M>
  auto v(M& qkv) const {
    return mhla::heads_view(qkv.rightCols(width_), heads_, batch_);
  }

  Index batch_, heads_, width_;
  Attention attention_;
  mhla::SerialExecutor serial_;
  Matrix<T> x_, qkv_, attended_, y_;
};

/// Adam (arXiv 1412.6980).
struct Adam {
  Weights<float> first, second;
  int steps = 0;

  void step(Weights<float>& weights, Weights<float>& gradient, float rate) {
    ++steps;
    const float bias1 = 1 - std::pow(0.9f, static_cast<float>(steps));
    const float bias2 = 1 - std::pow(0.999f, static_cast<float>(steps));
    for (std::size_t i = 0; i < weights.all().size(); ++i) {
      Matrix<float>&w = *weights.all()[i], &g = *gradient.all()[i];
      Matrix<float>&m = *first.all()[i], &s = *second.all()[i];
      if (steps == 1) m.setZero(w.rows(), w.cols()), s.setZero(w.rows(), w.cols());
      m = 0.9f * m + 0.1f * g;
      s = 0.999f * s + 0.001f * g.cwiseAbs2();
      w.array() -= rate * (m / bias1).array() / ((s / bias2).array().sqrt() + 1e-8f);
    }
  }
};

/// The first half of a sequence holds keys and their values side by side, the second half the same
/// keys in another order, whose values are wanted: y's right half there. Both are of random signs.
struct Recall {
  static constexpr Index batch = 8, tokens = 64, heads = 2, width = 32, block = 8;
  Matrix<float> x{batch * tokens, width}, target{batch * tokens, width};

  void draw() {
    x.setZero(), target.setZero();
    for (Index n = 0; n < batch; ++n)
      for (Index t = 0; t < tokens / 2; ++t) {
        const Index pair = n * tokens + t, question = n * tokens + tokens - 1 - t;
        x.row(pair) = Matrix<float>::Random(1, width).cwiseSign();
        x.row(question).head(width / 2) = x.row(pair).head(width / 2);
        target.row(question).tail(width / 2) = x.row(pair).tail(width / 2);
      }
  }
  /// Keeps the part of y that is asked for.
  Matrix<float> error(const Matrix<float>& y) const {
    Matrix<float> wrong = y - target;
    for (Index n = 0; n < batch; ++n) wrong.middleRows(n * tokens, tokens / 2).setZero();
    wrong.leftCols(width / 2).setZero();
    return wrong;
  }
};

bool gradients_are_right() {
  AttentionLayer<double> layer(2, 19, 2, 8, 4);
  Matrix<double> x = Matrix<double>::Random(2 * 19, 8) / 2;
  const Matrix<double> dy = Matrix<double>::Random(2 * 19, 8);
  const auto loss = [&] { return layer.forward(x).cwiseProduct(dy).sum(); };
  Weights<double> gradient;
  loss();
  const Matrix<double> dx = layer.backward(dy, gradient);
  const auto with = [](auto& matrix, const auto& its_gradient) {
    return mhla::testing::differentiate(mhla::mix_view(matrix), mhla::mix_view(its_gradient));
  };
  const auto check = mhla::testing::check_gradient(
      loss, 1, 8, with(x, dx), with(layer.weights.qkv, gradient.qkv),
      with(layer.weights.out, gradient.out), with(layer.weights.mix, gradient.mix));
  std::printf("gradients: relative error %.1e\n", check.error);
  return check.error <= 1e-10;
}

}  // namespace

int main() {
  if (!gradients_are_right()) return 1;
  Recall recall;
  AttentionLayer<float> layer(recall.batch, recall.tokens, recall.heads, recall.width,
                              recall.block);
  Weights<float> gradient;
  Adam adam;
  constexpr int steps = 600;
  double share = 1;  // of the signs that are wrong
  for (int step = 0; step <= steps; ++step) {
    recall.draw();
    const Matrix<float>& y = layer.forward(recall.x);
    const Matrix<float> wrong = recall.error(y);
    share = static_cast<double>((y.cwiseProduct(recall.target).array() < 0).count()) /
            static_cast<double>((recall.target.array() != 0).count());
    if (step % 100 == 0) std::printf("step %3d: %4.1f %% of the signs wrong\n", step, 100 * share);
    layer.backward(wrong / static_cast<float>(recall.batch), gradient);
    adam.step(layer.weights, gradient, 0.01f);
    mhla::project(mhla::mix_view(layer.weights.mix));
  }
  return share < 0.05 ? 0 : 1;
}
