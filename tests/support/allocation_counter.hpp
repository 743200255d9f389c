// SPDX-License-Identifier: MIT
// Counts the allocations of a program: malloc, calloc, realloc, aligned_alloc, posix_memalign,
// memalign and, because it calls them, operator new. For one source file of a test program, and for
// glibc; under a sanitizer, which has a malloc of its own, through the sanitizer's hooks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MHLA_TEST_SANITIZER_MALLOC
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MHLA_TEST_SANITIZER_MALLOC
#endif
#endif

namespace allocation_counter {
inline std::atomic<long> allocations{0};
inline std::atomic<long> releases{0};
}  // namespace allocation_counter

/// What has been allocated since the object was made, by any thread.
class AllocationCounter {
 public:
  /// Blocks of memory allocated.
  long allocations() const { return allocation_counter::allocations - allocations_; }
  /// Blocks allocated and not released.
  long live() const { return allocations() - (allocation_counter::releases - releases_); }

 private:
  long allocations_ = allocation_counter::allocations;
  long releases_ = allocation_counter::releases;
};

#ifdef MHLA_TEST_SANITIZER_MALLOC

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace allocation_counter {
inline const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { ++allocations; },
    [](const volatile void* memory) {
      if (memory != nullptr) ++releases;
    });
}  // namespace allocation_counter

#else

#include <cerrno>

// glibc's own functions under the names by which a replacement reaches them.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);

void* malloc(std::size_t size) {
  ++allocation_counter::allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  ++allocation_counter::allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  ++allocation_counter::allocations;
  if (memory != nullptr) ++allocation_counter::releases;
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  ++allocation_counter::allocations;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocation_counter::allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  ++allocation_counter::allocations;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  if (memory != nullptr) ++allocation_counter::releases;
  __libc_free(memory);
}
}

#endif
