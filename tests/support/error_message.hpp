// SPDX-License-Identifier: MIT
// The message of the error a call throws, so that tests can demand what it says.
#pragma once

#include <mhla/core/error.hpp>
#include <string>

/// The message of the `E` that `call` throws; says so where it throws nothing. Errors of other
/// types pass through and fail the test.
template <class E, class Call>
std::string error_message(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Whether `message` contains every one of `parts`.
template <class... Parts>
bool says(const std::string& message, const Parts&... parts) {
  return ((message.find(parts) != std::string::npos) && ...);
}
