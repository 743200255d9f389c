// SPDX-License-Identifier: MIT
// Reads and writes arrays of NumPy's .npy format, versions 1.0 and 2.0: magic, version, header
// length, a Python dictionary of descr, fortran_order and shape, then the elements. Everything a
// file says is checked before memory is taken for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "file_errors.hpp"

namespace checkpoints {

using mhla::Index;

/// An array in row-major order.
struct Array {
  std::vector<Index> shape;
  std::vector<double> values;
};

/// "(1, 2, 64)", "(9,)", "()": as Python writes a tuple.
inline std::string shape_text(const std::vector<Index>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

static_assert(std::endian::native == std::endian::little,
              "elements are read as they lie in memory");

namespace npy {

inline constexpr std::string_view magic = "\x93NUMPY";

/// What the dictionary in front of the elements says.
struct Header {
  std::string element;  // descr
  bool fortran_order = false;
  std::vector<Index> shape;
};

/// Reads the dictionary literal; keys in any order, each exactly once, and no other.
class HeaderReader {
 public:
  HeaderReader(const std::filesystem::path& file, std::string_view text)
      : file_(file), text_(text) {}

  Header read() {
    Header header;
    bool has_element = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      bool* seen = key == "descr"           ? &has_element
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (seen == nullptr) fail("has an unknown key '" + key + "'");
      if (*seen) fail("has the key '" + key + "' twice");
      *seen = true;
      if (key == "descr") header.element = quoted();
      if (key == "fortran_order") header.fortran_order = boolean();
      if (key == "shape") header.shape = shape();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("goes on after its dictionary");
    if (!has_element || !has_order || !has_shape) fail("lacks descr, fortran_order or shape");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw UnreadableFile(file_, "the .npy header " + problem);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (take(c)) return;
    std::string problem = "has no '";
    problem += c;
    problem += "' where one is due";
    fail(problem);
  }

  std::string quoted() {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
      fail("has no string where one is due");
    const char quote = text_[at_++];
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("has a string without an end");
    const std::string result(text_.substr(at_, end - at_));
    at_ = end + 1;
    return result;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    fail("has no True or False for fortran_order");
  }

  std::vector<Index> shape() {
    std::vector<Index> extents;
    expect('(');
    while (!take(')')) {
      extents.push_back(extent());
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return extents;
  }

  Index extent() {
    skip_space();
    const std::size_t begin = at_;
    Index value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const Index digit = text_[at_] - '0';
      if (value > (std::numeric_limits<Index>::max() - digit) / 10)
        fail("has an extent beyond 64 bits");
      value = 10 * value + digit;
    }
    if (at_ == begin) fail("has no number where an extent is due");
    return value;
  }

  const std::filesystem::path& file_;
  std::string_view text_;
  std::size_t at_ = 0;
};

/// Reads `count` elements of type T, `size` bytes being all that is left of the file.
template <class T>
std::vector<double> read_elements(const std::filesystem::path& file, std::ifstream& stream,
                                  Index count, std::uintmax_t size) {
  const auto per_element = static_cast<std::uintmax_t>(sizeof(T));
  // Divided, not multiplied: the product may not fit.
  if (size % per_element != 0 || size / per_element != static_cast<std::uintmax_t>(count))
    throw UnreadableFile(
        file, "holds " + std::to_string(size) + " bytes of elements, but its shape needs " +
                  std::to_string(count) + " elements of " + std::to_string(per_element) + " bytes");
  std::vector<T> elements(static_cast<std::size_t>(count));
  stream.read(reinterpret_cast<char*>(elements.data()), static_cast<std::streamsize>(size));
  if (!stream) throw UnreadableFile(file, "cannot be read to its end");
  std::vector<double> values(elements.size());
  std::transform(elements.begin(), elements.end(), values.begin(), [](T element) {
    if constexpr (std::is_arithmetic_v<T>)
      return static_cast<double>(element);
    else
      return static_cast<double>(mhla::load(element));
  });
  return values;
}

struct ElementKind {
  std::string_view descr;
  std::vector<double> (*read)(const std::filesystem::path&, std::ifstream&, Index, std::uintmax_t);
};
/// The types that can be read. One-byte types have no byte order; bool is 0 or 1.
inline constexpr ElementKind element_kinds[] = {
    {"<f8", &read_elements<double>},        {"<f4", &read_elements<float>},
    {"<f2", &read_elements<mhla::Half>},    {"<i8", &read_elements<std::int64_t>},
    {"<i4", &read_elements<std::int32_t>},  {"<i2", &read_elements<std::int16_t>},
    {"|i1", &read_elements<std::int8_t>},   {"<u8", &read_elements<std::uint64_t>},
    {"<u4", &read_elements<std::uint32_t>}, {"<u2", &read_elements<std::uint16_t>},
    {"|u1", &read_elements<std::uint8_t>},  {"|b1", &read_elements<std::uint8_t>}};

}  // namespace npy

/// Reads bool, integer, float16, float32 or float64 elements, little-endian and in C order,
/// integers beyond 2^53 rounded; throws UnreadableFile for anything else.
inline Array read_npy(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t file_size = std::filesystem::file_size(file, error);
  if (error) throw UnreadableFile(file, "cannot be read: " + error.message());
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UnreadableFile(file, "cannot be opened");

  unsigned char start[12] = {};  // magic, version, and a header length of 2 or of 4 bytes
  stream.read(reinterpret_cast<char*>(start), 10);
  if (!stream || std::string_view(reinterpret_cast<char*>(start), 6) != npy::magic)
    throw UnreadableFile(file, "is not a .npy file");
  const int major = start[6];
  const int minor = start[7];
  if ((major != 1 && major != 2) || minor != 0)
    throw UnreadableFile(file, "has .npy format " + std::to_string(major) + "." +
                                   std::to_string(minor) + "; formats 1.0 and 2.0 are read");
  std::uintmax_t header_size = start[8] | static_cast<std::uintmax_t>(start[9]) << 8;
  std::uintmax_t header_begin = 10;
  if (major == 2) {
    stream.read(reinterpret_cast<char*>(start + 10), 2);
    header_size |=
        static_cast<std::uintmax_t>(start[10]) << 16 | static_cast<std::uintmax_t>(start[11]) << 24;
    header_begin = 12;
  }
  if (!stream || header_size > file_size - header_begin)
    throw UnreadableFile(file, "ends inside its .npy header");
  std::string text(static_cast<std::size_t>(header_size), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(header_size));
  if (!stream) throw UnreadableFile(file, "ends inside its .npy header");

  const npy::Header header = npy::HeaderReader(file, text).read();
  if (header.fortran_order)
    throw UnreadableFile(file, "is in Fortran order; save numpy.ascontiguousarray(x)");
  Index cells = 1;  // with an axis of none counted as one: an empty array can be beyond reason, too
  Index count = 1;
  for (const Index extent : header.shape) {
    constexpr Index most = 1'000'000'000'000;
    if (extent > most / cells)
      throw UnreadableFile(file, "has a shape beyond reason: " + shape_text(header.shape));
    if (extent > 0) cells *= extent;
    count *= extent;
  }
  const std::uintmax_t left = file_size - header_begin - header_size;
  for (const npy::ElementKind& kind : npy::element_kinds)
    if (header.element == kind.descr) return {header.shape, kind.read(file, stream, count, left)};
  throw UnreadableFile(file, "has elements of type '" + header.element +
                                 "', which are not read: save x.astype(\"float64\")");
}

/// Writes format 1.0, '<f8', C order.
inline void write_npy(const std::filesystem::path& file, const Array& array) {
  std::string header =
      "{'descr': '<f8', 'fortran_order': False, 'shape': " + shape_text(array.shape) + ", }";
  // The elements begin at a multiple of 64 bytes, and the header ends with a new line.
  constexpr std::size_t before_header = 10;
  header.append(63 - (before_header + header.size()) % 64, ' ');
  header += '\n';

  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << npy::magic << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
  stream.write(reinterpret_cast<const char*>(array.values.data()),
               static_cast<std::streamsize>(array.values.size() * sizeof(double)));
  stream.close();
  if (!stream) throw UnwritableFile(file, "cannot be written");
}

}  // namespace checkpoints
