// SPDX-License-Identifier: MIT
// The .npy files that mhla_replay takes, and those it refuses by name.
#include "examples/checkpoints/npy.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

namespace fs = std::filesystem;
using checkpoints::Array;
using checkpoints::Index;

class File {
 public:
  File() : path(fs::temp_directory_path() / ("mhla-npy-test-" + std::to_string(::getpid()))) {}
  ~File() { fs::remove(path); }

  void write(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string bytes() const {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path path;
};

template <class T>
std::string memory_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A file of version `major` with this dictionary and these elements.
std::string npy(int major, const std::string& dictionary, const std::string& elements) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int byte = 0; byte < (major == 1 ? 2 : 4); ++byte)
    bytes += static_cast<char>(dictionary.size() >> (8 * byte) & 0xff);
  return bytes + dictionary + elements;
}

std::string refusal(const File& file, const std::string& bytes) {
  file.write(bytes);
  try {
    checkpoints::read_npy(file.path);
  } catch (const checkpoints::UnreadableFile& problem) {
    return problem.what();
  }
  return "";
}

const std::vector<double> six{1.5, -2, 3e300, 0, 5, -6e-300};
const std::string six_bytes = memory_of(six);

}  // namespace

TEST_CASE("npy: what is written is read back, in the format that NumPy writes", "[npy]") {
  const File file;
  for (const Array& array : {Array{{2, 3}, six}, Array{{6}, six}, Array{{}, {7}},
                             Array{{1, 0, 4}, {}}, Array{{1, 2, 3, 1, 1, 1}, six}}) {
    checkpoints::write_npy(file.path, array);
    const Array read = checkpoints::read_npy(file.path);
    CHECK(read.shape == array.shape);
    CHECK(read.values == array.values);
  }
  checkpoints::write_npy(file.path, {{2, 3}, six});
  const std::string head = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }";
  CHECK(file.bytes() == npy(1, head + std::string(117 - head.size(), ' ') + '\n', six_bytes));
}

TEST_CASE("npy: float32, format 2.0, and any spelling of the dictionary", "[npy]") {
  const File file;
  file.write(npy(2, "{\"shape\":(3,),'fortran_order':False,'descr':'<f4'}",
                 memory_of(std::vector<float>{1.5f, -0.0f, 3e38f})));
  const Array array = checkpoints::read_npy(file.path);
  CHECK(array.shape == std::vector<Index>{3});
  CHECK(array.values == std::vector<double>{1.5, -0.0, 3e38f});
}

TEST_CASE("npy: integers, bool and float16", "[npy]") {
  const File file;
  const auto read = [&](const std::string& descr, auto first, auto second) {
    file.write(npy(1, "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2,)}",
                   memory_of(std::vector{first, second})));
    return checkpoints::read_npy(file.path).values;
  };
  using Two = std::vector<double>;
  CHECK(read("<f2", std::uint16_t{0x3e00}, std::uint16_t{0xc000}) == Two{1.5, -2});
  CHECK(read("<i8", std::int64_t{3}, std::int64_t{-2}) == Two{3, -2});
  CHECK(read("<i4", std::int32_t{3}, std::int32_t{-2}) == Two{3, -2});
  CHECK(read("<i2", std::int16_t{3}, std::int16_t{-2}) == Two{3, -2});
  CHECK(read("|i1", std::int8_t{3}, std::int8_t{-2}) == Two{3, -2});
  CHECK(read("<u8", std::uint64_t{1} << 63, std::uint64_t{4}) == Two{0x1p63, 4});
  CHECK(read("<u4", std::uint32_t{3}, ~std::uint32_t{0}) == Two{3, 4294967295});
  CHECK(read("<u2", std::uint16_t{3}, std::uint16_t{65535}) == Two{3, 65535});
  CHECK(read("|u1", std::uint8_t{3}, std::uint8_t{255}) == Two{3, 255});
  CHECK(read("|b1", std::uint8_t{1}, std::uint8_t{0}) == Two{1, 0});
}

