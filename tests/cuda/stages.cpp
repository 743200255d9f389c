// SPDX-License-Identifier: MIT
// What stages on a device do besides those on the CPU: they run parts of the batch, and refuse
// paths, plans, rows and memory that cuBLAS and kernels cannot use.
#include <mhla/cuda/instantiate.cuh>
// After it, so that the stand-ins were found first.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "tests/cuda/call_memory.hpp"
#include "tests/stages/case.hpp"
#include "tests/stages/whole.hpp"
#include "tests/support/error_message.hpp"

namespace {

using call::bitwise_equal;
using call_memory::Affordable;
using namespace mhla;
using namespace staged;

// Whatever CUDA did not know, it knows again.
struct Unknown {
  ~Unknown() { stand_in::runtime() = {}; }
};

template <class Causality, class Normalizer>
void check_parts_of_batch() {
  using V = Attention<Relu, Blocks1D, Causality, Normalizer, HalfSplitRotary>;
  for (const Index mix_heads : {1, 4, 12}) {
    CAPTURE(mix_heads);
    Whole<float, V> whole(V{.blocks = {.block = 3}}, {3, 4, 2, 17, 17, 6, 5, mix_heads}, 1);
    const auto run = [&] {
      return whole.run({{0, 2}, {2, 4}}, {{0, 5}, {5, 1}}, Update::overwrite);
    };
    const long before = machine::context().launches;
    auto at_once = run();
    const long launches = machine::context().launches - before;
    const Affordable one_item(1);
    auto in_parts = run();
    CHECK(machine::context().launches - before > 2 * launches);
    CHECK(bitwise_equal(in_parts.y.view(), at_once.y.view()));
    CHECK(bitwise_equal(in_parts.gradients.query.view(), at_once.gradients.query.view()));
    CHECK(bitwise_equal(in_parts.gradients.key.view(), at_once.gradients.key.view()));
    CHECK(bitwise_equal(in_parts.gradients.value.view(), at_once.gradients.value.view()));
    // Items are added up in another order.
    call::check_close("dmix", in_parts.gradients.mix, at_once.gradients.mix, 1e-6, 1e-5);
  }
}

}  // namespace

TEST_CASE("cuda stages: a batch in parts", "[cuda]") {
  SECTION("bidirectional") { check_parts_of_batch<Bidirectional, MixedKeySum>(); }
  SECTION("causal") { check_parts_of_batch<Causal, MixedKeySum>(); }
  SECTION("block-causal") { check_parts_of_batch<BlockCausal, Unnormalized>(); }
}

TEST_CASE("cuda stages: other paths and plans are refused", "[cuda]") {
  const auto with_path = [](CudaPath path) {
    return [path](Case& c) {
      c.executor = {nullptr, &machine::context(), {}, mhla::FloatProducts::exact, path};
    };
  };
  const Case other;
  const mhla::CudaPlan plan =
      mhla::plan<float>(other.attention, other.x.shape(), machine::device());
  for (const auto stage : every_stage) {
    CHECK(says(message<ShapeError>(stage, with_path(CudaPath::summaries)),
               "CudaPath::summaries, which has no stages"));
    CHECK(says(
        message<ShapeError>(stage, [&](Case& c) { c.executor = machine::device().with(plan); }),
        "a plan, which CudaStages cannot use"));
    Case c;
    with_path(CudaPath::cublas)(c);
    (c.*stage)();
    CHECK(c.wrote());
  }
}

