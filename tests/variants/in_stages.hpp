// SPDX-License-Identifier: MIT
// A call by mhla::Stages.
#pragma once

#include <algorithm>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <mhla/stages.hpp>
#include <vector>

#include "tests/variants/attention.hpp"
#include "tests/variants/executor.hpp"

namespace variants {

/// Both passes, taken apart: tensors hold all blocks, of which every call is on some.
template <class V, class T, Causality causality>
class InStages {
  using A = mhla::Accumulator<T>;
  using Range = mhla::BlockRange;
  using Rows = mhla::TensorView<A, 2>;

 public:
  InStages(const Call& call, const Executor& executor, Size blocks)
      : call_(call),
        executor_(executor),
        blocks_(blocks),
        stages_(attention_of<V>(call), shape_with_corner(call)),
        queries_(stages_.query_blocks()),
        keys_(stages_.key_blocks()),
        mix_(typed<const A, 3>(call.mix)),
        dmix_(typed<A, 3>(call.gradient[mixing])) {
    mix_.extent[1] = dmix_.extent[1] = queries_.count;
    mix_.extent[2] = dmix_.extent[2] = keys_.count;
    stages_.hold(queries_, keys_);
  }

  void run() {
    const Rows sums = rows(sums_, keys_.count, stages_.summary_size());
    const Rows gradients = rows(gradients_, keys_.count, stages_.summary_size());
    const Rows mixtures = rows(mixtures_, queries_.count, stages_.mixture_size());
    const Rows denominators = rows(denominators_, queries_.count, stages_.denominator_size());
    const auto q = typed<const T, 4>(call_.q), k = typed<const T, 4>(call_.k),
               v = typed<const T, 4>(call_.v), dy = typed<const T, 4>(call_.dy);
    const mhla::Update update = mhla::Update::overwrite;
    for_each_range(keys_, [&](const Range& some) {
      stages_.summarize(executor_.get(), some, k, v, mhla::rows_of(sums, some),
                        workspace(mhla::Stage::summarize, some));
    });
    const mhla::TensorView<const A, 2> seen = sums, left = mixtures, grads = gradients,
                                       dens = denominators;
    for_each_range(queries_, [&](const Range& some) {
      const mhla::OperandViews<T> x{q, k, v, mhla::rows_of(mix_, some)};
      stages_.read_out(executor_.get(), some, x, seen, typed<T, 4>(call_.y),
                       workspace(mhla::Stage::read_out, some));
      stages_.read_out_gradient(
          executor_.get(), some, x, seen, dy,
          {typed<T, 4>(call_.gradient[query]), mhla::skip, mhla::skip, mhla::rows_of(dmix_, some)},
          update, {mhla::rows_of(mixtures, some), mhla::rows_of(denominators, some)},
          workspace(mhla::Stage::read_out_gradient, some));
    });
    for_each_range(keys_, [&](const Range& some) {
      const Range later{causal ? some.first : 0, queries_.count - (causal ? some.first : 0)};
      stages_.mix_gradient(executor_.get(), later, some,
                           mhla::columns_of(mhla::rows_of(mix_, later), some),
                           mhla::rows_of(left, later), mhla::rows_of(gradients, some),
                           workspace(mhla::Stage::mix_gradient, later, some));
      mhla::OperandViews<T> x{q, k, v, {}};
      mhla::GradientView<A, 3> dmix = mhla::skip;
      mhla::TensorView<const A, 2> own;
      if (causality == Causality::causal) {
        x.mix = mhla::rows_of(mix_, some);
        dmix = mhla::rows_of(dmix_, some);
        own = mhla::rows_of(dens, some);
      }
      stages_.summarize_gradient(
          executor_.get(), some, x, mhla::rows_of(grads, some), dy, own,
          {mhla::skip, typed<T, 4>(call_.gradient[key]), typed<T, 4>(call_.gradient[value]), dmix},
          update, workspace(mhla::Stage::summarize_gradient, some));
    });
  }

 private:
  static constexpr bool causal = causality != Causality::bidirectional;

  // Of a mix that is larger than the blocks, stages have the corner.
  static mhla::Shape shape_with_corner(const Call& call) {
    mhla::Shape shape = shape_of<T>(call);
    shape.mix_query_blocks = call.queries.blocks();
    shape.mix_key_blocks = call.keys.blocks();
    return shape;
  }
  static Rows rows(std::vector<A>& memory, Size count, Size size) {
    memory.assign(static_cast<std::size_t>(count * size), std::numeric_limits<A>::quiet_NaN());
    return mhla::make_view(memory.data(), count, size);
  }
  template <class F>
  void for_each_range(const Range& all, const F& f) const {
    for (Size first = 0; first < all.count; first += blocks_)
      f(Range{first, std::min(blocks_, all.count - first)});
  }
  const mhla::Workspace& workspace(mhla::Stage stage, const Range& blocks, const Range& keys = {}) {
    workspace_ = mhla::Workspace(stages_.workspace_size(stage, executor_.get(), blocks, keys));
    return workspace_;
  }

  const Call& call_;
  const Executor& executor_;
  Size blocks_;
  mhla::Stages<V, T> stages_;
  Range queries_, keys_;
  mhla::TensorView<const A, 3> mix_;
  mhla::TensorView<A, 3> dmix_;
  std::vector<A> sums_, gradients_, mixtures_, denominators_;
  mhla::Workspace workspace_{0};
};
template <class V, class T, Causality causality>
void run_in_stages(const Call& call, const Executor& executor, Size blocks) {
  InStages<V, T, causality>(call, executor, blocks).run();
}

}  // namespace variants
