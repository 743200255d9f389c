// SPDX-License-Identifier: MIT
// One call of every stage, whose arguments a test may spoil.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/packed.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/stages/backend.hpp"
#include "tests/support/error_message.hpp"

namespace staged {

using namespace mhla;

using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
using PackedSequences = mhla::Packed<Sequence, std::int32_t>;

/// Blocks [1, 3) of 4, the last of which is ragged, with all that their stages take. Packed, they
/// are of two sequences.
template <class Variant>
struct CaseOf {
  using V = Variant;
  static constexpr float untouched = -7;
  static constexpr bool packs = std::is_same_v<V, PackedSequences>;
  static constexpr Index batch = packs ? 1 : 2;
  static constexpr Index columns = packs ? 2 : 4;  // of mix

  // With capacity to spare, so that a view laid over them reaches no other memory.
  std::vector<std::int32_t> offsets = [] {
    std::vector<std::int32_t> list;
    list.reserve(1024);
    list.assign({0, 8, 8, 14});
    return list;
  }();
  V attention = variant(offsets);
  call::Operands<float> x =
      call::operands<float>(attention, {batch, 4, 2, 14, 14, 3, 5, 1, columns, columns});
  backend::Stages<V, float> stages{attention, x.shape()};
  backend::Device executor = backend::device();
  BlockRange blocks{1, 2};
  call::Operands<float> part =
      call::operands<float>(attention, {batch, 4, 2, 8, 8, 3, 5, 1, 2, columns});
  call::HostTensor<float, 4> y = part.dy;
  call::Gradients<float> gradients{part};
  call::HostTensor<float, 2> summary_memory{4, stages.summary_size()};
  call::HostTensor<float, 2> gradient_memory{2, stages.summary_size()};
  call::HostTensor<float, 2> mixture_memory{2, stages.mixture_size()};
  call::HostTensor<float, 2> denominator_memory{2, stages.denominator_size()};
  mhla::Workspace memory{
      std::max({size(Stage::summarize), size(Stage::read_out), size(Stage::read_out_gradient),
                size(Stage::mix_gradient), size(Stage::summarize_gradient)})};

  mhla::OperandViews<float> operands{part.q.view(), part.k.view(), part.v.view(), part.mix.view()};
  TensorView<const float, 4> dy = part.dy.view();
  TensorView<float, 4> y_view = y.view();
  TensorView<float, 2> summaries = summary_memory.view();
  TensorView<float, 2> summary_gradients = gradient_memory.view();
  mhla::QueryRows<float> left{mixture_memory.view(), denominator_memory.view()};
  mhla::GradientViews<float> to = gradients.views();
  mhla::WorkspaceView workspace = memory;

  CaseOf() {
    const auto fill = [](const auto& view) {
      for (Index i = 0; i < view.size(); ++i) view.element(i) = untouched;
    };
    fill(y_view);
    fill(to.query.view);
    fill(to.key.view);
    fill(to.value.view);
    fill(to.mix.view);
    for (auto* rows : {&summary_memory, &gradient_memory, &mixture_memory, &denominator_memory})
      fill(rows->view());
  }
  static V variant([[maybe_unused]] const std::vector<std::int32_t>& sequences) {
    const Sequence sequence{.blocks = {.block = 4}};
    if constexpr (packs)
      return mhla::packed(sequence, sequences);
    else
      return sequence;
  }
  Index size(Stage stage) const { return stages.workspace_size(stage, executor, blocks, blocks); }

  void summarize() {
    stages.summarize(executor, blocks, operands.k, operands.v,
                     rows_of(summaries, {0, blocks.count}), workspace);
  }
  void read_out() { stages.read_out(executor, blocks, operands, summaries, y_view, workspace); }
  void read_out_gradient() {
    stages.read_out_gradient(executor, blocks, operands, summaries, dy, to, Update::overwrite, left,
                             workspace);
  }
  void mix_gradient() {
    stages.mix_gradient(executor, blocks, blocks,
                        columns_of(operands.mix, stages.mix_columns(blocks)), left.mixtures,
                        summary_gradients, workspace);
  }
  void summarize_gradient() {
    stages.summarize_gradient(executor, blocks, operands, summary_gradients, dy, left.denominators,
                              to, Update::overwrite, workspace);
  }

  bool wrote() const {
    bool any = false;
    const auto look = [&](const auto& view) {
      for (Index i = 0; i < view.size(); ++i) any = any || view.element(i) != untouched;
    };
    look(y.view());
    look(gradients.query.view());
    look(gradients.key.view());
    look(gradients.value.view());
    look(gradients.mix.view());
    look(summary_memory.view());
    look(gradient_memory.view());
    look(mixture_memory.view());
    look(denominator_memory.view());
    return any;
  }
};

using Case = CaseOf<Sequence>;
using PackedCase = CaseOf<PackedSequences>;

template <class C>
inline constexpr auto every_stage_of = {&C::summarize, &C::read_out, &C::read_out_gradient,
                                        &C::mix_gradient, &C::summarize_gradient};
inline constexpr auto every_stage = every_stage_of<Case>;

/// What a stage, a member of C, says of a case that was spoilt; it has written nothing.
template <class Error, class C, class Spoil>
std::string message(void (C::*stage)(), const Spoil& spoil) {
  C spoilt;
  spoil(spoilt);
  const std::string text = error_message<Error>([&] { (spoilt.*stage)(); });
  CHECK_FALSE(spoilt.wrote());
  return text;
}

}  // namespace staged
