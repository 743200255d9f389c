// SPDX-License-Identifier: MIT
// Attention by way of summaries in one launch, the kernel's own source on the machine that stands
// in for a GPU, against the oracle in double, which rounds nothing but the inputs. A few blocks of
// threads take turns there, and wait for each other.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <mhla/cuda/fused/persistent_cost.hpp>
#include <mhla/cuda/fused/persistent_pass.cuh>
#include <mhla/cuda/fused/summaries_pass.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/packed.hpp>
#include <tuple>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/fused_call.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using call::Operands;
using cuda::fused::PersistentPlan;
using cuda::fused::Ticket;
using cuda::fused::UnitSchedule;
using cuda::fused::UnitStage;
using fused_call::bound_of_y;
using fused_call::expected_forward;
using fused_call::Image;
using fused_call::Language;
using fused_call::Line;
using fused_call::operands_of;
using fused_call::Video;
using mhla::testing::HostTensor;

/// y, wherever it is written poisoned before, with as many units in a step as give so many blocks
/// of threads work; checks what the kernel has moved, but of masked tokens, which nobody counts.
template <class T, int Dim, class V>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x, Index blocks) {
  HostTensor<T, 4> y = x.dy;
  fused_call::poison(y);
  const Problem problem = checked_problem(attention, x.shape());
  const Index items = problem.shape.batch;
  Arena measured;
  PersistentPlan<V, T>(measured, attention, problem, items, false, blocks);
  const Workspace workspace = fused_call::poisoned_workspace(measured.used());
  const cublasContext& context = machine::context();
  const auto read = context.kernel_bytes_read;
  const auto written = context.kernel_bytes_written;
  cuda::fused::attend_in_one_launch<HeadDims<Dim, Dim>, V, T>(
      machine::device(), attention, problem, {x.q.view(), x.k.view(), x.v.view(), x.mix.view()},
      y.view(), workspace, blocks);
  if constexpr (requires { attention.masks; }) {
    cuda::clear_masked(machine::device(), attention.masks.query, y.view());
  } else {
    Arena arena;
    const cuda::CallSize size = cuda::call_size(attention, problem);
    const auto moved = cuda::fused::PersistentCost<V>(attention, problem, size, arena).moved();
    CHECK(static_cast<Index>(context.kernel_bytes_read - read) == moved.read);
    CHECK(static_cast<Index>(context.kernel_bytes_written - written) == moved.written);
  }
  return y;
}

template <class T, int Dim, class V>
void check(const char* name, const V& attention, Shape shape) {
  shape.key_dim = shape.value_dim = Dim;
  const Operands<T> x = operands_of<T>(attention, shape);
  CAPTURE(name, Dim);
  const auto y = forward<T, Dim>(attention, x, 1);
  const auto expected = expected_forward(attention, call::converted<double>(x));
  const auto result = mhla::testing::compare(y.view(), expected.view());
  INFO(result.report());
  CHECK(result.rms_ratio <= bound_of_y<T>);

  // The same bits however many units are in a step, and whoever has their turn.
  for (const Index blocks : {7, 264}) {
    machine::context().seed += 1000;
    CHECK(call::bitwise_equal(y.view(), forward<T, Dim>(attention, x, blocks).view()));
  }
}

}  // namespace

