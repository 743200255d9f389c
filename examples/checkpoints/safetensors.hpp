// SPDX-License-Identifier: MIT
// Reads and writes safetensors (huggingface.co/docs/safetensors): 8 bytes header length n, n bytes
// of JSON {name: {dtype, shape, data_offsets}}, then the elements, little-endian and row-major. A
// file is mapped, not read; its header is checked before any element is read. A tensor of a type
// that cannot be read is an error only when its elements are requested.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "json.hpp"
#include "mapped_file.hpp"

namespace checkpoints {

static_assert(std::endian::native == std::endian::little,
              "elements are read as they lie in memory");

using mhla::Index;

/// An 8-bit float of `exponent_bits` bits of exponent, as PyTorch's float8_e4m3fn and float8_e5m2.
template <int exponent_bits>
struct Float8 {
  std::uint8_t bits;

  float value() const {
    constexpr int mantissa_bits = 7 - exponent_bits;
    constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const bool is_largest = exponent == (1 << exponent_bits) - 1;
    float size = 0;
    if (is_largest && (exponent_bits == 5 || mantissa == 7)) {  // E4M3 has one NaN and no infinity
      size = exponent_bits == 5 && mantissa == 0 ? INFINITY : NAN;
    } else {
      const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
      size =
          std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - bias - mantissa_bits);
    }
    return (bits & 0x80) != 0 ? -size : size;
  }
};

enum class ElementType {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8
};

struct ElementKind {
  const char* name;
  ElementType type;
  std::size_t size;  // bytes
};
/// The types that can be read; a file may hold others. A BOOL is a byte, 0 or 1.
inline constexpr ElementKind element_kinds[] = {
    {"F64", ElementType::f64, 8},         {"F32", ElementType::f32, 4},
    {"F16", ElementType::f16, 2},         {"BF16", ElementType::bf16, 2},
    {"F8_E4M3", ElementType::f8_e4m3, 1}, {"F8_E5M2", ElementType::f8_e5m2, 1},
    {"I64", ElementType::i64, 8},         {"I32", ElementType::i32, 4},
    {"I16", ElementType::i16, 2},         {"I8", ElementType::i8, 1},
    {"U64", ElementType::u64, 8},         {"U32", ElementType::u32, 4},
    {"U16", ElementType::u16, 2},         {"U8", ElementType::u8, 1},
    {"BOOL", ElementType::u8, 1}};

