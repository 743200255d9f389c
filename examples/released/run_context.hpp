// SPDX-License-Identifier: MIT
// How a model is run, whatever it is.
#pragma once

#include <mhla/fork_join.hpp>

#include "../layers/mhla_attention.hpp"

namespace released {

struct RunContext {
  const mhla::ForkJoin& team;
  layers::Storage storage = layers::Storage::as_computed;
};

}  // namespace released
