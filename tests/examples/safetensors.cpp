// SPDX-License-Identifier: MIT
// Files of checkpoints: what is written is read again, and damaged or hostile ones are refused with
// a sentence before an element is touched.
#include "examples/checkpoints/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using checkpoints::Index;
using checkpoints::Safetensors;

/// A file of the test's own, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes = "")
      : path_(std::filesystem::temp_directory_path() /
              ("mhla_safetensors_" + std::to_string(reinterpret_cast<std::uintptr_t>(this)) + "_" +
               std::to_string(count_++))) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data_bytes, '\1');
}
/// The sentence that a file is refused with; empty if it is read.
std::string refusal(const std::string& bytes) {
  const TemporaryFile file(bytes);
  try {
    const Safetensors tensors(file.path());
    for (const auto& [name, tensor] : tensors.tensors()) tensor.elements<double>();
    return "";
  } catch (const checkpoints::UnreadableFile& problem) {
    const std::string what = problem.what();
    const std::string name = file.path().string() + ": ";
    REQUIRE(what.rfind(name, 0) == 0);
    return what.substr(name.size());
  }
}
std::string refusal_of_header(const std::string& header, std::size_t data_bytes = 16) {
  return refusal(file_of(header, data_bytes));
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what is written is read again") {
  const TemporaryFile file;
  const std::vector<float> a = {1.5f, -2, 3e-30f, 4, 5, 6}, b = {7}, none = {};
  checkpoints::write_safetensors<float>(
      file.path(),
      {{"b", {}, b.data()}, {"layer.a", {2, 3}, a.data()}, {"none", {0, 4}, none.data()}},
      {{"config", "{\"x\": 1}"}});
  const Safetensors read(file.path());
  REQUIRE(read.tensors().size() == 3);
  REQUIRE(read.metadata().at("config") == "{\"x\": 1}");
  REQUIRE(read.tensor("layer.a", {2, 3}).elements<float>() == a);
  REQUIRE(read.tensor("b").shape.empty());
  REQUIRE(read.tensor("b").elements<double>() == std::vector<double>{7});
  REQUIRE(read.tensor("none").elements<float>().empty());
  REQUIRE_FALSE(read.has("a"));
  REQUIRE_THROWS_AS(read.tensor("a"), checkpoints::UnreadableFile);
  REQUIRE_THROWS_AS(read.tensor("layer.a", {3, 2}), checkpoints::UnreadableFile);
  // Elements begin at a multiple of eight bytes.
  std::uint64_t length = 0;
  std::ifstream(file.path(), std::ios::binary).read(reinterpret_cast<char*>(&length), 8);
  REQUIRE(length % 8 == 0);
}

TEST_CASE("elements of every type") {
  const auto read = [](const std::string& dtype, const std::string& elements) {
    const std::uint64_t size = elements.size();
    const std::string header = R"({"x":{"dtype":")" + dtype +
                               R"(","shape":[2],"data_offsets":[0,)" + std::to_string(size) + "]}}";
    const TemporaryFile file(file_of(header, 0) + elements);
    return Safetensors(file.path()).tensor("x").elements<double>();
  };
  const auto bytes = [](auto first, auto second) {
    std::string text(2 * sizeof(first), '\0');
    std::memcpy(text.data(), &first, sizeof(first));
    std::memcpy(text.data() + sizeof(first), &second, sizeof(second));
    return text;
  };
  const std::vector<double> expected = {1.5, -2};
  REQUIRE(read("F64", bytes(1.5, -2.0)) == expected);
  REQUIRE(read("F32", bytes(1.5f, -2.0f)) == expected);
  REQUIRE(read("F16", bytes(std::uint16_t{0x3e00}, std::uint16_t{0xc000})) == expected);
  REQUIRE(read("BF16", bytes(std::uint16_t{0x3fc0}, std::uint16_t{0xc000})) == expected);
  REQUIRE(read("I64", bytes(std::int64_t{3}, std::int64_t{-2})) == std::vector<double>{3, -2});
  REQUIRE(read("I32", bytes(std::int32_t{3}, std::int32_t{-2})) == std::vector<double>{3, -2});
  REQUIRE(read("U8", bytes(std::uint8_t{3}, std::uint8_t{254})) == std::vector<double>{3, 254});
}

