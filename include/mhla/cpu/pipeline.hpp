// SPDX-License-Identifier: MIT
// The CPU backend's interface: forward_into and backward_into on strided views. It names no Eigen
// type; everything is checked before anything is written (units.hpp).
#pragma once

#include <mhla/cpu/units.hpp>
#include <mhla/policy/argument_errors.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup core_calls
/// \{

/// Bytes of workspace that forward_into takes for tensors of storage type T, or an expression for
/// tensors of T, Eigen::bfloat16 and Eigen::half included: exact. Allocates nothing.
/// \throws ShapeError if attention and shape do not fit.
template <StorageScalar T, AttentionVariant V, Executor E>
MHLA_ONCE_A_CALL Index forward_workspace_size(const V& attention, const Shape& shape,
                                              const E& executor) {
  Arena arena;
  cpu::Call<V, T>(arena, attention, checked_problem(attention, shape), executor, std::false_type());
  return arena.used();
}

/// Bytes of workspace that backward_into takes for tensors of storage type T, whichever gradients
/// are wanted: exact. Allocates nothing.
/// \throws ShapeError if attention and shape do not fit.
template <StorageScalar T, AttentionVariant V, Executor E>
MHLA_ONCE_A_CALL Index backward_workspace_size(const V& attention, const Shape& shape,
                                               const E& executor) {
  Arena arena;
  cpu::Call<V, T>(arena, attention, checked_problem(attention, shape), executor, std::true_type());
  return arena.used();
}

/// Elements of the accumulator type that ForwardState::reserve takes for a shape, at the most.
/// \throws ShapeError if attention and shape do not fit.
template <AttentionVariant V>
Index forward_state_size(const V& attention, const Shape& shape) {
  return cpu::call_summary_size<float, V>(checked_problem(attention, shape));
}

/// y = attention(q, k, v, mix) as mhla::Attention defines it (arXiv 2601.07832, equations 3 to 5).
///
/// q [batch, heads, query tokens, key_dim], k [batch, kv_heads, key tokens, key_dim],
/// v [batch, kv_heads, key tokens, value_dim], mix [1, heads or batch * heads, query blocks, key
/// blocks] or [query blocks, key blocks], or a structured mixing's parameters (\ref mixings), in
/// the accumulator type, y [batch, heads, query tokens, value_dim]; any strides. y shares no
/// element with an operand. With `save`, the summaries are kept for backward_into. Allocates
/// nothing, unless `save` has to grow; the same bits for any executor.
/// \throws ShapeError if views, variant or memory do not fit, WorkspaceError if `workspace`
/// is smaller than forward_workspace_size or shares memory with a tensor; y is untouched then.
///
/// \code
/// mhla::forward_into(attention, executor, q_view, k_view, v_view, mix_view, y_view, workspace,
///                    &state);
/// mhla::backward_into(attention, executor, q_view, k_view, v_view, mix_view, dy_view,
///                     {dq_view, dk_view, dv_view, mhla::skip}, mhla::Update::overwrite, workspace,
///                     &state);
/// \endcode
template <AttentionVariant V, Executor E, StorageScalar T>
void forward_into(const V& attention, const E& executor, const InputView<T, 4>& q,
                  const InputView<T, 4>& k, const InputView<T, 4>& v,
                  const InputView<Accumulator<T>, 3>& mix, const TensorView<T, 4>& y,
                  WorkspaceView workspace,
                  std::type_identity_t<ForwardState<Accumulator<T>>*> save = nullptr) {
  cpu::checked_forward_into(attention, executor, OperandViews<T>{q, k, v, mix}, y,
                            {"mhla::forward_into", workspace}, save);
}

/// In memory that is allocated for this call.
template <AttentionVariant V, Executor E, StorageScalar T>
void forward_into(const V& attention, const E& executor, const InputView<T, 4>& q,
                  const InputView<T, 4>& k, const InputView<T, 4>& v,
                  const InputView<Accumulator<T>, 3>& mix, const TensorView<T, 4>& y) {
  cpu::checked_forward_into(attention, executor, OperandViews<T>{q, k, v, mix}, y,
                            {"mhla::forward_into"}, nullptr);
}

/// The gradients of sum(dy o attention(q, k, v, mix)) in q, k, v and mix, each of which may be
/// skipped: exact, with summaries recomputed or taken from `saved`.
///
/// Shapes as in forward_into; every gradient has the shape of its operand, and dmix is summed over
/// the batch and the heads where mix is shared. `update` says whether gradients are replaced
/// or added to. A gradient shares no element with an operand or another gradient. Allocates
/// nothing; the same bits for any executor and whichever other gradients are wanted.
/// \throws ShapeError, WorkspaceError as forward_into, StateError if `saved` is of another call;
/// the gradients are untouched then.
template <AttentionVariant V, Executor E, class Query, class T = std::remove_const_t<Query>>
requires StorageScalar<T>
void backward_into(const V& attention, const E& executor, const TensorView<Query, 4>& query,
                   const InputView<T, 4>& k, const InputView<T, 4>& v,
                   const InputView<Accumulator<T>, 3>& mix, const InputView<T, 4>& dy,
                   const std::type_identity_t<GradientViews<T>>& gradients, Update update,
                   WorkspaceView workspace,
                   std::type_identity_t<const ForwardState<Accumulator<T>>*> saved = nullptr) {
  cpu::checked_backward_into(attention, executor, OperandViews<T>{query, k, v, mix}, dy, gradients,
                             update, {"mhla::backward_into", workspace}, saved);
}

/// In memory that is allocated for this call.
template <AttentionVariant V, Executor E, class Query, class T = std::remove_const_t<Query>>
requires StorageScalar<T>
void backward_into(const V& attention, const E& executor, const TensorView<Query, 4>& query,
                   const InputView<T, 4>& k, const InputView<T, 4>& v,
                   const InputView<Accumulator<T>, 3>& mix, const InputView<T, 4>& dy,
                   const std::type_identity_t<GradientViews<T>>& gradients,
                   Update update = Update::overwrite) {
  cpu::checked_backward_into(attention, executor, OperandViews<T>{query, k, v, mix}, dy, gradients,
                             update, {"mhla::backward_into"}, nullptr);
}

/// \}

MHLA_NAMESPACE_END
