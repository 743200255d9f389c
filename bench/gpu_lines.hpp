// SPDX-License-Identifier: MIT
// Results, a line of JSON each, that are on disk as soon as they are there.
#pragma once

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

class JsonLine {
 public:
  JsonLine& add(const char* key, const std::string& value) {
    std::string quoted = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return raw(key, quoted + '"');
  }
  JsonLine& add(const char* key, const char* value) { return add(key, std::string(value)); }
  JsonLine& add(const char* key, double value) {
    if (!(value - value == 0)) return raw(key, "null");  // JSON knows no infinity and no NaN
    std::ostringstream out;
    out.precision(9);
    out << value;
    return raw(key, out.str());
  }
  JsonLine& add(const char* key, const std::vector<double>& values) {
    std::ostringstream out;
    out.precision(9);
    const char* separator = "[";
    for (const double value : values) {
      out << separator << value;
      separator = ", ";
    }
    out << (values.empty() ? "[]" : "]");
    return raw(key, out.str());
  }
  JsonLine& append(const JsonLine& other) {
    if (!other.fields_.empty()) fields_ += (fields_.empty() ? "" : ", ") + other.fields_;
    return *this;
  }
  std::string str() const { return "{" + fields_ + "}"; }

 private:
  JsonLine& raw(const char* key, const std::string& value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }

  std::string fields_;
};

/// Where the lines go: to the terminal, and after what a file holds.
class Lines {
 public:
  Lines(const std::string& path, const JsonLine& machine) : machine_(machine) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "a");
    if (file_ == nullptr) throw std::runtime_error("cannot write to " + path);
  }
  ~Lines() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  void write(const JsonLine& line) {
    std::printf("%s\n", line.str().c_str());
    std::fflush(stdout);
    if (file_ == nullptr) return;
    std::fprintf(file_, "%s\n", JsonLine(line).append(machine_).str().c_str());
    std::fflush(file_);
  }

 private:
  JsonLine machine_;
  std::FILE* file_ = nullptr;
};

}  // namespace bench
