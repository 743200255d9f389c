// SPDX-License-Identifier: MIT
// explain(attention, shape, device) says which path takes a call and why, and what that takes:
// exactly the workspace, the parts that the batch is cut into, and the operations that diagnostics
// counts where no block is padded.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/diagnostics/cost.hpp>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using mhla::cuda::Direction;

using OneD = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;
using TwoD = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
using Expanding = mhla::Attention<mhla::Hedgehog, mhla::Blocks1D>;
using CausalLine = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;
using BlockCausalLine = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::BlockCausal>;

const CudaDevice device(nullptr, nullptr);

}  // namespace

TEST_CASE("cuda explain: operations are those of the products", "[cuda]") {
  const Shape shape{3, 8, 2, 64, 64, 12, 10, 8, 4, 4};
  const auto check = [&](const auto& attention) {
    const auto forward = mhla::cuda::call_cost<float>(attention, shape, device, Direction::forward);
    CHECK(forward.flops == mhla::diagnostics::forward_cost(attention, shape).flops());
  };
  check(OneD{.blocks = {.block = 16}});
  check(TwoD{.blocks = {.grid = {8, 8}, .block = {4, 4}}});
  check(Expanding{.blocks = {.block = 16}});
  check(CausalLine{.blocks = {.block = 16}});
  check(BlockCausalLine{.blocks = {.block = 16}});

  // One matrix for all heads mixes once for all query heads of a kv head.
  Shape shared = shape;
  shared.mix_heads = 1;
  const OneD attention{.blocks = {.block = 16}};
  const auto per_head = mhla::cuda::call_cost<float>(attention, shape, device, Direction::forward);
  const auto once = mhla::cuda::call_cost<float>(attention, shared, device, Direction::forward);
  CHECK(per_head.flops - once.flops == 2 * 3 * (8 - 2) * (4 * 4) * 12 * 10);
}

TEST_CASE("cuda explain: operations by hand, backward, cross-attention and padding", "[cuda]") {
  // 2 items, 4 heads on 2 kv heads, 20 queries in 3 blocks of 7, 22 keys in 5 blocks of 5.
  const Shape shape{2, 4, 2, 20, 22, 8, 9, 4, 3, 5};
  const OneD attention{.blocks = {.block = 7}, .key_blocks = {.block = 5}};
  const Index keys = 2 * (2 * 2) * (5 * 5) * 8 * 9;
  const Index queries = 2 * (2 * 4) * (3 * 7) * 8 * 9;
  const Index mixing = 2 * (2 * 4) * (3 * 5) * 8 * 9;
  const auto forward = mhla::cuda::call_cost<double>(attention, shape, device, Direction::forward);
  CHECK(forward.flops == keys + mixing + queries);
  const auto backward =
      mhla::cuda::call_cost<double>(attention, shape, device, Direction::backward);
  CHECK(backward.flops == 3 * keys + 3 * mixing + 2 * queries);

  const Index of_q = 2 * 4 * 20 * 8, of_k = 2 * 2 * 22 * 8, of_v = 2 * 2 * 22 * 9;
  const Index of_y = 2 * 4 * 20 * 9, of_mix = 4 * 3 * 5;
  CHECK(forward.bytes_read == 8 * (of_q + of_k + of_v + of_mix));
  CHECK(forward.bytes_written == 8 * of_y);
  CHECK(backward.bytes_read == 8 * (of_q + of_k + of_v + of_y + of_mix));
  CHECK(backward.bytes_written == 8 * (of_q + of_k + of_v + of_mix));
  const auto half =
      mhla::cuda::call_cost<mhla::Half>(attention, shape, device, Direction::backward);
  CHECK(half.bytes_read == 2 * (of_q + of_k + of_v + of_y) + 4 * of_mix);

  // A causal block of 6 of which 4 tokens are left: scores of 6 queries, slab by slab.
  const Shape causal_shape{1, 1, 1, 10, 10, 3, 5, 1, 2, 2};
  const CausalLine causal{.blocks = {.block = 6}};
  const Index tokens = 2 * 12 * 3 * 5, pairs = 2 * 1 * 3 * 5;
  CHECK(mhla::cuda::call_cost<float>(causal, causal_shape, device, Direction::forward).flops ==
        tokens + pairs + tokens + 2 * 12 * 6 * (3 + 5));
  CHECK(mhla::cuda::call_cost<float>(causal, causal_shape, device, Direction::backward).flops ==
        3 * tokens + 3 * pairs + 2 * tokens + 2 * 12 * 6 * (3 * 3 + 2 * 5));
}

TEST_CASE("cuda explain: a packed batch counts its sequences' own pairs of blocks", "[cuda]") {
  const std::int32_t offsets[] = {0, 5, 5, 12, 19};  // 1, 0, 1 and 1 blocks of 7
  const mhla::Packed<OneD, std::int32_t> packed(OneD{.blocks = {.block = 7}}, {offsets, 5});
  const Shape shape{1, 2, 1, 19, 19, 4, 6, 1, 1, 1};
  const Index keys = 2 * (3 * 7) * 4 * 6;
  CHECK(mhla::cuda::call_cost<float>(packed, shape, device, Direction::forward).flops ==
        keys + 2 * 3 * 4 * 6 + 2 * keys);
}

