// SPDX-License-Identifier: MIT
#include <mhla/cpu/pipeline.hpp>
#include <vector>
int main() {
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = {.grid = {32, 32}, .block = {8, 8}}};
  const mhla::SerialExecutor serial;
  std::vector<float> q(4 * 1024 * 64, 1.f), k(q), v(q), y(q), mix(256, 1.f);
  const auto view = [](std::vector<float>& x) { return mhla::make_view(x.data(), 1, 4, 1024, 64); };
  const auto matrix = mhla::make_view(mix.data(), 1, 16, 16);
  const mhla::Shape shape = mhla::shape_of(view(q), view(k), view(v), matrix);
  const mhla::Workspace w(mhla::forward_workspace_size<float>(attention, shape, serial));
  mhla::forward_into(attention, serial, view(q), view(k), view(v), matrix, view(y), w);
  return y[0] > 0;
}
