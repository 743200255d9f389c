// SPDX-License-Identifier: MIT
// What results on a GPU are compared with: one head on the CPU, in double.
#include <algorithm>
#include <mhla/cpu/pipeline.hpp>

#include "gpu_passes.hpp"

namespace bench {

void compute_reference(const GpuShape& shape, HeadTensors& head, bool backward) {
  with_gpu_variant(shape, [&](const auto& attention) {
    const mhla::SerialExecutor serial;
    const mhla::Shape call = shape.call(1, 1);
    const mhla::Workspace workspace(
        std::max(mhla::forward_workspace_size<double>(attention, call, serial),
                 mhla::backward_workspace_size<double>(attention, call, serial)));
    mhla::forward_into(attention, serial, head.q, head.k, head.v, head.mix, head.y.view(),
                       workspace);
    if (backward)
      mhla::backward_into(attention, serial, head.q.view(), head.k, head.v, head.mix, head.dy,
                          {head.dq.view(), head.dk.view(), head.dv.view(), mhla::skip},
                          mhla::Update::overwrite, workspace);
  });
}

}  // namespace bench