/// "[2, 64, 32]"
inline std::string text_of(const std::vector<Index>& shape) {
  std::string text;
  for (const Index extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

/// A tensor of a file.
struct StoredTensor {
  std::filesystem::path file;  ///< the tensor's file; with `name`, for messages
  std::string name;
  std::string dtype;
  const ElementKind* kind;  ///< or null, if its elements cannot be read
  std::vector<Index> shape;
  Index count;                       ///< of its elements
  std::span<const std::byte> bytes;  ///< at any alignment

  Index size() const { return count; }

  /// Its elements as To, rounded where To is a narrower float.
  /// \throws UnreadableFile if its dtype cannot be read, or To cannot hold an element.
  template <class To>
  void copy_to(To* to) const {
    if (kind == nullptr)
      throw UnreadableFile(
          file, name + " has the dtype " + dtype + ", which cannot be read; save it as F32");
    switch (kind->type) {
      case ElementType::f64:
        return convert<double>(to);
      case ElementType::f32:
        return convert<float>(to);
      case ElementType::f16:
        return convert<mhla::Half>(to);
      case ElementType::bf16:
        return convert<mhla::BFloat16>(to);
      case ElementType::f8_e4m3:
        return convert<Float8<4>>(to);
      case ElementType::f8_e5m2:
        return convert<Float8<5>>(to);
      case ElementType::i64:
        return convert<std::int64_t>(to);
      case ElementType::i32:
        return convert<std::int32_t>(to);
      case ElementType::i16:
        return convert<std::int16_t>(to);
      case ElementType::i8:
        return convert<std::int8_t>(to);
      case ElementType::u64:
        return convert<std::uint64_t>(to);
      case ElementType::u32:
        return convert<std::uint32_t>(to);
      case ElementType::u16:
        return convert<std::uint16_t>(to);
      case ElementType::u8:
        return convert<std::uint8_t>(to);
    }
  }
  template <class To>
  std::vector<To> elements() const {
    std::vector<To> all(static_cast<std::size_t>(size()));
    copy_to(all.data());
    return all;
  }

 private:
  template <class From, class To>
  void convert(To* to) const {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(From)) {
      From element;
      std::memcpy(&element, bytes.data() + at, sizeof(From));
      if constexpr (std::is_arithmetic_v<From>) {
        *to++ = converted<To>(element);
      } else if constexpr (requires { element.value(); }) {
        *to++ = converted<To>(element.value());
      } else {
        *to++ = converted<To>(mhla::load(element));
      }
    }
  }
  template <class To, class From>
  To converted(From element) const {
    bool fits = true;
    if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
      fits = std::in_range<To>(element);
    } else if constexpr (std::is_integral_v<To>) {
      // The bounds are powers of two, which every float type here represents.
      constexpr From end =
          From(2) * static_cast<From>(To(1) << (std::numeric_limits<To>::digits - 1));
      fits = element >= static_cast<From>(std::numeric_limits<To>::min()) && element < end &&
             element == std::trunc(element);
    } else if constexpr (sizeof(To) < sizeof(From) && !std::is_integral_v<From>) {
      fits = !(std::abs(element) > From(std::numeric_limits<To>::max())) || std::isinf(element);
    }
    if (!fits)
      throw UnreadableFile(file, name + " has the element " + std::to_string(element) +
                                     ", which is not " +
                                     (std::is_integral_v<To> ? "an integer in range" : "a float"));
    return static_cast<To>(element);
  }
};

