// SPDX-License-Identifier: MIT
// Runs a law over the product of policies, several random cases each. The environment chooses:
//
//   MHLA_LAWS_SHAPES=1    cases per variant; each test multiplies it by a weight of its own
//   MHLA_LAWS_SEED=1      another seed, other cases
//   MHLA_LAWS_FIRST=0     number of the first case
//   MHLA_LAWS_VARIANT=    only variants whose name contains this
//
// A failure prints the line that runs its case alone.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/laws/harness/random_case.hpp"
#include "tests/support/catch.hpp"

namespace laws {

struct Options {
  Index shapes;
  std::uint64_t seed;
  Index first;
  std::string variant;
  bool alone;  ///< first is given: no weights

  static const Options& get() {
    static const Options options = [] {
      const auto text = [](const char* name, const char* otherwise) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? otherwise : value);
      };
      Options o{static_cast<Index>(std::stoll(text("MHLA_LAWS_SHAPES", "1"))),
                std::stoull(text("MHLA_LAWS_SEED", "1")),
                static_cast<Index>(std::stoll(text("MHLA_LAWS_FIRST", "0"))),
                text("MHLA_LAWS_VARIANT", ""), std::getenv("MHLA_LAWS_FIRST") != nullptr};
      std::cout << "random cases: MHLA_LAWS_SEED=" << o.seed << " MHLA_LAWS_SHAPES=" << o.shapes
                << " MHLA_LAWS_FIRST=" << o.first << " MHLA_LAWS_VARIANT=\"" << o.variant << "\""
                << std::endl;
      return o;
    }();
    return options;
  }
};

/// The seed of case `number` of a variant: the same in every build and for every choice of
/// variants.
inline std::uint64_t seed_of_case(const Policies& policies, Index number) {
  std::uint64_t seed = Options::get().seed;
  for (const int part : {static_cast<int>(policies.map), policies.rank,
                         static_cast<int>(policies.rotation), static_cast<int>(policies.normalizer),
                         static_cast<int>(policies.causality), static_cast<int>(number)})
    seed = mhla::testing::random_bits(seed, static_cast<std::uint64_t>(part));
  return seed;
}

/// For laws that every variant obeys.
inline bool anything(const Policies&) { return true; }

/// Calls law(variant, case) for every variant that `applies`, each case by one of its paths.
/// `weight` is how many times the number of shapes a cheap law can afford. Fails where it never
/// came to call the law.
template <class Applies, class Law>
void for_each_case(const Wishes& wishes, Index weight, Applies&& applies, Law&& law) {
  const Options& options = Options::get();
  const Index count = options.alone ? options.shapes : weight * options.shapes;
  Index cases = 0;
  for (const Variant& variant : product()) {
    const Policies& policies = variant.policies();
    if (!applies(policies) || name_of(policies).find(options.variant) == std::string::npos)
      continue;
    for (Index number = options.first; number < options.first + count; ++number) {
      Case random = random_case(policies, wishes, seed_of_case(policies, number));
      const std::vector<Path> paths = variant.paths();
      random.setting.path = paths[random.seed / 8 % paths.size()];
      INFO(policies << ": " << description_of(random));
      INFO("replay: MHLA_LAWS_SEED=" << options.seed << " MHLA_LAWS_SHAPES=1 MHLA_LAWS_FIRST="
                                     << number << " MHLA_LAWS_VARIANT=\"" << policies
                                     << "\" <this program> \""
                                     << Catch::getResultCapture().getCurrentTestName() << "\"");
      law(variant, random);
      ++cases;
    }
  }
  CHECK((cases > 0 || !options.variant.empty()));
}

}  // namespace laws
