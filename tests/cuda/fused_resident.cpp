// SPDX-License-Identifier: MIT
// Attention whose block summaries stay in shared memory, the kernel's own source on the machine
// that stands in for a GPU, against the oracle in double, which rounds nothing but the inputs. The
// less shared memory the machine has, the more slices values are cut into.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/paths/resident.cuh>
#include <mhla/packed.hpp>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/fused_call.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/cuda/traffic.hpp"

namespace {

using namespace mhla;
using call::Operands;
using namespace fused_call;
using mhla::testing::HostTensor;

/// The machine has so much shared memory for a thread block as long as this lives.
class SharedBytes {
 public:
  explicit SharedBytes(int bytes) { stand_in::runtime().shared_bytes = bytes; }
  ~SharedBytes() { stand_in::runtime().shared_bytes = before_; }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;

 private:
  int before_ = stand_in::runtime().shared_bytes;
};

/// How wide the slices of a call's values are.
template <class V>
Index slice_of(const Problem& problem) {
  return cuda::fused::resident_slice_of(problem.shape.key_dim, problem.shape.value_dim,
                                        std::max(problem.query_blocks, problem.key_blocks),
                                        mhla::normalizes<V>, mhla::rotates<V>,
                                        stand_in::runtime().shared_bytes);
}

/// y, wherever it is written poisoned before; checks what the kernel reads and writes of tensors.
template <class T, int Dim, class V>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x, const TensorView<const T, 4>& q,
                         const TensorView<const T, 4>& k, const TensorView<const T, 4>& v) {
  HostTensor<T, 4> y = x.dy;
  fused_call::poison(y);
  const Problem problem = checked_problem(attention, x.shape());
  const Index items = problem.shape.batch;
  using Plan = cuda::ResidentPath::Plan<V, T>;
  const Workspace workspace =
      fused_call::poisoned_workspace(cuda::plan_size<Plan>(attention, problem, items, false));
  traffic::Watch watch;
  watch("q", q);
  watch("k", k);
  watch("v", v);
  watch("y", y);
  Arena layout(workspace);
  const Plan plan(layout, attention, problem, items, false);
  if constexpr (mhla::rotates<V>) watch.broadcast("rows of angles", plan.rotation.halves);
  const CudaDevice device = machine::device();
  cuda::ResidentPath::forward<HeadDims<Dim, Dim>, V, T>(
      {device, attention, problem, {q, k, v, x.mix.view()}, y.view(), workspace});
  Arena arena(workspace);
  const cuda::Extents<V> e(arena, attention, problem, items);
  const traffic::Tokens queries{e.queries.table, items, cuda::tile_rows(Dim)};
  const traffic::Tokens keys{e.keys.table, items, cuda::tile_rows(Dim)};
  const Index slices = Dim / slice_of<V>(problem);
  const Index heads = problem.shape.heads, summaries = problem.shape.kv_heads * e.matrices;
  watch.check("q", slices * heads * queries.all() * Dim, 0);
  watch.check("k", slices * summaries * keys.all() * Dim, 0);
  watch.check("v", summaries * keys.all() * Dim, 0);
  watch.check("y", 0, heads * queries.all() * Dim);
  watch.check_rest(0.95);
  if constexpr (requires { attention.masks; })
    cuda::clear_masked(machine::device(), attention.masks.query, y.view());
  return y;
}
template <class T, int Dim, class V>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x) {
  return forward<T, Dim>(attention, x, x.q, x.k, x.v);
}

/// `slice`: how wide the slices of values are expected to be.
template <class T, int Dim, class V>
void check(const char* name, Index slice, const V& attention, Shape shape) {
  shape.key_dim = shape.value_dim = Dim;
  const Operands<T> x = operands_of<T>(attention, shape);
  CAPTURE(name, Dim);
  REQUIRE(slice_of<V>(checked_problem(attention, x.shape())) == slice);
  const auto y = forward<T, Dim>(attention, x);
  const auto expected = expected_forward(attention, call::converted<double>(x));
  const auto result = mhla::testing::compare(y.view(), expected.view());
  INFO(result.report());
  CHECK(result.rms_ratio <= bound_of_y<T>);

  if (!fused_call::runs_again()) return;
  CHECK(call::bitwise_equal(y.view(), forward<T, Dim>(attention, x).view()));
}

