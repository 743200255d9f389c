// SPDX-License-Identifier: MIT
// Above the planted cycle, but no part of it.
#pragma once

#include <mhla/core/a.hpp>