TEST_CASE("persistent: every part of every unit has one ticket, behind all that it waits for") {
  for (const Index units : {1, 2, 3, 7, 40})
    for (const Index blocks : {1, 5, 23, 1000}) {
      const UnitSchedule schedule(units, {{3, 2, 5}}, blocks);
      CAPTURE(units, blocks, schedule.of_step, schedule.places());
      CHECK(schedule.of_step * 10 >= blocks);
      CHECK((schedule.of_step - 1) * 10 < blocks);
      REQUIRE(schedule.tickets() == units * 10);
      std::map<std::tuple<UnitStage, int, int>, int> number_of;
      for (int number = 0; number < schedule.tickets(); ++number) {
        const Ticket ticket = schedule.ticket(number);
        number_of[{ticket.stage, ticket.unit, ticket.part}] = number;
      }
      REQUIRE(number_of.size() == static_cast<std::size_t>(schedule.tickets()));
      const auto first = [&](UnitStage stage, int unit) { return number_of.at({stage, unit, 0}); };
      const auto last = [&](UnitStage stage, int unit) {
        return number_of.at({stage, unit, schedule.parts[static_cast<int>(stage)] - 1});
      };
      const auto places = static_cast<int>(schedule.places());
      CHECK(places <= units);
      Index wrong = 0;
      for (int unit = 0; unit < units; ++unit) {
        wrong += last(UnitStage::summarize, unit) >= first(UnitStage::mix, unit);
        wrong += last(UnitStage::mix, unit) >= first(UnitStage::read_out, unit);
        if (unit >= places)
          wrong += last(UnitStage::read_out, unit - places) >= first(UnitStage::summarize, unit);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("persistent: more heads than tickets can be numbered") {
  const Index most = UnitSchedule::max_tickets;
  CHECK(UnitSchedule(most / 10, {{3, 2, 5}}, 264).tickets() == most / 10 * 10);
  CHECK(says(error_message<ShapeError>([&] {
               UnitSchedule(most / 10 + 1, {{3, 2, 5}}, 264);
             }),
             "107374183 heads of the batch are more than one launch can have"));
}

TEST_CASE("persistent: blocks of one, two and three axes", "[cuda]") {
  check<Half, 32>("one token", Line<>{.blocks = {.block = 4}}, {1, 1, 1, 1, 1});
  check<Half, 32>("more tiles than a ring has slots", Line<>{.blocks = {.block = 210}},
                  {1, 2, 1, 230, 230});
  check<BFloat16, 72>("image", Image{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                      {2, 2, 2, 63, 63});
  check<BFloat16, 96>("video with a rotation",
                      Video{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}, .scale = 0.5},
                      {1, 2, 2, 105, 105});
}

// Later units take the places of earlier ones, again and again.
TEST_CASE("persistent: more units than places", "[cuda]") {
  check<Half, 32>("many", Line<>{.blocks = {.block = 10}}, {4, 3, 3, 30, 30});
  check<Half, 32>("a matrix for every kv head", Line<>{.blocks = {.block = 10}},
                  {3, 3, 3, 30, 30, 0, 0, 3});
  check<BFloat16, 64>("shared keys", Line<Causal>{.blocks = {.block = 10}}, {4, 4, 2, 30, 30});
}

TEST_CASE("persistent: causal blocks", "[cuda]") {
  check<BFloat16, 64>("own tokens", Line<Causal>{.blocks = {.block = 20}}, {1, 2, 2, 50, 50});
  check<BFloat16, 64>("own tokens of several tiles", Line<Causal>{.blocks = {.block = 150}},
                      {1, 1, 1, 170, 170});
  check<Half, 128>("a rotation, no denominators", Language{.blocks = {.block = 20}, .scale = 0.1},
                   {1, 2, 2, 67, 67});
  check<Half, 32>("whole blocks", Line<BlockCausal>{.blocks = {.block = 3}}, {1, 1, 1, 61, 61});
}

TEST_CASE("persistent: more blocks than the small kernel mixes", "[cuda]") {
  check<Half, 32>("33 blocks", Line<>{.blocks = {.block = 2}}, {1, 2, 2, 66, 66});
  check<BFloat16, 64>("39 blocks", Line<Causal>{.blocks = {.block = 2}}, {1, 1, 1, 77, 77});
  check<Half, 32>("128 blocks", Line<>{.blocks = {.block = 1}}, {1, 1, 1, 128, 128});
}

TEST_CASE("persistent: keys of another length", "[cuda]") {
  check<Half, 32>("cross", Line<>{.blocks = {.block = 20}, .key_blocks = {.block = 10}},
                  {1, 2, 2, 50, 28});
  const Line<> uneven{.blocks = {.block = 20}, .key_blocks = {.block = 3}};
  const auto x = operands_of<Half>(uneven, {1, 1, 1, 50, 58, 32, 32});
  CHECK(says(error_message<CudaError>([&] { forward<Half, 32>(uneven, x, 7); }),
             "cannot be mixed in one launch"));
}

TEST_CASE("persistent: padded batches", "[cuda]") {
  HostTensor<std::uint8_t, 2> mask(2, 50);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 50; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 40 ? 0 : 1;
  check<Half, 32>("padded", padded(Line<Causal>{.blocks = {.block = 20}}, mask.view()),
                  {2, 2, 2, 50, 50});
}

TEST_CASE("persistent: the bits of the kernels one by one, where nothing divides", "[cuda]") {
  const Language attention{.blocks = {.block = 20}, .scale = 0.1};
  const auto x = operands_of<Half>(attention, {2, 2, 1, 67, 67, 128, 128});
  const Problem problem = checked_problem(attention, x.shape());
  HostTensor<Half, 4> y = x.dy;
  const Workspace workspace =
      fused_call::poisoned_workspace(cuda::plan_size<cuda::fused::SummaryPlan<Language, Half>>(
          attention, problem, problem.shape.batch, false));
  cuda::fused::attend_by_summaries<HeadDims<128, 128>, Language, Half>(
      machine::device(), attention, problem, {x.q.view(), x.k.view(), x.v.view(), x.mix.view()},
      y.view(), workspace);
  CHECK(call::bitwise_equal(y.view(), forward<Half, 128>(attention, x, 30).view()));
}

TEST_CASE("persistent: nothing of a later token reaches an earlier one", "[cuda]") {
  fused_call::check_later_tokens_reach_nothing(
      Line<Causal>{.blocks = {.block = 20}}, {7, 29},
      [](const auto& attention, const auto& x) { return forward<BFloat16, 64>(attention, x, 7); });
}

TEST_CASE("persistent: key sums and matrices have more than 16 bits", "[cuda]") {
  fused_call::check_key_sums_and_matrices_are_not_rounded(
      [](const auto& attention, const auto& x) { return forward<BFloat16, 64>(attention, x, 7); });
}
