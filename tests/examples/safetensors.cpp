// SPDX-License-Identifier: MIT
// Files of checkpoints: what is written is read again, and damaged or hostile ones are refused with
// a sentence before an element is touched; so are checkpoints and configurations of which a
// released model has not everything.
#include "examples/checkpoints/safetensors.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mhla/testing/random_tensor.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/checkpoints/npy.hpp"
#include "examples/released/config.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using checkpoints::Index;
using checkpoints::Safetensors;
using checkpoints::UnreadableFile;
using released::Config;

const TemporaryFolder temporary;
const fs::path file = temporary / "file";

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data_bytes, '\1');
}
/// The sentence that `read` refuses a file of these bytes with; empty if it is read.
template <class Read>
std::string refusal(const std::string& bytes, const Read& read) {
  write_text(file, bytes);
  try {
    read(file);
    return "";
  } catch (const UnreadableFile& problem) {
    const std::string what = problem.what(), name = file.string() + ": ";
    REQUIRE(what.rfind(name, 0) == 0);
    return what.substr(name.size());
  }
}
std::string refusal(const std::string& bytes) {
  return refusal(bytes, [](const fs::path& path) {
    const Safetensors tensors(path);
    for (const auto& [name, tensor] : tensors.tensors()) tensor.elements<double>();
  });
}
/// The same of a configuration.
template <class Ask>
std::string refusal_of(const std::string& json, const Ask& ask) {
  return refusal(json, [&](const fs::path& path) { ask(Config(path)); });
}

}  // namespace

TEST_CASE("what is written is read again") {
  const std::vector<float> a = {1.5f, -2, 3e-30f, 4, 5, 6}, b = {7}, none = {};
  checkpoints::write_safetensors<float>(
      file, {{"b", {}, b.data()}, {"layer.a", {2, 3}, a.data()}, {"none", {0, 4}, none.data()}},
      {{"config", "{\"x\": 1}"}});
  const Safetensors read(file);
  REQUIRE(read.tensors().size() == 3);
  REQUIRE(read.metadata().at("config") == "{\"x\": 1}");
  REQUIRE(read.tensor("layer.a", {2, 3}).elements<float>() == a);
  REQUIRE(read.tensor("b").shape.empty());
  REQUIRE(read.tensor("b").elements<double>() == std::vector<double>{7});
  REQUIRE(read.tensor("none").elements<float>().empty());
  REQUIRE_FALSE(read.has("a"));
  REQUIRE_THROWS_AS(read.tensor("a"), UnreadableFile);
  REQUIRE_THROWS_AS(read.tensor("layer.a", {3, 2}), UnreadableFile);
  // Elements begin at a multiple of eight bytes.
  std::uint64_t length = 0;
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&length), 8);
  REQUIRE(length % 8 == 0);
}