using RotatedLine = Line<BlockCausal, Unnormalized, HalfSplitRotary>;

}  // namespace

TEST_CASE("resident: blocks of one, two and three axes", "[cuda]") {
  check<Half, 32>("one token", 32, Line<>{.blocks = {.block = 4}}, {1, 1, 1, 1, 1});
  check<Half, 32>("more tiles than a ring has slots", 32, Line<>{.blocks = {.block = 210}},
                  {1, 2, 1, 230, 230});
  check<BFloat16, 72>("image", 72, Image<>{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                      {2, 2, 1, 63, 63});
  check<BFloat16, 96>("video with a rotation", 96,
                      Video<MixedKeySum, AxialRotary>{
                          .blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}, .scale = 0.5},
                      {1, 1, 1, 105, 105});
}

TEST_CASE("resident: blocks of the past", "[cuda]") {
  check<BFloat16, 64>("tiles of several", 64, Line<BlockCausal>{.blocks = {.block = 20}},
                      {1, 2, 1, 50, 50});
  check<BFloat16, 64>("several tiles", 64, Line<BlockCausal>{.blocks = {.block = 150}},
                      {1, 1, 1, 170, 170});
  check<Half, 128>("a rotation, no denominators", 64,
                   RotatedLine{.blocks = {.block = 20}, .scale = 0.1}, {1, 1, 1, 67, 67});
  check<Half, 32>("one that is short", 32, Line<BlockCausal>{.blocks = {.block = 3}},
                  {1, 1, 1, 61, 61});
}

TEST_CASE("resident: many blocks, and little shared memory", "[cuda]") {
  // Parts of 16 blocks that are full, and one that is not.
  check<BFloat16, 64>("39 blocks", 32, Line<BlockCausal>{.blocks = {.block = 2}},
                      {1, 1, 1, 77, 77});
  check<Half, 32>("64 blocks", 32, Line<>{.blocks = {.block = 1}}, {1, 1, 1, 64, 64});
  check<Half, 128>("32 blocks", 16, RotatedLine{.blocks = {.block = 2}, .scale = 0.1},
                   {1, 1, 1, 63, 63});
  {
    const SharedBytes of_sm_120(99 * 1024);
    check<BFloat16, 72>("image", 24, Image<>{.blocks = {.grid = {9, 12}, .block = {3, 3}}},
                        {1, 2, 1, 108, 108});
    const Line<> line{.blocks = {.block = 20}};
    const auto x = operands_of<Half>(line, {1, 1, 1, 50, 50, 32, 32});
    const auto wide = forward<Half, 32>(line, x);
    // Slices share nothing: the same bits.
    const SharedBytes less(30 * 1024);
    REQUIRE(slice_of<Line<>>(checked_problem(line, x.shape())) == 16);
    CHECK(call::bitwise_equal(wide.view(), forward<Half, 32>(line, x).view()));
  }
}

TEST_CASE("resident: packed and padded batches", "[cuda]") {
  const std::vector<std::int32_t> offsets = {0, 1, 34, 34, 80};
  const Line<BlockCausal> causal{.blocks = {.block = 20}};
  check<Half, 32>("packed", 32, packed(causal, offsets), {1, 2, 1, 80, 80, 0, 0, 1, 3, 3});
  HostTensor<std::uint8_t, 2> mask(2, 50);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 50; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 40 ? 0 : 1;
  check<Half, 32>("padded", 32, padded(causal, mask.view()), {2, 2, 1, 50, 50});
}

TEST_CASE("resident: nothing of a later token reaches an earlier one", "[cuda]") {
  fused_call::check_later_tokens_reach_nothing<BFloat16>(
      Line<BlockCausal>{.blocks = {.block = 20}}, 64, {29, 49},
      [](const auto& attention, const auto& x) { return forward<BFloat16, 64>(attention, x); }, 20);
}

TEST_CASE("resident: key sums and matrices have more than 16 bits", "[cuda]") {
  fused_call::check_key_sums_and_matrices_are_not_rounded(
      [](const auto& attention, const auto& x) { return forward<BFloat16, 64>(attention, x); });
}
