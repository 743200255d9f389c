// SPDX-License-Identifier: MIT
#include "wan.hpp"

#include "models.hpp"
#include "run.hpp"

namespace released {

namespace {

void check_wan(const std::filesystem::path& folder, const RunContext& run, Comparison& in_float,
               Comparison& in_double) {
  check<Wan>(folder, {"x"}, run, in_float, in_double);
}

/// The layer's result.
void run_wan(const Arguments& arguments, const RunContext& run) {
  LoadedModel<Wan> loaded(arguments, run);
  const auto x = input(arguments, 0, "tokens [batch, tokens, dim]");
  require_shape(x, {-1, loaded.model.tokens(), loaded.model.width()});
  const Matrix<float> y = loaded.model.forward(
      loaded.values, matrix_of<float>(x, x.shape[0] * loaded.model.tokens()), Record());
  print_summary(y);
  write(arguments, x.shape, y);
}

}  // namespace

const ReleasedModel wan = {"wan", Wan<float>::classes, &check_wan, &run_wan};

}  // namespace released