TEST_CASE("cuda explain: workspace and parts of the batch", "[cuda]") {
  const OneD attention{.blocks = {.block = 64}};
  const Shape shape{64, 16, 16, 4096, 4096, 64, 64, 1, 64, 64};
  const auto forward = mhla::cuda::call_cost<float>(attention, shape, device, Direction::forward);
  CHECK(forward.workspace_bytes == mhla::forward_workspace_size<float>(attention, shape, device));
  CHECK(forward.items_at_once > 1);
  CHECK(forward.items_at_once < 64);
  CHECK(forward.parts == (64 + forward.items_at_once - 1) / forward.items_at_once);
  const auto backward = mhla::cuda::call_cost<float>(attention, shape, device, Direction::backward);
  CHECK(backward.workspace_bytes == mhla::backward_workspace_size<float>(attention, shape, device));
  CHECK(backward.items_at_once < forward.items_at_once);

  // Summaries of a forward pass stay in the L2 cache, where those of one item do: in even parts.
  using Plan = mhla::cuda::fused::SummaryPlan<OneD, mhla::BFloat16>;
  const auto at_once = [&](Index batch, Index heads, bool is_backward) {
    const Shape of{batch, heads, heads, 2048, 2048, 128, 128, 1, 32, 32};
    return mhla::cuda::items_at_once<Plan>(attention, checked_problem(attention, of), is_backward);
  };
  CHECK(at_once(8, 8, false) == 4);  // 8.5 MB each
  CHECK(at_once(9, 8, false) == 3);
  CHECK(at_once(8, 64, false) == 8);  // 68 MB
  CHECK(at_once(8, 8, true) == 8);
}

TEST_CASE("cuda explain: the text", "[cuda]") {
  const TwoD attention{.blocks = {.grid = {8, 8}, .block = {4, 4}}};
  const Shape shape{1, 2, 2, 64, 64, 8, 8, 1, 4, 4};
  const auto number = [](Index n) { return std::to_string(n); };
  const std::string text = mhla::explain<float>(attention, shape, device);
  const auto forward = mhla::cuda::call_cost<float>(attention, shape, device, Direction::forward);
  CHECK(says(
      text,
      "forward: path cublas, the one that can run it; products in float, never TF32\n"
      "  not summaries, not quadratic, not resident: float tensors\n"
      "  by a model of an H200, which measurements are to replace, in us:\n    cublas ",
      ", bound by launches: bytes 0, products 0, instructions 0, launches ",
      "\nbackward: path cublas", "\n  batch in 1 part of 1\n",
      "workspace " + number(mhla::forward_workspace_size<float>(attention, shape, device)) +
          " bytes, of which " + number(mhla::cuda::cublas_workspace_bytes) + " are for cuBLAS",
      "products " + number(mhla::diagnostics::forward_cost(attention, shape).flops()) + " FLOP\n",
      "tensors " + number(4 * (3 * 2 * 64 * 8 + 16)) + " bytes read, " + number(4 * 2 * 64 * 8) +
          " bytes written; kernels move about " + number(forward.bytes_moved) + " bytes\n"));
  CHECK(!says(text, ", summaries "));
  CHECK(forward.bytes_moved > forward.bytes_read + forward.bytes_written);
  const CudaDevice fast(nullptr, nullptr, {}, mhla::FloatProducts::tf32);
  CHECK(says(mhla::explain<mhla::BFloat16>(attention, shape, fast), "products in TF32",
             "not summaries, not quadratic, not resident: no kernels for head dimensions 8/8: they "
             "exist for "));
  CHECK(says(mhla::explain<double>(attention, shape, fast), "products in double",
             "not resident: double tensors\n"));
  Shape wider = shape;
  wider.key_dim = 128;
  wider.value_dim = 256;
  CHECK(says(mhla::explain<mhla::Half>(attention, wider, device),
             "no kernels for head dimensions 128/256: add mhla::HeadDims<128, 256> to "
             "MHLA_INSTANTIATE_CUDA\n"));
  CHECK(says(mhla::explain<mhla::Half>(Expanding{.blocks = {.block = 16}},
                                       Shape{1, 2, 2, 64, 64, 8, 8, 1, 4, 4}, device),
             "the feature map sees whole rows\n"));
  const CudaDevice asked(nullptr, nullptr, {}, mhla::FloatProducts::exact, mhla::CudaPath::cublas);
  CHECK(says(mhla::explain<float>(attention, shape, asked),
             "path cublas, as the CudaDevice asks for; products in float"));

  Shape wrong = shape;
  wrong.key_tokens = 63;
  CHECK(says(error_message<mhla::ShapeError>(
                 [&] { static_cast<void>(mhla::explain<float>(attention, wrong, device)); }),
             "63"));
}
