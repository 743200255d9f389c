// SPDX-License-Identifier: MIT
// Executors on threads of other libraries, as far as these are installed: each task once, on slots
// of its own, what tasks throw, and the bits of one thread.
#include <mhla/core/gradient_views.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/policy/variant.hpp>
#ifdef _OPENMP
#include <mhla/executors/openmp.hpp>
#endif
#ifdef MHLA_TEST_TBB
#include <mhla/executors/tbb.hpp>
#endif

#include <stdexcept>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/task_record.hpp"

namespace {

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
constexpr Index heads = 5, tokens = 24, dim = 8, blocks = 3;

// y, dq, dk, dv and dmix, one after another.
template <class E>
std::vector<float> results(const E& executor) {
  std::vector<float> qkv(3 * heads * tokens * dim), mix(blocks * blocks, 0.25f);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i * 7 % 23) - 9;
  std::vector<float> all(4 * heads * tokens * dim + blocks * blocks);
  const auto part = [](auto& memory, Index number) {
    return mhla::heads_view(memory.data() + number * heads * dim * tokens, tokens, heads, dim);
  };
  const Attention attention{.blocks = {.block = tokens / blocks}};
  const auto q = part(qkv, 0), k = part(qkv, 1), v = part(qkv, 2);
  const auto mix_view = mhla::make_view(mix.data(), blocks, blocks);
  mhla::forward_into(attention, executor, q, k, v, mix_view, part(all, 0));
  mhla::backward_into(attention, executor, q, k, v, mix_view, q,
                      {part(all, 1), part(all, 2), part(all, 3),
                       mhla::make_view(all.data() + 4 * heads * tokens * dim, blocks, blocks)});
  return all;
}

template <class E>
void check(const E& executor, Index threads) {
  static_assert(mhla::Executor<E>);
  CHECK(executor.num_slots() == threads);
  for (const Index tasks : {0, 1, 100}) {
    TaskRecord record(tasks, executor.num_slots());
    executor.parallel_for(tasks, [&](Index task, Index slot) { record.run(task, slot); });
    CHECK(record.in_order());
  }
  const auto throws = [](Index task, Index) {
    if (task == 7) throw std::runtime_error("seven");
  };
  CHECK_THROWS_WITH(executor.parallel_for(100, throws), "seven");
  CHECK(results(executor) == results(mhla::SerialExecutor{}));
}

}  // namespace

#ifdef _OPENMP
TEST_CASE("executors: OpenMP", "[executors]") {
  check(mhla::OpenMpExecutor{}, omp_get_max_threads());
  check(mhla::OpenMpExecutor{.threads = 3}, 3);
  // Callers that are themselves threads of OpenMP.
  std::vector<std::vector<float>> all(4);
#pragma omp parallel for num_threads(4)
  for (std::size_t i = 0; i < 4; ++i) all[i] = results(mhla::OpenMpExecutor{.threads = 2});
  for (const auto& one : all) CHECK(one == results(mhla::SerialExecutor{}));
}
#endif

#ifdef MHLA_TEST_TBB
TEST_CASE("executors: oneTBB", "[executors]") {
  check(mhla::TbbExecutor{}, tbb::this_task_arena::max_concurrency());
  tbb::task_arena arena(3);
  arena.execute([] { check(mhla::TbbExecutor{}, 3); });
}
#endif
