// SPDX-License-Identifier: MIT
// Of another version than the packages.
#pragma once

#define MHLA_VERSION_MAJOR 0
#define MHLA_VERSION_MINOR 2
#define MHLA_VERSION_PATCH 0
