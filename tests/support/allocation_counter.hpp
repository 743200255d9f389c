// SPDX-License-Identifier: MIT
// Counts the allocations of a program: malloc, calloc, realloc, aligned_alloc, posix_memalign,
// memalign and, because it calls them, operator new. For one source file of a test program. Under a
// sanitizer, which has a malloc of its own, it counts through the sanitizer's hooks; with another C
// library than glibc it counts operator new alone. Lets operator new fail on request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

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
inline std::atomic<long> until_failure{-1};  // calls of operator new; negative: none fails
inline constexpr bool counts_new_alone =
#if defined(MHLA_TEST_SANITIZER_MALLOC) || defined(__GLIBC__)
    false;
#else
    true;
#endif
}  // namespace allocation_counter

/// After `successes` calls of operator new, until the end of the scope, none succeeds.
class FailingAllocation {
 public:
  explicit FailingAllocation(long successes) { allocation_counter::until_failure = successes; }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  ~FailingAllocation() { allocation_counter::until_failure = -1; }
};

// Not inlined: g++ 12 warns of free() on what it has seen operator new return.
__attribute__((noinline)) void* operator new(std::size_t size) {
  using namespace allocation_counter;
  if (until_failure >= 0 && until_failure.fetch_sub(1) <= 0) {
    until_failure = 0;
    throw std::bad_alloc();
  }
  if (counts_new_alone) ++allocations;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  if (allocation_counter::counts_new_alone && memory != nullptr) ++allocation_counter::releases;
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

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

#elif defined(__GLIBC__)

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
