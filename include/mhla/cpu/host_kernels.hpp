// SPDX-License-Identifier: MIT
// What calls, Stages, SequenceParallel and HeadParallel do to tensors and sums on the host besides
// running attention.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// On a GPU cuda::StageKernels and cuda::HeadKernels do this.
class HostKernels {
 public:
  /// Throws unless what a call touches has addresses.
  static void require_memory(const Footprint& memory) { memory.require_addresses(); }

  template <class From, class To, int Rank>
  static void copy_tensor(const ExecutorRef& executor, const TensorView<From, Rank>& from,
                          const TensorView<To, Rank>& to) {
    const Index from_step = from.stride[Rank - 1];
    const Index to_step = to.stride[Rank - 1];
    for_each_row(executor, to, [&](Index first, Index columns) {
      const From* const source = &from.element(first);
      To* const target = &to.element(first);
      if (from_step == 1 && to_step == 1)
        std::copy_n(source, columns, target);
      else
        for (Index c = 0; c < columns; ++c) target[c * to_step] = source[c * from_step];
    });
  }
  /// Sets it to 0.
  template <class T, int Rank>
  static void clear_tensor(const ExecutorRef& executor, const TensorView<T, Rank>& tensor) {
    for_each_row(executor, tensor, [&](Index first, Index columns) {
      T* const row = &tensor.element(first);
      for (Index c = 0; c < columns; ++c) row[c * tensor.stride[Rank - 1]] = T{};
    });
  }

  /// Zeros the tokens that a mask takes away; without a mask, none.
  template <class T>
  static void clear_masked(const ExecutorRef&, const TensorView<const std::uint8_t, 2>& mask,
                           const TensorView<T, 4>& x) {
    if (mask.data == nullptr || x.data == nullptr) return;
    for (Index n = 0; n < x.extent[0]; ++n)
      for (Index t = 0; t < x.extent[2]; ++t) {
        if (mask(n, t) != 0) continue;
        for (Index h = 0; h < x.extent[1]; ++h)
          for (Index c = 0; c < x.extent[3]; ++c) x(n, h, t, c) = T{};
      }
  }
  /// Zeros the tokens of dq, dk and dv that masks take away: no unit writes them.
  template <class T>
  static void clear_masked(const ExecutorRef& executor, const TokenMasks& masks,
                           const GradientViews<T>& gradients) {
    clear_masked(executor, masks.query, gradients.query.view);
    clear_masked(executor, masks.key, gradients.key.view);
    clear_masked(executor, masks.key, gradients.value.view);
  }

  /// Copies these tokens, or all, of x [batch, heads, tokens, dim] to a message, in this order.
  template <class T>
  static void pack(const ExecutorRef& executor, const TensorView<const T, 4>& x,
                   const std::vector<Index>* tokens, T* message) {
    for_each_sent(executor, x, tokens, message, [](const T& element, T& sent) { sent = element; });
  }
  /// Writes a message's tokens to x, or adds them.
  template <class T>
  static void unpack(const ExecutorRef& executor, const T* message, const TensorView<T, 4>& x,
                     const std::vector<Index>* tokens, Update update) {
    for_each_sent(executor, x, tokens, message, [&](T& element, const T& received) {
      if (update == Update::overwrite)
        element = received;
      else
        store(element, load(element) + load(received));
    });
  }

  /// Rounds rows of sums to a message.
  template <class A>
  static void round_rows(const ExecutorRef& executor, const SumsLayout& of,
                         const TensorView<A, 2>& rows, std::byte* message) {
    for_each_sum(
        executor, of, rows, message,
        [](A& sum, BFloat16& sent) { store(sent, static_cast<float>(sum)); },
        [](A& sum, A& sent) { sent = sum; });
  }
  /// Widens a message of rounded sums to rows.
  template <class A>
  static void widen_rows(const ExecutorRef& executor, const SumsLayout& of, std::byte* message,
                         const TensorView<A, 2>& rows) {
    for_each_sum(
        executor, of, rows, message,
        [](A& sum, BFloat16& received) { sum = static_cast<A>(load(received)); },
        [](A& sum, A& received) { sum = received; });
  }

 private:
  // Calls visit(first element, number of elements) for every row.
  template <class T, int Rank, class Visit>
  static void for_each_row(const ExecutorRef& executor, const TensorView<T, Rank>& tensor,
                           const Visit& visit) {
    const Index columns = tensor.extent[Rank - 1];
    const Index rows = columns == 0 ? 0 : tensor.size() / columns;
    executor.parallel_for(rows, [&](Index row, Index) { visit(row * columns, columns); });
  }
  // Calls visit(element, its place in the message).
  template <class T, class Sent, class Visit>
  static void for_each_sent(const ExecutorRef& executor, const TensorView<T, 4>& x,
                            const std::vector<Index>* tokens, Sent* message, const Visit& visit) {
    const Index heads = x.extent[1];
    const Index dim = x.extent[3];
    const Index count = tokens == nullptr ? x.extent[2] : static_cast<Index>(tokens->size());
    executor.parallel_for(x.extent[0] * heads * count, [&](Index i, Index) {
      const Index t = i % count;
      const Index token = tokens == nullptr ? t : (*tokens)[static_cast<std::size_t>(t)];
      T* const row = &x(i / count / heads, i / count % heads, token, 0);
      for (Index c = 0; c < dim; ++c) visit(row[c * x.stride[3]], message[i * dim + c]);
    });
  }
  // Calls summary(number, its place), or key_sum(..), for all numbers of rows that travel rounded:
  // of each row all S, then all z.
  template <class A, class Summary, class KeySum>
  static void for_each_sum(const ExecutorRef& executor, const SumsLayout& of,
                           const TensorView<A, 2>& rows, std::byte* message, const Summary& summary,
                           const KeySum& key_sum) {
    const Index bytes = of.bytes<A>(Wire::bfloat16);
    executor.parallel_for(rows.extent[0], [&](Index r, Index) {
      A* row = &rows(r, 0);
      auto* rounded = reinterpret_cast<BFloat16*>(message + r * bytes);
      auto* exact = reinterpret_cast<A*>(message + (r + 1) * bytes) - of.count * of.key_sum;
      for (Index i = 0; i < of.count; ++i, row += of.summary + of.key_sum) {
        for (Index c = 0; c < of.summary; ++c) summary(row[c], *rounded++);
        for (Index c = 0; c < of.key_sum; ++c) key_sum(row[of.summary + c], *exact++);
      }
    });
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