TEST_CASE("files that do not follow the format are refused in words") {
  REQUIRE(contains(refusal("1234567"), "shorter than the length of a header"));
  REQUIRE(contains(refusal(std::string(8, '\xff')), "its header has"));
  REQUIRE(contains(refusal(file_of("{}", 0).substr(0, 9)), "its header has 2 bytes"));
  REQUIRE(contains(refusal_of_header("", 0), "does not begin with {"));
  REQUIRE(contains(refusal_of_header(" {}", 0), "does not begin with {"));
  REQUIRE(contains(refusal_of_header("{", 0), "not a JSON object"));
  REQUIRE(contains(refusal_of_header(std::string(100'000, '{'), 0), "not a JSON object"));
  REQUIRE(contains(refusal_of_header(R"({"a":)" + std::string(100'000, '['), 0), "not a JSON"));
  REQUIRE(contains(refusal_of_header(R"({"a":1})"), "a does not have dtype"));
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  REQUIRE(refusal_of_header(entry("\"F32\"", "[4]", "[0,16]")).empty());
  REQUIRE(
      contains(refusal_of_header(entry("\"F31\"", "[4]", "[0,16]")), "a has the dtype \"F31\""));
  REQUIRE(contains(refusal_of_header(entry("1", "[4]", "[0,16]")), "a has the dtype 1"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "4", "[0,16]")), "a.shape is not a list"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[-4]", "[0,16]")), "no natural number"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[4.5]", "[0,16]")), "no natural number"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[3]", "[0,16]")), "does not have 16 bytes"));
  REQUIRE(
      contains(refusal_of_header(entry("\"F32\"", "[4]", "[0,17]")), "not within the 16 bytes"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[4]", "[8,4]")), "not within the 16 bytes"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[4]", "[0]")), "not within the 16 bytes"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[2]", "[0,8]")), "bytes after its last"));
  REQUIRE(
      contains(refusal_of_header(entry("\"F32\"", "[2]", "[8,16]")), "bytes that belong to none"));
  // Products beyond 64 bits.
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[4294967296,4294967296]", "[0,16]")),
                   "too many elements"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[0,18446744073709551615]", "[0,0]"), 0),
                   "too many elements"));
  REQUIRE(contains(refusal_of_header(entry("\"F32\"", "[4611686018427387905]", "[0,4]")),
                   "too many elements"));
  REQUIRE(contains(refusal_of_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                     R"("b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})"),
                   "overlap"));
  REQUIRE(contains(refusal_of_header(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                                     R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
                   "names a twice"));
  REQUIRE(contains(refusal_of_header(R"({"__metadata__":1})", 0), "__metadata__"));
  REQUIRE(contains(refusal_of_header(R"({"__metadata__":{"a":1}})", 0), "__metadata__ a"));
}

TEST_CASE("files that are none") {
  REQUIRE_THROWS_AS(Safetensors("/no/such/file"), checkpoints::UnreadableFile);
  REQUIRE_THROWS_AS(Safetensors(std::filesystem::temp_directory_path()),
                    checkpoints::UnreadableFile);
  REQUIRE(contains(refusal(""), "shorter"));
}

TEST_CASE("no damage makes a reader read out of bounds") {
  const TemporaryFile whole;
  const std::vector<float> a(12, 1.0f), b(5, 2.0f);
  checkpoints::write_safetensors<float>(
      whole.path(), {{"a", {3, 4}, a.data()}, {"b", {5}, b.data()}}, {{"config", "{}"}});
  std::ifstream stream(whole.path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  // MHLA_DAMAGED_FILES in the environment: how many; the sanitizers see what is read.
  const char* const asked = std::getenv("MHLA_DAMAGED_FILES");
  const int count = asked == nullptr ? 20'000 : std::atoi(asked);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) {
      return mhla::testing::random_bits(static_cast<std::uint64_t>(i), drawn++) % below;
    };
    std::string damaged = bytes;
    for (std::uint64_t n = 1 + draw(4); n > 0 && !damaged.empty(); --n) {
      const std::size_t at = draw(damaged.size());
      switch (draw(5)) {
        case 0:
          damaged[at] = static_cast<char>(draw(256));
          break;
        case 1:
          damaged[at] = "0123456789[]{},:\"-eE"[draw(20)];
          break;
        case 2:
          damaged.resize(at);
          break;
        case 3:
          damaged.insert(at, std::string(1 + draw(9), static_cast<char>('0' + draw(10))));
          break;
        case 4:
          damaged.erase(at, 1 + draw(6));
          break;
      }
    }
    if (!refusal(damaged).empty()) ++refused;
  }
  REQUIRE(refused > count / 2);  // what hits elements alone is read
  REQUIRE(refused < count);
}
