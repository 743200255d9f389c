// SPDX-License-Identifier: MIT
// What the killers share. A killer is a small test program that compiles in seconds, because it is
// compiled again for every planted fault. It ends with 0 where everything holds.
#pragma once

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace killer {

/// Ends the program, with status 1, where something does not hold.
inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cout << "does not hold: " << what << std::endl;
  std::_Exit(1);
}

/// Expects that `f()` throws an E.
template <class E, class F>
void expect_throw(F&& f, const std::string& what) {
  try {
    f();
  } catch (const E&) {
    return;
  }
  expect(false, what + " throws");
}

/// Runs the checks of a killer.
template <class F>
void run(F&& checks) {
  try {
    checks();
  } catch (const std::exception& error) {
    expect(false, std::string("nothing is thrown: ") + error.what());
  }
}

}  // namespace killer