TEST_CASE("npy: what cannot be read is refused, and the message names the file", "[npy]") {
  const File file;
  const std::string good = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
  REQUIRE(refusal(file, npy(1, good, six_bytes)).empty());

  const auto dictionary = [](const std::string& element, const std::string& order,
                             const std::string& shape) {
    return "{'descr': " + element + ", 'fortran_order': " + order + ", 'shape': " + shape + "}";
  };
  const struct {
    std::string bytes;
    const char* reason;
  } refused[] = {
      {"", "is not a .npy file"},
      {"\x93NUMPX" + npy(1, good, six_bytes).substr(6), "is not a .npy file"},
      {npy(3, good, six_bytes), "has .npy format 3.0"},
      {npy(1, good, six_bytes).substr(0, 40), "ends inside its .npy header"},
      {npy(1, good, six_bytes.substr(1)), "holds 47 bytes"},
      {npy(1, good, six_bytes + " "), "holds 49 bytes"},
      {npy(1, dictionary("'>f8'", "False", "(6,)"), six_bytes), "elements of type '>f8'"},
      {npy(1, dictionary("'<c8'", "False", "(6,)"), six_bytes), "elements of type '<c8'"},
      {npy(1, dictionary("'|O'", "False", "(6,)"), six_bytes), "elements of type '|O'"},
      {npy(1, dictionary("[('x', '<f8')]", "False", "(6,)"), six_bytes), "has no string"},
      {npy(1, dictionary("'<f8'", "True", "(2, 3)"), six_bytes), "is in Fortran order"},
      {npy(1, dictionary("'<f8'", "0", "(6,)"), six_bytes), "has no True or False"},
      {npy(1, dictionary("'<f8'", "False", "(-6,)"), six_bytes), "has no number"},
      {npy(1, dictionary("'<f8'", "False", "(2 3)"), six_bytes), "has no ')'"},
      {npy(1, dictionary("'<f8'", "False", "6"), six_bytes), "has no '('"},
      {npy(1, dictionary("'<f8'", "False", "(9223372036854775808,)"), six_bytes), "beyond 64 bits"},
      {npy(1, dictionary("'<f8'", "False", "(4294967296, 4294967296)"), six_bytes),
       "has a shape beyond reason"},
      {npy(1, dictionary("'<f8'", "False", "(0, 2305843009213693952)"), ""),
       "has a shape beyond reason"},
      {npy(1, dictionary("'<f8'", "False", "(1000000000000,)"), ""), "holds 0 bytes"},
      {npy(1, "{'descr': '<f8', 'fortran_order': False}", six_bytes), "lacks"},
      {npy(1, "{'descr': '<f8', 'descr': '<f8'}", six_bytes), "twice"},
      {npy(1, "{'descr': '<f8', 'order': 'C'}", six_bytes), "unknown key 'order'"},
      {npy(1, good + good, six_bytes), "goes on after its dictionary"},
      {npy(1, "{'descr': '<f8", six_bytes), "string without an end"},
      {npy(1, "", six_bytes), "has no '{'"},
  };
  for (const auto& [bytes, reason] : refused) {
    const std::string message = refusal(file, bytes);
    INFO(reason << " in: " << message);
    CHECK(message.rfind(file.path.string() + ": ", 0) == 0);
    CHECK(message.find(reason) != std::string::npos);
  }
  fs::remove(file.path);
  CHECK_THROWS_AS(checkpoints::read_npy(file.path), checkpoints::UnreadableFile);
  CHECK_THROWS_AS(checkpoints::read_npy(fs::temp_directory_path()), checkpoints::UnreadableFile);
}

TEST_CASE("npy: no damaged byte does worse than a refusal or other numbers", "[npy]") {
  const File file;
  const std::string good =
      npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", six_bytes);
  for (std::size_t length = 0; length < good.size(); ++length)
    CHECK_FALSE(refusal(file, good.substr(0, length)).empty());
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int flip : {0x01, 0x02, 0x10, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      if (!refusal(file, bad).empty()) {
        ++refused;
      } else {
        CHECK(checkpoints::read_npy(file.path).values.size() == 6);
      }
    }
  CHECK(refused > 250);  // most of the header
}

TEST_CASE("npy: a file that cannot be written is named", "[npy]") {
  const fs::path nowhere = fs::temp_directory_path() / "no such folder" / "x.npy";
  CHECK_THROWS_AS(checkpoints::write_npy(nowhere, {{6}, six}), checkpoints::UnwritableFile);
}
