// SPDX-License-Identifier: MIT
// The .npy files that mhla_replay takes, and those it refuses by name.
#include "examples/checkpoints/npy.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using checkpoints::Array;
using checkpoints::Index;

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

const TemporaryFolder temporary;
const fs::path file = temporary / "array.npy";

Array read(const std::string& bytes) {
  write_text(file, bytes);
  return checkpoints::read_npy(file);
}
std::string refusal(const std::string& bytes) {
  return error_message<checkpoints::UnreadableFile>([&] { read(bytes); });
}

const std::vector<double> six{1.5, -2, 3e300, 0, 5, -6e-300};
const std::string six_bytes = memory_of(six);
const std::string good = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }";

}  // namespace

TEST_CASE("npy: what is written is read back, in the format that NumPy writes", "[npy]") {
  for (const Array& array : {Array{{2, 3}, six}, Array{{6}, six}, Array{{}, {7}},
                             Array{{1, 0, 4}, {}}, Array{{1, 2, 3, 1, 1, 1}, six}}) {
    checkpoints::write_npy(file, array);
    const Array again = checkpoints::read_npy(file);
    CHECK(again.shape == array.shape);
    CHECK(again.values == array.values);
  }
  checkpoints::write_npy(file, {{2, 3}, six});
  CHECK(text_of(file) == npy(1, good + std::string(117 - good.size(), ' ') + '\n', six_bytes));
  const fs::path nowhere = temporary / "no such folder/x.npy";
  CHECK_THROWS_AS(checkpoints::write_npy(nowhere, {{6}, six}), checkpoints::UnwritableFile);
}

TEST_CASE("npy: float32, format 2.0, and any spelling of the dictionary", "[npy]") {
  const Array array = read(npy(2, "{\"shape\":(3,),'fortran_order':False,'descr':'<f4'}",
                               memory_of(std::vector<float>{1.5f, -0.0f, 3e38f})));
  CHECK(array.shape == std::vector<Index>{3});
  CHECK(array.values == std::vector<double>{1.5, -0.0, 3e38f});
}

TEST_CASE("npy: what cannot be read is refused, and the message names the file", "[npy]") {
  // Of six elements of eight bytes, where nothing else is said.
  const auto with = [](const std::string& element, const std::string& order,
                       const std::string& shape, const std::string& elements = six_bytes) {
    return npy(1,
               "{'descr': " + element + ", 'fortran_order': " + order + ", 'shape': " + shape + "}",
               elements);
  };
  const auto of_shape = [&](const std::string& shape, const std::string& elements = six_bytes) {
    return with("'<f8'", "False", shape, elements);
  };
  const auto of_type = [&](const std::string& type) { return with(type, "False", "(6,)"); };
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
      {of_type("'>f8'"), "elements of type '>f8'"},
      {of_type("'<c8'"), "elements of type '<c8'"},
      {of_type("'|O'"), "elements of type '|O'"},
      {of_type("[('x', '<f8')]"), "has no string"},
      {with("'<f8'", "True", "(2, 3)"), "is in Fortran order"},
      {with("'<f8'", "0", "(6,)"), "has no True or False"},
      {of_shape("(-6,)"), "has no number"},
      {of_shape("(2 3)"), "has no ')'"},
      {of_shape("6"), "has no '('"},
      {of_shape("(9223372036854775808,)"), "beyond 64 bits"},
      {of_shape("(4294967296, 4294967296)"), "has a shape beyond reason"},
      {of_shape("(0, 2305843009213693952)", ""), "has a shape beyond reason"},
      {of_shape("(1000000000000,)", ""), "holds 0 bytes"},
      {npy(1, "{'descr': '<f8', 'fortran_order': False}", six_bytes), "lacks"},
      {npy(1, "{'descr': '<f8', 'descr': '<f8'}", six_bytes), "twice"},
      {npy(1, "{'descr': '<f8', 'order': 'C'}", six_bytes), "unknown key 'order'"},
      {npy(1, good + good, six_bytes), "goes on after its dictionary"},
      {npy(1, "{'descr': '<f8", six_bytes), "string without an end"},
      {npy(1, "", six_bytes), "has no '{'"},
  };
  for (const auto& [bytes, reason] : refused) {
    const std::string message = refusal(bytes);
    INFO(reason << " in: " << message);
    CHECK(message.rfind(file.string() + ": ", 0) == 0);
    CHECK(says(message, reason));
  }
  for (const fs::path& none : {temporary / "none", temporary / ""})
    CHECK_THROWS_AS(checkpoints::read_npy(none), checkpoints::UnreadableFile);
}

TEST_CASE("npy: no damaged byte does worse than a refusal or other numbers", "[npy]") {
  const std::string whole = npy(1, good, six_bytes);
  CHECK(read(whole).values == six);
  for (std::size_t length = 0; length < whole.size(); ++length)
    CHECK_THROWS_AS(read(whole.substr(0, length)), checkpoints::UnreadableFile);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int flip : {0x01, 0x02, 0x10, 0x80, 0xff}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      try {
        const std::size_t size = read(bad).values.size();
        CHECK(size == 6);
      } catch (const checkpoints::UnreadableFile&) {
        ++refused;
      }
    }
  CHECK(refused > 250);  // most of the header
}
