// SPDX-License-Identifier: MIT
// What this process has in memory, by Linux's count.
#pragma once

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <mhla/core/index.hpp>
#include <string>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace distributed_video {

/// Bytes of a line of /proc/self/status, VmRSS or VmHWM; 0 where there is none.
inline mhla::Index status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(name + ":", 0) == 0) return 1024 * std::atoll(line.c_str() + name.size() + 1);
  return 0;
}

/// The most bytes in memory since this was made, beyond those then.
class MemoryPeak {
 public:
  MemoryPeak() {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // of what is freed nothing is kept
#endif
    restart();
    before_ = status_bytes("VmRSS");
  }
  /// Forgets the peak, not what was there at first.
  void restart() { std::ofstream("/proc/self/clear_refs") << 5 << std::flush; }
  mhla::Index bytes() const { return most() - before_; }

 private:
  // Without /proc/self/clear_refs that of the process's whole life.
  static mhla::Index most() {
    if (const mhla::Index peak = status_bytes("VmHWM"); peak > 0) return peak;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return 1024 * usage.ru_maxrss;
  }

  mhla::Index before_ = 0;
};

}  // namespace distributed_video
