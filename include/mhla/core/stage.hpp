// SPDX-License-Identifier: MIT
// Names of the stages that a whole pass consists of.
#pragma once

#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// A stage of a pass, each a member of Stages.
/// \ingroup stages
enum class Stage {
  summarize,           ///< S and z of key blocks
  read_out,            ///< y of query blocks
  read_out_gradient,   ///< dq, rows of dmix, dS~ and dz~ of query blocks
  mix_gradient,        ///< dS and dz of key blocks
  advance,             ///< a recurrence's states after blocks
  advance_gradient,    ///< its dS and dz, rows of dmix, and gradients of the states before blocks
  summarize_gradient,  ///< dk and dv of key blocks
};

MHLA_NAMESPACE_END
