// SPDX-License-Identifier: MIT
// mhla_replay: do we agree with the tensors that another framework has dumped?
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "command_line.hpp"
#include "executor.hpp"
#include "judge.hpp"

namespace {

using namespace replay;

constexpr int usage_status = 64;

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::fails:
      return "FAILS";
    case Verdict::unsupported:
      return "unsupported";
    case Verdict::unreadable:
      return "unreadable";
  }
  return "";
}

/// The highest claim: a case that cannot be read, one that fails, one that is not supported.
int exit_status(const std::vector<Verdict>& verdicts) {
  const auto any = [&](Verdict verdict) {
    return std::find(verdicts.begin(), verdicts.end(), verdict) != verdicts.end();
  };
  return any(Verdict::unreadable) ? 3 : any(Verdict::fails) ? 1 : any(Verdict::unsupported) ? 2 : 0;
}

int run(const CommandLine& line) {
  const int machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const ChosenExecutor executor =
      line.pool ? ChosenExecutor(line.threads == 0 ? machine : line.threads) : ChosenExecutor();
  const Judge judge(line, executor);

  std::size_t width = 0;
  for (const CaseFolder& folder : line.cases) width = std::max(width, folder.name.size());
  std::vector<Verdict> verdicts;
  for (const CaseFolder& folder : line.cases) {
    const Judgement judgement = judge.judge(folder);
    std::printf("%-11s  %-*s  %s\n", word_of(judgement.verdict), static_cast<int>(width),
                folder.name.c_str(), judgement.text.c_str());
    std::fflush(stdout);
    verdicts.push_back(judgement.verdict);
  }
  return exit_status(verdicts);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const CommandLine line = parse_command_line({argv + 1, argv + argc});
    if (!line.help) return run(line);
    std::fputs(help().c_str(), stdout);
    return 0;
  } catch (const UsageError& problem) {
    std::fprintf(stderr, "mhla_replay: %s\n\n%s", problem.what(), usage.data());
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mhla_replay: %s\n", problem.what());
  }
  return usage_status;
}
