// SPDX-License-Identifier: MIT
// Where in the source a function of the machine is called: the last, defaulted argument of each.
#pragma once

#include <cstring>
#include <source_location>
#include <string>

namespace stand_in {

#if defined(__cpp_lib_source_location)
using Site = std::source_location;
#else
// clang 14 has the built-in functions, but not the one that <source_location> is made of.
class Site {
 public:
  static constexpr Site current(const char* file = __builtin_FILE(),
                                const char* function = __builtin_FUNCTION(),
                                unsigned line = __builtin_LINE(),
                                unsigned column = __builtin_COLUMN()) {
    Site site;
    site.file_ = file;
    site.function_ = function;
    site.line_ = line;
    site.column_ = column;
    return site;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr const char* function_name() const { return function_; }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  unsigned line_ = 0;
  unsigned column_ = 0;
};
#endif

inline bool is_same(const Site& a, const Site& b) {
  const auto same = [](const char* x, const char* y) { return x == y || std::strcmp(x, y) == 0; };
  return a.line() == b.line() && a.column() == b.column() && same(a.file_name(), b.file_name()) &&
         same(a.function_name(), b.function_name());
}

inline std::string name_of(const Site& site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

}  // namespace stand_in
