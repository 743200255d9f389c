// SPDX-License-Identifier: MIT
// q, k and v packed in one matrix [tokens, 3 * heads * dim], stored by columns and by rows in
// turns; results and gradients lie as their operands. Besides the columns of measurement.hpp:
//   row_major_ms, of_row_major   the time by rows; this one's over it
#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <string>
#include <vector>

#include "benchmarks.hpp"
#include "passes.hpp"
#include "variants.hpp"

namespace bench {

namespace {

const Shape packed{"packed_N1024_M16", Model::key_sum, 8, 64, 64, {1, 1, 1024}, {1, 1, 64}};

enum class Layout { row_major, column_major };

/// Matrices [tokens, parts * heads * dim] of one sequence.
template <class T>
class PackedMatrix {
 public:
  PackedMatrix(Layout layout, Index parts)
      : layout_(layout),
        columns_(parts * width),
        elements_(static_cast<std::size_t>(packed.tokens() * columns_)) {}
  /// Of a part the view [1, heads, tokens, dim].
  mhla::TensorView<T, 4> part(Index i) {
    const bool rows = layout_ == Layout::row_major;
    const Index token = rows ? columns_ : 1;
    const Index column = rows ? 1 : packed.tokens();
    return {elements_.data() + i * width * column,
            {1, packed.heads, packed.tokens(), packed.key_dim},
            {0, packed.key_dim * column, token, column}};
  }
  void set_part(Index i, std::uint64_t seed) {
    const auto values = mhla::testing::random_tensor<T>(
        mhla::testing::Uniform{-1, 1}, seed, 1, packed.heads, packed.tokens(), packed.key_dim);
    mhla::testing::for_each_element([](T& to, const T& from) { to = from; }, part(i),
                                    values.view());
  }

 private:
  static inline const Index width = packed.heads * packed.key_dim;
  Layout layout_;
  Index columns_;
  std::vector<T> elements_;
};

template <class T>
struct PackedTensors {
  PackedMatrix<T> qkv, dy, y, gradients;
  HostTensor<mhla::Accumulator<T>, 3> mix, dmix;

  explicit PackedTensors(Layout layout)
      : qkv(layout, 3),
        dy(layout, 1),
        y(layout, 1),
        gradients(layout, 3),
        mix(1, packed.blocks(), packed.blocks()),
        dmix(1, packed.blocks(), packed.blocks()) {
    for (Index i = 0; i < 3; ++i) qkv.set_part(i, static_cast<std::uint64_t>(i) + 1);
    dy.set_part(0, 4);
    mhla::initialize(mix.view(), grid(packed), {.transform = mhla::Transform::linear});
  }
};

template <class T>
std::function<void()> run_packed(PassKind kind, Layout layout, const mhla::ExecutorRef& executor) {
  const auto t = std::make_shared<PackedTensors<T>>(layout);
  return with_variant<T>(packed, [&](const auto& attention) -> std::function<void()> {
    const auto q = t->qkv.part(0), k = t->qkv.part(1), v = t->qkv.part(2);
    const mhla::Shape shape = mhla::shape_of(q, k, v, t->mix.view());
    if (kind == PassKind::forward) {
      const auto workspace = std::make_shared<mhla::Workspace>(
          mhla::forward_workspace_size<T>(attention, shape, executor));
      return [=] {
        mhla::forward_into(attention, executor, q, k, v, t->mix.view(), t->y.part(0), *workspace);
      };
    }
    const auto workspace = std::make_shared<mhla::Workspace>(
        mhla::backward_workspace_size<T>(attention, shape, executor));
    return [=] {
      mhla::backward_into(
          attention, executor, q, k, v, t->mix.view(), t->dy.part(0),
          {t->gradients.part(0), t->gradients.part(1), t->gradients.part(2), t->dmix.view()},
          mhla::Update::overwrite, *workspace);
    };
  });
}

template <class T>
void add_scalar(const std::string& scalar, const NamedExecutor& executor) {
  for (const PassKind kind : {PassKind::forward, PassKind::backward})
    add("column_major_" + name_of(kind) + "/" + packed.name + "/" + scalar + "/" + executor.name,
        [=](benchmark::State& state) {
          const auto run = [&](Layout layout) {
            return run_packed<T>(kind, layout, executor.executor);
          };
          const Turns turns =
              take_turns<float>(state, executor.executor, executor.clock,
                                {run(Layout::column_major), run(Layout::row_major)});
          report(state, turns, work_of(kind, {packed, 1}, sizeof(T), {}));
          state.counters["row_major_ms"] = turns.median_seconds(1) * 1e3;
          state.counters["of_row_major"] = turns.median_seconds(0) / turns.median_seconds(1);
        });
}

}  // namespace

void add_layouts(const NamedExecutor& executor) {
  add_scalar<float>("float", executor);
  add_scalar<mhla::BFloat16>("bfloat16", executor);
}

}  // namespace bench