/// A safetensors file, open as long as the object lives.
class Safetensors {
 public:
  /// \throws UnreadableFile where the file does not follow the format: elements that overlap, leave
  /// holes or lie beyond the end, shapes that do not fit them, names that repeat.
  explicit Safetensors(const std::filesystem::path& path) : path_(path), file_(path) {
    const std::span<const std::byte> all = file_.bytes();
    std::uint64_t header_bytes = 0;
    if (all.size() < sizeof(header_bytes)) fail("is shorter than the length of a header");
    std::memcpy(&header_bytes, all.data(), sizeof(header_bytes));
    if (header_bytes > longest_header || header_bytes > all.size() - sizeof(header_bytes))
      fail("says that its header has " + std::to_string(header_bytes) + " bytes");
    const auto header = all.subspan(sizeof(header_bytes), static_cast<std::size_t>(header_bytes));
    data_ = all.subspan(sizeof(header_bytes) + header.size());
    read_header(header);
    check_layout();
  }

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  /// \throws UnreadableFile if there is none of that name.
  const StoredTensor& tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail("has no tensor " + name);
    return found->second;
  }
  /// The same, of that shape.
  const StoredTensor& tensor(const std::string& name, const std::vector<Index>& shape) const {
    const StoredTensor& found = tensor(name);
    if (found.shape != shape)
      fail(name + " has the shape " + text_of(found.shape) + ", not " + text_of(shape));
    return found;
  }

 private:
  using Json = nlohmann::json;
  static constexpr std::uint64_t longest_header = 100'000'000;  // as the format's own reader

  [[noreturn]] void fail(const std::string& problem) const { throw UnreadableFile(path_, problem); }

  void read_header(std::span<const std::byte> header) {
    const auto* const text = reinterpret_cast<const char*>(header.data());
    if (header.empty() || text[0] != '{') fail("has a header that does not begin with {");
    const Json root = parse_json(path_, "the header", {text, header.size()}, deepest);
    for (const auto& [name, entry] : root.items()) {
      if (name == "__metadata__") {
        read_metadata(entry);
      } else {
        tensors_.emplace(name, tensor_of(name, entry));
      }
    }
  }
  static constexpr int deepest = 4;  // {name: {data_offsets: [...]}}

  void read_metadata(const Json& entry) {
    if (!entry.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("__metadata__ " + key + " is not a string");
      metadata_.emplace(key, value.get<std::string>());
    }
  }

  StoredTensor tensor_of(const std::string& name, const Json& entry) const {
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
        !entry.contains("shape") || !entry.contains("data_offsets"))
      fail(name + " does not have dtype, shape and data_offsets");
    if (!entry["dtype"].is_string()) fail(name + " has the dtype " + entry["dtype"].dump());
    const auto dtype = entry["dtype"].get<std::string>();
    const auto* const kind =
        std::find_if(std::begin(element_kinds), std::end(element_kinds),
                     [&](const ElementKind& known) { return dtype == known.name; });
    const bool is_known = kind != std::end(element_kinds);
    const std::vector<std::uint64_t> shape = numbers(name + ".shape", entry["shape"]);
    const std::vector<std::uint64_t> offsets =
        numbers(name + ".data_offsets", entry["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size())
      fail(name + ".data_offsets are not within the " + std::to_string(data_.size()) +
           " bytes of data");
    const std::uint64_t bytes = offsets[1] - offsets[0];
    StoredTensor tensor{
        path_, name, dtype, is_known ? kind : nullptr, {}, 0, data_.subspan(offsets[0], bytes)};
    bool is_empty = false;
    for (const std::uint64_t extent : shape) is_empty = is_empty || extent == 0;
    std::uint64_t elements = is_empty ? 0 : 1;
    for (const std::uint64_t extent : shape) {
      if (extent > most_elements || (!is_empty && extent > most_elements / elements))
        fail(name + ".shape has too many elements");
      if (!is_empty) elements *= extent;
      tensor.shape.push_back(static_cast<Index>(extent));
    }
    tensor.count = static_cast<Index>(elements);
    if (is_known && elements * kind->size != bytes)
      fail(name + " of shape " + text_of(tensor.shape) + " does not have " + std::to_string(bytes) +
           " bytes");
    return tensor;
  }
  static constexpr std::uint64_t most_elements = std::uint64_t{1} << 48;

  std::vector<std::uint64_t> numbers(const std::string& what, const Json& list) const {
    if (!list.is_array()) fail(what + " is not a list");
    std::vector<std::uint64_t> all;
    for (const Json& number : list) {
      if (!number.is_number_unsigned()) fail(what + " has an element that is no natural number");
      all.push_back(number.get<std::uint64_t>());
    }
    return all;
  }

  /// The format has neither overlaps nor holes.
  void check_layout() const {
    std::vector<std::pair<const std::byte*, const std::byte*>> spans;
    for (const auto& [name, tensor] : tensors_)
      spans.emplace_back(tensor.bytes.data(), tensor.bytes.data() + tensor.bytes.size());
    std::sort(spans.begin(), spans.end());
    const std::byte* end = data_.data();
    for (const auto& [begin, after] : spans) {
      if (begin != end) fail("has tensors that overlap, or bytes that belong to none");
      end = after;
    }
    if (end != data_.data() + data_.size()) fail("has bytes after its last tensor");
  }

  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::byte> data_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
template <class T>
struct NamedTensor {
  std::string name;
  std::vector<Index> shape;
  const T* data;
};

/// Writes F32 or F64 tensors, in the order given.
/// \throws UnwritableFile if the file cannot be written.
template <class T>
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<NamedTensor<T>>& tensors,
                       const std::map<std::string, std::string>& metadata = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t end = 0;
  std::vector<std::uint64_t> sizes;
  for (const NamedTensor<T>& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const Index extent : tensor.shape) elements *= static_cast<std::uint64_t>(extent);
    sizes.push_back(elements * sizeof(T));
    header[tensor.name] = {{"dtype", sizeof(T) == 4 ? "F32" : "F64"},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + sizes.back()}}};
    end += sizes.back();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    out.write(reinterpret_cast<const char*>(tensors[i].data),
              static_cast<std::streamsize>(sizes[i]));
  out.close();
  if (!out) throw UnwritableFile(path, "cannot be written");
}

}  // namespace checkpoints
