// SPDX-License-Identifier: MIT
// A file's bytes, mapped into memory where the system can do that, otherwise read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#if __has_include(<sys/mman.h>)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define MHLA_EXAMPLES_MAP_FILES
#endif

#include "file_errors.hpp"

namespace checkpoints {

/// Read-only, and as long as the object lives. The file must not shrink meanwhile.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& file) {
#ifdef MHLA_EXAMPLES_MAP_FILES
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    struct ::stat status = {};
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
      if (descriptor >= 0) ::close(descriptor);
      throw UnreadableFile(file, "cannot be read");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    void* const begin =
        size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    ::close(descriptor);
    if (begin == MAP_FAILED) throw UnreadableFile(file, "cannot be mapped into memory");
    begin_ = static_cast<const std::byte*>(begin);
#else
    std::ifstream stream(file, std::ios::binary | std::ios::ate);
    if (!stream) throw UnreadableFile(file, "cannot be read");
    read_.resize(static_cast<std::size_t>(stream.tellg()));
    stream.seekg(0);
    stream.read(reinterpret_cast<char*>(read_.data()), static_cast<std::streamsize>(read_.size()));
    if (!stream) throw UnreadableFile(file, "cannot be read");
    begin_ = read_.data();
    size_ = read_.size();
#endif
  }
  ~MappedFile() {
#ifdef MHLA_EXAMPLES_MAP_FILES
    if (begin_ != nullptr) ::munmap(const_cast<std::byte*>(begin_), size_);
#endif
  }
  MappedFile(MappedFile&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {
#ifndef MHLA_EXAMPLES_MAP_FILES
    read_ = std::move(other.read_);
#endif
  }
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {begin_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(begin_), size_}; }

 private:
  const std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
#ifndef MHLA_EXAMPLES_MAP_FILES
  std::vector<std::byte> read_;
#endif
};

}  // namespace checkpoints
