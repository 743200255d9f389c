// SPDX-License-Identifier: MIT
// Attacks the library with random cases, judged by an oracle that shares no code with it.
//
//   mhla_fuzz [--seeds N | --seconds S] [--first SEED] [--limit N] [--only KIND]
//
// Every seed is one case of each kind (forward, backward, decoder, files), the same one in
// all builds with the same variants (MHLA_FUZZ_FULL_PRODUCT or not). A failing case is tried again
// with smaller extents (--limit: no count and no extent is larger), and the line that repeats it is
// printed. The exit status is 1 if any failed.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tests/fuzz/attack.hpp"

// Of the sanitizers' run-time library, where the program has one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace {

using namespace fuzz;

struct Kind {
  const char* name;
  void (*attack)(Draw&, Tally&);
  Tally tally = {};
  long cases = 0;
  long failures = 0;
};
Kind kinds[] = {{"forward", fuzz::attack_forward},
                {"backward", fuzz::attack_backward},
                {"decoder", fuzz::attack_decoder},
#if defined(MHLA_FUZZ_FILES)
                {"files", fuzz::attack_files}
#endif
};

constexpr Size no_limit = 1000;
constexpr unsigned patience = 120;  // seconds for one case

std::string repetition;  // the line that repeats the case at work

void say_what_died() {
  std::fprintf(stderr, "%s\n  repeat: %s\n", fuzz::situation.c_str(), repetition.c_str());
}
void die(int signal) {
  std::fprintf(stderr, "%s\n", signal == SIGALRM ? "a case does not come to its end" : "a crash");
  say_what_died();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Nothing, or what went wrong.
std::string attempt(const Kind& kind, std::uint64_t seed, Size limit, Tally& tally) {
  const auto own = static_cast<std::uint64_t>(&kind - kinds);
  Draw draw(Draw(8 * seed + own).bits(), limit);
  repetition = "mhla_fuzz --only " + std::string(kind.name) + " --seeds 1 --first " +
               std::to_string(seed) +
               (limit == no_limit ? "" : " --limit " + std::to_string(limit));
  alarm(patience);
  try {
    kind.attack(draw, tally);
    return "";
  } catch (const fuzz::Failure& failure) {
    return failure.what;
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

void run(Kind& kind, std::uint64_t seed, Size limit) {
  ++kind.cases;
  std::string what = attempt(kind, seed, limit, kind.tally);
  if (what.empty()) return;
  ++kind.failures;
  for (const Size smaller : {1, 2, 3, 4, 6, 8, 12, 20, 40}) {
    if (smaller >= limit) break;
    Tally unused;
    const std::string again = attempt(kind, seed, smaller, unused);
    if (again.empty()) continue;
    what = again;
    limit = smaller;
  }
  if (kind.failures > 20) return;
  attempt(kind, seed, limit, *std::make_unique<Tally>());
  std::printf("FAILED %s\n  %s\n  repeat: %s\n", what.c_str(), fuzz::situation.c_str(),
              repetition.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t first = 1;
  std::uint64_t seeds = 100;
  std::uint64_t seconds = 0;
  std::uint64_t limit = no_limit;
  std::string only;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    const std::string text = i + 1 < argc ? argv[i + 1] : "";
    std::uint64_t* const number = option == "--first"     ? &first
                                  : option == "--seeds"   ? &seeds
                                  : option == "--seconds" ? &seconds
                                  : option == "--limit"   ? &limit
                                                          : nullptr;
    const char* const end = text.data() + text.size();
    const bool known =
        number != nullptr
            ? !text.empty() && std::from_chars(text.data(), end, *number).ptr == end
            : option == "--only" && std::any_of(std::begin(kinds), std::end(kinds),
                                                [&](auto& k) { return (only = text) == k.name; });
    if (known) continue;
    std::fprintf(stderr, "mhla_fuzz [--seeds N | --seconds S] [--first SEED] [--limit N] [--only ");
    for (const Kind& kind : kinds)
      std::fprintf(stderr, "%s%s", &kind == kinds ? "" : "|", kind.name);
    std::fprintf(stderr, "]\n");
    return 2;
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(say_what_died);
    std::signal(SIGALRM, die);
  } else {
    for (const int signal : {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGALRM}) std::signal(signal, die);
  }

  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  for (std::uint64_t seed = first; seconds > 0 ? Clock::now() < end : seed < first + seeds; ++seed)
    for (Kind& kind : kinds)
      if (only.empty() || only == kind.name) run(kind, seed, static_cast<Size>(limit));

  Tally all;
  long failures = 0;
  std::printf("%zu variants\n", fuzz::library().size());
  for (const Kind& kind : kinds) {
    if (kind.cases == 0) continue;
    const Tally& tally = kind.tally;
    all.calls += tally.calls;
    failures += kind.failures;
    std::printf(
        "%-8s  %7ld cases  %8ld calls  %10ld elements  %8ld not judged  worst %.2f of its bound  "
        "%ld failures\n",
        kind.name, kind.cases, tally.calls, tally.elements, tally.unjudged, tally.worst,
        kind.failures);
  }
  std::printf("%ld calls, %ld failures\n", all.calls, failures);
  return failures == 0 ? 0 : 1;
}
