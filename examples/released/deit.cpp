// SPDX-License-Identifier: MIT
#include "deit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "models.hpp"
#include "run.hpp"

namespace released {

namespace {

void check_deit(const std::filesystem::path& folder, const RunContext& run, Comparison& in_float,
                Comparison& in_double) {
  check<Deit>(folder, {"image"}, run, in_float, in_double);
}

/// The five likeliest classes of every image.
void run_deit(const Arguments& arguments, const RunContext& run) {
  LoadedModel<Deit> loaded(arguments, run);
  const auto image = input(arguments, 0, "an image [batch, channels, height, width]");
  const layers::ImageShape& shape = loaded.model.image();
  require_shape(image, {-1, shape.channels, shape.height, shape.width});
  const Matrix<float> logits =
      loaded.model.forward(loaded.values, matrix_of<float>(image, image.shape[0]), Record());
  for (Index b = 0; b < logits.rows(); ++b) {
    const Eigen::ArrayXf exponentials = (logits.row(b).array() - logits.row(b).maxCoeff()).exp();
    const Eigen::ArrayXf p = exponentials / exponentials.sum();
    std::vector<Index> order(static_cast<std::size_t>(p.size()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Index x, Index y) { return p(x) > p(y); });
    std::printf("image %td:", b);
    for (std::size_t i = 0; i < std::min<std::size_t>(5, order.size()); ++i)
      std::printf("  class %td %.4f", order[i], static_cast<double>(p(order[i])));
    std::printf("\n");
  }
  write(arguments, {logits.rows(), logits.cols()}, logits);
}

}  // namespace

const ReleasedModel deit = {"deit", Deit<float>::classes, &check_deit, &run_deit};

}  // namespace released