TEST_CASE("elements of every type") {
  const auto write_two = [](const std::string& dtype, std::size_t size, std::uint64_t first,
                            std::uint64_t second) {
    std::string elements(2 * size, '\0');
    std::memcpy(elements.data(), &first, size);
    std::memcpy(elements.data() + size, &second, size);
    const std::string header = R"({"x":{"dtype":")" + dtype + R"(","shape":[2],"data_offsets":[0,)";
    write_text(file, file_of(header + std::to_string(2 * size) + "]}}", 0) + elements);
  };
  const struct {
    const char* dtype;
    std::size_t size;
    std::uint64_t first, second;
    std::vector<double> values;
  } all[] = {{"F64", 8, 0x3ff8'0000'0000'0000, 0xc000'0000'0000'0000, {1.5, -2}},
             {"F32", 4, 0x3fc0'0000, 0xc000'0000, {1.5, -2}},
             {"F16", 2, 0x3e00, 0xc000, {1.5, -2}},
             {"BF16", 2, 0x3fc0, 0xc000, {1.5, -2}},
             {"F8_E4M3", 1, 0x3c, 0xc0, {1.5, -2}},
             {"F8_E4M3", 1, 0x7e, 0x81, {448, -0x1p-9}},
             {"F8_E4M3", 1, 0xff, 0, {NAN, 0}},
             {"F8_E5M2", 1, 0x3e, 0xc0, {1.5, -2}},
             {"F8_E5M2", 1, 0x7b, 0x81, {57344, -0x1p-16}},
             {"F8_E5M2", 1, 0xfc, 0x7e, {-INFINITY, NAN}},
             {"I64", 8, 3, 0xffff'ffff'ffff'fffe, {3, -2}},
             {"I32", 4, 3, 0xffff'fffe, {3, -2}},
             {"I16", 2, 3, 0xfffe, {3, -2}},
             {"I8", 1, 3, 0xfe, {3, -2}},
             {"U64", 8, 0x8000'0000'0000'0000, 4, {0x1p63, 4}},
             {"U32", 4, 3, 0xffff'ffff, {3, 4294967295}},
             {"U16", 2, 3, 0xffff, {3, 65535}},
             {"U8", 1, 3, 0xfe, {3, 254}},
             {"BOOL", 1, 1, 0, {1, 0}},
             {"F64", 8, 0x7e37'e43c'8800'759c, 0x3ff0'0000'0000'0000, {1e300, 1}}};
  for (const auto& [dtype, size, first, second, values] : all) {
    INFO(dtype);
    write_two(dtype, size, first, second);
    const Safetensors read(file);
    const std::vector<double> got = read.tensor("x", {2}).elements<double>();
    bool whole = true;
    for (const std::size_t i : {0u, 1u}) {
      CHECK((got[i] == values[i] || (std::isnan(got[i]) && std::isnan(values[i]))));
      whole = whole && std::trunc(values[i]) == values[i] && std::abs(values[i]) < 0x1p63;
    }
    if (whole) {
      const std::vector<Index> integers = read.tensor("x").elements<Index>();
      CHECK(std::vector<double>(integers.begin(), integers.end()) == values);
    } else {
      CHECK_THROWS_AS(read.tensor("x").elements<Index>(), UnreadableFile);
    }
  }
  CHECK_THROWS_AS(Safetensors(file).tensor("x").elements<float>(), UnreadableFile);
  write_two("C64", 8, 0, 0);
  CHECK_THROWS_AS(Safetensors(file).tensor("x").elements<double>(), UnreadableFile);
}

TEST_CASE("files that do not follow the format are refused in words") {
  const auto header = [](const std::string& text) { return file_of(text, 16); };
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"("a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto file_with = [&](const std::string& shape, const std::string& offsets,
                             const std::string& dtype = R"("F32")") {
    return header("{" + entry(dtype, shape, offsets) + "}");
  };
  CHECK(refusal(file_with("[4]", "[0,16]")).empty());
  const struct {
    std::string bytes;
    const char* words;
  } refused[] = {{"", "shorter"},
                 {"1234567", "shorter than the length of a header"},
                 {std::string(8, '\xff'), "its header has"},
                 {file_of("{}", 0).substr(0, 9), "its header has 2 bytes"},
                 {file_of("", 0), "does not begin with {"},
                 {file_of(" {}", 0), "does not begin with {"},
                 {file_of("{", 0), "the header is not JSON: parse error at line 1"},
                 {file_of(std::string(100'000, '{'), 0), "not JSON"},
                 {file_of(R"({"a":)" + std::string(100'000, '['), 0), "nested more"},
                 {header(R"({"a":1})"), "a does not have dtype"},
                 {file_with("[4]", "[0,16]", R"("F31")"), "a has the dtype F31"},
                 {file_with("[4]", "[0,16]", "1"), "a has the dtype 1"},
                 {file_with("4", "[0,16]"), "a.shape is not a list"},
                 {file_with("[-4]", "[0,16]"), "no natural number"},
                 {file_with("[4.5]", "[0,16]"), "no natural number"},
                 {file_with("[3]", "[0,16]"), "does not have 16 bytes"},
                 {file_with("[4]", "[0,17]"), "not within the 16 bytes"},
                 {file_with("[4]", "[8,4]"), "not within the 16 bytes"},
                 {file_with("[4]", "[0]"), "not within the 16 bytes"},
                 {file_with("[2]", "[0,8]"), "bytes after its last"},
                 {file_with("[2]", "[8,16]"), "bytes that belong to none"},
                 // Products beyond 64 bits.
                 {file_with("[4294967296,4294967296]", "[0,16]"), "too many elements"},
                 {file_with("[0,18446744073709551615]", "[0,0]"), "too many elements"},
                 {file_with("[4611686018427387905]", "[0,4]"), "too many elements"},
                 {header("{" + entry(R"("F32")", "[2]", "[0,8]") +
                         R"(,"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})"),
                  "overlap"},
                 {header("{" + entry(R"("F32")", "[4]", "[0,16]") + "," +
                         entry(R"("F32")", "[4]", "[0,16]") + "}"),
                  "names a twice"},
                 {file_of(R"({"__metadata__":1})", 0), "__metadata__"},
                 {file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__ a"}};
  for (const auto& [bytes, words] : refused) {
    INFO(words);
    CHECK(says(refusal(bytes), words));
  }
  for (const fs::path& none : {temporary / "none", temporary / ""})
    CHECK_THROWS_AS(Safetensors(none), UnreadableFile);
}

TEST_CASE("no damage makes a reader read out of bounds") {
  const std::vector<float> a(12, 1.0f), b(5, 2.0f);
  checkpoints::write_safetensors<float>(file, {{"a", {3, 4}, a.data()}, {"b", {5}, b.data()}},
                                        {{"config", "{}"}});
  const std::string bytes = text_of(file);
  // MHLA_DAMAGED_FILES in the environment: how many; the sanitizers see what is read.
  const char* const asked = std::getenv("MHLA_DAMAGED_FILES");
  const int count = asked == nullptr ? 5'000 : std::atoi(asked);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) {
      return mhla::testing::random_bits(static_cast<std::uint64_t>(i), drawn++) % below;
    };
    std::string damaged = bytes;
    for (std::uint64_t n = 1 + draw(4); n > 0 && !damaged.empty(); --n) {
      const std::size_t at = draw(damaged.size());
      const std::uint64_t damage = draw(5);
      if (damage == 0) damaged[at] = static_cast<char>(draw(256));
      if (damage == 1) damaged[at] = "0123456789[]{},:\"-eE"[draw(20)];
      if (damage == 2) damaged.resize(at);
      if (damage == 3)
        damaged.insert(at, std::string(1 + draw(9), static_cast<char>('0' + draw(10))));
      if (damage == 4) damaged.erase(at, 1 + draw(6));
    }
    if (!refusal(damaged).empty()) ++refused;
  }
  REQUIRE(refused > count / 2);  // what hits elements alone is read
  REQUIRE(refused < count);
}

TEST_CASE("a configuration's numbers are checked, and messages name key and value") {
  const auto size = [](const Config& c) { c.size("a"); };
  const auto sizes = [](const Config& c) { c.sizes("a", 2); };
  const auto number = [](const Config& c) { c.number("a", 1); };
  const auto scaled = [](const Config& c) { c.scaled(48, "a", 4); };
  const std::string deep(100'000, '['), long_text = "\"" + std::string(100'000, 'x') + "\"";
  const struct {
    std::function<void(const Config&)> ask;
    std::vector<const char*> taken, refused;
  } all[] = {{size,
              {"67108864"},
              {"1e300", "4.5", "4.0", "1e3", "0", "-1", "67108865", "true", "\"8\"",
               "9223372036854775808", "18446744073709551617", "[4]", "{\"a\":1}"}},
             {sizes,
              {"[3, 4]"},
              {"[3]", "[3, 4, 5]", "[3, 4.5]", "[3, 1e300]", "[3, true]", "3", "[3, 0]"}},
             {number, {"1e-6", "0"}, {"-1e-6", "true", "\"1e-6\"", "[1]"}},
             {scaled, {"0.5"}, {"1e300", "0.001", "-4", "true"}}};
  const auto of_value = [](const std::string& value, const auto& ask) {
    return refusal_of("{\"a\": " + value + "}", ask);
  };
  for (const auto& [ask, taken, refused] : all) {
    for (const char* value : taken) CHECK(of_value(value, ask).empty());
    for (const char* value : refused) CHECK(says(of_value(value, ask), "a is "));
  }
  CHECK(says(of_value("1e300", size), "it must be an integer from 1 to 67108864"));
  CHECK(says(of_value("null", size), "the configuration has no value for a"));
  for (const char* text : {"NaN", "1e", "", "4}, {", "1, \"a\": 2", "\"\xff\""})
    CHECK(says(of_value(text, size), "the configuration "));
  CHECK(says(of_value(deep, size), "nested more than 16 deep"));
  CHECK(says(of_value(long_text, size), "xxx..."));
  CHECK_FALSE(of_value("1e999", number).empty());
  CHECK(says(refusal_of("", size), "the configuration is not JSON"));
  CHECK(says(refusal_of("[]", size), "not a JSON object"));
  CHECK(says(refusal_of("{\"b\": {\"a\": 1, \"a\": 1}}", size), "names a twice"));
}

#ifdef MHLA_RUN_RELEASED
namespace {

const Program program{MHLA_RUN_RELEASED};

/// A small released model of tests/models, and what is changed in its checkpoint and configuration.
class ReleasedModel {
 public:
  explicit ReleasedModel(const std::string& folder)
      : from_(fs::path(MHLA_SOURCE_DIR "/tests/models") / folder) {
    const Safetensors model(from_ / "model.safetensors");
    for (const auto& [name, tensor] : model.tensors())
      add(name, tensor.shape, tensor.elements<float>());
    std::ifstream(from_ / "config.json") >> config;
  }

  void add(const std::string& name, const std::vector<Index>& shape, std::vector<float> elements) {
    tensors_[name] = {shape, std::move(elements)};
  }
  const std::vector<float>& elements(const std::string& name) const {
    return tensors_.at(name).second;
  }

  void write(const fs::path& folder) const {
    std::vector<checkpoints::NamedTensor<float>> tensors;
    for (const auto& [name, tensor] : tensors_)
      tensors.push_back({name, tensor.first, tensor.second.data()});
    checkpoints::write_safetensors(folder / "model.safetensors", tensors);
    write_text(folder / "config.json", config.dump());
  }
  /// Runs mhla_run_released on it, `input` being a tensor of its folder, or words, and checks its
  /// status and what it says.
  void check(const std::string& input, int status,
             const std::vector<std::string>& parts = {}) const {
    write(folder_ / "");
    std::string words = " " + input;
    const Safetensors forward(from_ / "forward.safetensors");
    if (forward.has(input)) {
      const auto& tensor = forward.tensor(input);
      checkpoints::write_npy(folder_ / "input.npy", {tensor.shape, tensor.elements<double>()});
      words = quoted(folder_ / "input.npy");
    }
    const std::string name = from_.filename().string();
    program.check(name.substr(0, name.find('_')) + quoted(folder_ / "model.safetensors") + words,
                  status, parts);
  }

  nlohmann::json config;

 private:
  fs::path from_;
  std::map<std::string, std::pair<std::vector<Index>, std::vector<float>>> tensors_;
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("mhla_run_released refuses tensors that it does not apply, all at once, by name") {
  ReleasedModel deit("deit"), dit("dit"), wan("wan_gated"), fewer("lm");
  deit.check("image", 0);
  deit.add("blocks.0.ls1.gamma", {48}, std::vector<float>(48, 1e-5f));
  deit.add("blocks.1.ls2.gamma", {48}, std::vector<float>(48, 1e-5f));
  deit.check("image", 2, {"no use for 2 tensors: blocks.0.ls1.gamma, blocks.1.ls2.gamma"});
  dit.add("blocks.0.dw_conv.weight", {32, 1, 3, 3}, std::vector<float>(288, 1));
  dit.check("latent", 2, {"1 tensors: blocks.0.dw_conv.weight"});
  wan.config["is_gated"] = false;
  wan.check("x", 2, {"2 tensors: g.bias, g.weight"});
  fewer.config["num_hidden_layers"] = 1;
  fewer.check("1 2", 2, {"tensors of 2 layers", "num_hidden_layers is 1"});
}

TEST_CASE("mhla_run_released --check notices a wrong epsilon and NaN, in either precision") {
  for (const char* name : {"forward.safetensors", "gradients.safetensors"})
    fs::copy_file(fs::path(MHLA_SOURCE_DIR "/tests/models/wan") / name, temporary / name);
  // The precisions in which it fails.
  const auto failed = [](double epsilon, float factor) {
    ReleasedModel wan("wan");
    wan.config["norm_eps"] = epsilon;
    std::vector<float> weights = wan.elements("q.weight");
    weights[0] *= factor;
    wan.add("q.weight", {32, 32}, weights);
    wan.write(temporary / "");
    const Run run = program("--check" + quoted(temporary / ""));
    std::set<std::string> names;
    std::istringstream lines(run.output);
    for (std::string line; std::getline(lines, line);)
      if (says(line, "FAILED")) names.insert(line.substr(0, line.find(' ')));
    CHECK(run.status == (names.empty() ? 0 : 1));
    return names;
  };
  CHECK(failed(1e-6, 1).empty());
  CHECK(failed(3e-6, 1) == std::set<std::string>{"double", "float"});
  CHECK(failed(1e-6, NAN) == std::set<std::string>{"double", "float"});
}

TEST_CASE("mhla_run_released refuses malformed and out-of-range numbers") {
  const ReleasedModel lm("lm");
  for (const char* words : {"--tokens 4.5", "--tokens 1e9", "--tokens -1", "--tokens abc",
                            "--temperature nan", "--threads 0", "--seed -1", "1x"})
    lm.check(std::string("1 ") + words, 2, {" is not a"});
}
#endif
