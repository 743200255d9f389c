// SPDX-License-Identifier: MIT
// measure SECONDS MEGABYTES COMMAND...: runs the command, prints how long it took, its processor
// time and the most memory that one of its processes held, and fails if it failed or if processor
// time or memory is above the limit. (A machine with nothing but a compiler has no other way to
// tell.)
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "measure SECONDS MEGABYTES COMMAND...\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    execvp(argv[3], argv + 3);
    std::perror(argv[3]);
    _exit(127);
  }
  int status = 1;
  rusage usage{};
  if (child < 0 || waitpid(child, &status, 0) != child || getrusage(RUSAGE_CHILDREN, &usage) != 0) {
    std::perror("measure");
    return 2;
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  const double processor = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  const double megabytes = static_cast<double>(usage.ru_maxrss) / 1024;  // Linux counts in KB
  std::printf("%.2f s   %.2f s of processor time   %.0f MB\n", wall.count(), processor, megabytes);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
  if (processor <= std::atof(argv[1]) && megabytes <= std::atof(argv[2])) return 0;
  std::printf("above the limit of %s s or of %s MB\n", argv[1], argv[2]);
  return 1;
}