TEST_CASE("cuda stages: memory that CUDA does not know is refused", "[cuda]") {
  const auto refused = [](void (Case::*stage)(), const char* name, const auto& view_of) {
    const Unknown restored;
    const std::string text = message<CudaError>(stage, [&](Case& c) {
      const auto view = view_of(c);
      stand_in::runtime().unknown = {
          {view.data, static_cast<std::size_t>(view.size()) * sizeof(*view.data)}};
    });
    CAPTURE(name, text);
    CHECK(says(text, std::string("mhla: ") + name + ": the address is not in memory that CUDA"));
  };
  const auto q = [](Case& c) { return c.operands.q; };
  const auto k = [](Case& c) { return c.operands.k; };
  const auto v = [](Case& c) { return c.operands.v; };
  const auto mix = [](Case& c) { return c.operands.mix; };
  const auto dy = [](Case& c) { return c.dy; };
  const auto summaries = [](Case& c) { return c.summaries; };
  const auto gradients = [](Case& c) { return c.summary_gradients; };
  const auto mixtures = [](Case& c) { return c.left.mixtures; };
  const auto denominators = [](Case& c) { return c.left.denominators; };
  const auto dmix = [](Case& c) { return c.to.mix.view; };
  for (const auto& [name, view] : {std::pair{"k", +k}, std::pair{"v", +v}}) {
    refused(&Case::summarize, name, view);
    refused(&Case::read_out, name, view);
    refused(&Case::read_out_gradient, name, view);
    refused(&Case::summarize_gradient, name, view);
  }
  for (const auto stage : {&Case::read_out, &Case::read_out_gradient, &Case::summarize_gradient}) {
    refused(stage, "q", q);
    refused(stage, "mix", mix);
  }
  for (const auto stage : {&Case::summarize, &Case::read_out, &Case::read_out_gradient})
    refused(stage, "summaries", summaries);
  for (const auto stage : {&Case::read_out_gradient, &Case::summarize_gradient}) {
    refused(stage, "dy", dy);
    refused(stage, "denominators", denominators);
    refused(stage, "dmix", dmix);
  }
  for (const auto stage : {&Case::read_out_gradient, &Case::mix_gradient})
    refused(stage, "mixtures", mixtures);
  for (const auto stage : {&Case::mix_gradient, &Case::summarize_gradient})
    refused(stage, "summary_gradients", gradients);
  refused(&Case::read_out, "y", [](Case& c) { return c.y_view; });
  refused(&Case::read_out_gradient, "dq", [](Case& c) { return c.to.query.view; });
  refused(&Case::summarize_gradient, "dk", [](Case& c) { return c.to.key.view; });
  refused(&Case::summarize_gradient, "dv", [](Case& c) { return c.to.value.view; });
  for (const auto stage : every_stage)
    refused(stage, "workspace",
            [](Case& c) { return mhla::make_view(c.workspace.data, c.workspace.size); });
}

TEST_CASE("cuda stages: packed sequences' are refused before one of them writes", "[cuda]") {
  using C = staged::PackedCase;
  for (const auto stage : staged::every_stage_of<C>) {
    CHECK(says(message<ShapeError>(stage,
                                   [](C& c) {
                                     c.executor = {nullptr,
                                                   &machine::context(),
                                                   {},
                                                   mhla::FloatProducts::exact,
                                                   CudaPath::summaries};
                                   }),
               "CudaPath::summaries, which has no stages"));
    const Unknown restored;
    CHECK(says(
        message<CudaError>(
            stage,
            [](C& c) {
              stand_in::runtime().unknown = {{c.workspace.data, std::size_t(c.workspace.size)}};
            }),
        "mhla: workspace: the address is not in memory that CUDA"));
  }
  for (const auto stage : {&C::read_out, &C::read_out_gradient})
    CHECK(says(message<ShapeError>(stage, [](C& c) { c.summaries.stride[0] = 0; }),
               "mhla: summaries: axis blocks' stride is 0 but must be"));
  // Which a sequence with one row would not notice.
  CHECK(says(message<ShapeError>(&C::mix_gradient, [](C& c) { c.left.mixtures.stride[0] = 1; }),
             "mhla: mixtures: axis blocks' stride is 1 but must be"));
  CHECK(says(message<ShapeError>(&C::mix_gradient, [](C& c) { c.summary_gradients.stride[0] = 1; }),
             "mhla: summary_gradients: "));
  // Offsets are read on the host.
  const Unknown restored;
  C c;
  stand_in::runtime().unknown = {{c.offsets.data(), c.offsets.size() * sizeof(c.offsets[0])}};
  c.read_out();
  CHECK(c.wrote());
}
