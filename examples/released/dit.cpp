// SPDX-License-Identifier: MIT
#include "dit.hpp"

#include "models.hpp"
#include "run.hpp"

namespace released {

namespace {

void check_dit(const std::filesystem::path& folder, const RunContext& run, Comparison& in_float,
               Comparison& in_double) {
  check<Dit>(folder, {"latent", "timestep", "label"}, run, in_float, in_double);
}

/// What is to be taken away from latents at a time step.
void run_dit(const Arguments& arguments, const RunContext& run) {
  LoadedModel<Dit> loaded(arguments, run);
  const auto latent = input(arguments, 0, "a latent image [batch, channels, height, width]");
  const layers::ImageShape& shape = loaded.model.latent();
  require_shape(latent, {-1, shape.channels, shape.height, shape.width});
  const Index batch = latent.shape[0];
  const Matrix<float> result =
      loaded.model.forward(loaded.values, matrix_of<float>(latent, batch),
                           for_each_item(arguments.timesteps, batch, "--timestep"),
                           for_each_item(arguments.labels, batch, "--label"), Record());
  const layers::ImageShape& of = loaded.model.result();
  print_summary(result);
  write(arguments, {batch, of.channels, of.height, of.width}, result);
}

}  // namespace

const ReleasedModel dit = {"dit", Dit<float>::classes, &check_dit, &run_dit};

}  // namespace released
