// SPDX-License-Identifier: MIT
// Files of checkpoints: what is written is read again, and damaged or hostile ones are refused with
// a sentence before an element is touched; so are checkpoints and configurations of which a
// released model has not everything.
#include "examples/checkpoints/safetensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
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
/// The sentence that `read` refuses a file of these bytes with; empty if it is read.
template <class Read>
std::string refusal(const std::string& bytes, const Read& read) {
  const TemporaryFile file(bytes);
  try {
    read(file.path());
    return "";
  } catch (const checkpoints::UnreadableFile& problem) {
    const std::string what = problem.what();
    const std::string name = file.path().string() + ": ";
    REQUIRE(what.rfind(name, 0) == 0);
    return what.substr(name.size());
  }
}
std::string refusal(const std::string& bytes) {
  return refusal(bytes, [](const std::filesystem::path& file) {
    const Safetensors tensors(file);
    for (const auto& [name, tensor] : tensors.tensors()) tensor.elements<double>();
  });
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
  std::string elements_of_two;
  std::string dtype;
  const auto with_file = [&](const auto& f) {
    const std::string header = R"({"x":{"dtype":")" + dtype +
                               R"(","shape":[2],"data_offsets":[0,)" +
                               std::to_string(elements_of_two.size()) + "]}}";
    const TemporaryFile file(file_of(header, 0) + elements_of_two);
    const Safetensors read(file.path());
    return f(read.tensor("x", {2}));
  };
  const auto read = [&](const char* type, auto first, auto second) {
    dtype = type;
    elements_of_two.assign(2 * sizeof(first), '\0');
    std::memcpy(elements_of_two.data(), &first, sizeof(first));
    std::memcpy(elements_of_two.data() + sizeof(first), &second, sizeof(first));
    return with_file([](const auto& x) { return x.template elements<double>(); });
  };
  const auto integers = [&] {
    return with_file([](const auto& x) { return x.template elements<Index>(); });
  };
  using Two = std::vector<double>;
  const Two expected = {1.5, -2};
  CHECK(read("F64", 1.5, -2.0) == expected);
  CHECK(read("F32", 1.5f, -2.0f) == expected);
  CHECK_THROWS_AS(integers(), checkpoints::UnreadableFile);  // of 1.5
  CHECK(read("F16", std::uint16_t{0x3e00}, std::uint16_t{0xc000}) == expected);
  CHECK(read("BF16", std::uint16_t{0x3fc0}, std::uint16_t{0xc000}) == expected);
  CHECK(read("F8_E4M3", std::uint8_t{0x3c}, std::uint8_t{0xc0}) == expected);
  CHECK(read("F8_E4M3", std::uint8_t{0x7e}, std::uint8_t{0x81}) == Two{448, -0x1p-9});
  CHECK(std::isnan(read("F8_E4M3", std::uint8_t{0xff}, std::uint8_t{0})[0]));
  CHECK(read("F8_E5M2", std::uint8_t{0x3e}, std::uint8_t{0xc0}) == expected);
  CHECK(read("F8_E5M2", std::uint8_t{0x7b}, std::uint8_t{0x81}) == Two{57344, -0x1p-16});
  CHECK(read("F8_E5M2", std::uint8_t{0xfc}, std::uint8_t{0})[0] == -INFINITY);
  CHECK(std::isnan(read("F8_E5M2", std::uint8_t{0x7e}, std::uint8_t{0})[0]));
  CHECK(read("I64", std::int64_t{3}, std::int64_t{-2}) == Two{3, -2});
  CHECK(integers() == std::vector<Index>{3, -2});
  CHECK(read("I32", std::int32_t{3}, std::int32_t{-2}) == Two{3, -2});
  CHECK(read("I16", std::int16_t{3}, std::int16_t{-2}) == Two{3, -2});
  CHECK(read("I8", std::int8_t{3}, std::int8_t{-2}) == Two{3, -2});
  CHECK(read("U64", std::uint64_t{1} << 63, std::uint64_t{4}) == Two{0x1p63, 4});
  CHECK_THROWS_AS(integers(), checkpoints::UnreadableFile);
  CHECK(read("U32", std::uint32_t{3}, std::uint32_t{0xffffffff}) == Two{3, 4294967295});
  CHECK(read("U16", std::uint16_t{3}, std::uint16_t{0xffff}) == Two{3, 65535});
  CHECK(read("U8", std::uint8_t{3}, std::uint8_t{254}) == Two{3, 254});
  CHECK(read("BOOL", true, false) == Two{1, 0});
  CHECK(read("F64", 1e300, 1.0)[0] == 1e300);
  CHECK_THROWS_AS(integers(), checkpoints::UnreadableFile);
  CHECK_THROWS_AS(with_file([](const auto& x) { return x.template elements<float>(); }),
                  checkpoints::UnreadableFile);
  CHECK_THROWS_AS(read("C64", std::int64_t{0}, std::int64_t{0}), checkpoints::UnreadableFile);
}

TEST_CASE("a tensor of an unreadable type is an error only when it is read") {
  // F4 has two elements to a byte; of a type of tomorrow not even the size is known.
  const TemporaryFile file(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"F4","shape":[6],"data_offsets":[8,11]},)"
                                   R"("c":{"dtype":"X9","shape":[2,1000],"data_offsets":[11,16]}})",
                                   16));
  const Safetensors read(file.path());
  CHECK(read.tensor("a").elements<float>().size() == 2);
  CHECK(read.tensor("c").size() == 2000);
  try {
    read.tensor("b").elements<float>();
    FAIL("it was read");
  } catch (const checkpoints::UnreadableFile& problem) {
    CHECK(contains(problem.what(), ": b has the dtype F4, which cannot be read; save it as F32"));
  }
}

TEST_CASE("files that do not follow the format are refused in words") {
  REQUIRE(contains(refusal("1234567"), "shorter than the length of a header"));
  REQUIRE(contains(refusal(std::string(8, '\xff')), "its header has"));
  REQUIRE(contains(refusal(file_of("{}", 0).substr(0, 9)), "its header has 2 bytes"));
  REQUIRE(contains(refusal_of_header("", 0), "does not begin with {"));
  REQUIRE(contains(refusal_of_header(" {}", 0), "does not begin with {"));
  REQUIRE(contains(refusal_of_header("{", 0), "the header is not JSON: parse error at line 1"));
  REQUIRE(contains(refusal_of_header(std::string(100'000, '{'), 0), "not JSON"));
  REQUIRE(contains(refusal_of_header(R"({"a":)" + std::string(100'000, '['), 0), "nested more"));
  REQUIRE(contains(refusal_of_header(R"({"a":1})"), "a does not have dtype"));
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  REQUIRE(refusal_of_header(entry("\"F32\"", "[4]", "[0,16]")).empty());
  REQUIRE(contains(refusal_of_header(entry("\"F31\"", "[4]", "[0,16]")), "a has the dtype F31"));
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

namespace {

using released::Config;

/// What `ask` refuses of a configuration, by name; empty if it takes it.
template <class Ask>
std::string refusal_of(const std::string& json, const Ask& ask) {
  return refusal(json, [&](const std::filesystem::path& file) { ask(Config(file)); });
}

}  // namespace

TEST_CASE("a configuration's integers are integers, in range, and messages name key and value") {
  const auto size = [](const std::string& value) {
    return refusal_of("{\"dim\": " + value + "}", [](const Config& c) { c.size("dim"); });
  };
  CHECK(size("67108864").empty());
  for (const char* value : {"1e300", "4.5", "4.0", "1e3", "0", "-1", "67108865", "true", "\"8\"",
                            "9223372036854775808", "18446744073709551617", "[4]", "{\"a\":1}"})
    CHECK(contains(size(value), "dim is "));
  CHECK(contains(size("1e300"), "it must be an integer from 1 to 67108864"));
  CHECK(contains(size("null"), "the configuration has no value for dim"));
  for (const char* text : {"NaN", "1e", "", "4}, {", "1, \"dim\": 2", "\"\xff\""})
    CHECK(contains(size(text), "the configuration "));
  CHECK(contains(size(std::string(100'000, '[')), "nested more than 16 deep"));
  CHECK(contains(size("\"" + std::string(100'000, 'x') + "\""), "xxx..."));
  const auto whole = [](const char* text) { return refusal_of(text, [](const Config&) {}); };
  CHECK(contains(whole(""), "the configuration is not JSON"));
  CHECK(contains(whole("[]"), "not a JSON object"));
  CHECK(contains(whole("{\"a\": {\"b\": 1, \"b\": 1}}"), "names b twice"));

  const auto sizes = [](const std::string& value) {
    return refusal_of("{\"grid\": " + value + "}", [](const Config& c) { c.sizes("grid", 2); });
  };
  CHECK(sizes("[3, 4]").empty());
  for (const char* value :
       {"[3]", "[3, 4, 5]", "[3, 4.5]", "[3, 1e300]", "[3, true]", "3", "[3, 0]"})
    CHECK(contains(sizes(value), "grid is "));

  const auto number = [](const std::string& value) {
    return refusal_of("{\"eps\": " + value + "}", [](const Config& c) { c.number("eps", 1); });
  };
  CHECK(number("1e-6").empty());
  CHECK(number("0").empty());
  for (const char* value : {"-1e-6", "true", "\"1e-6\"", "[1]"})
    CHECK(contains(number(value), "eps is "));
  CHECK_FALSE(number("1e999").empty());
  const auto scaled = [](const std::string& value) {
    return refusal_of("{\"mlp_ratio\": " + value + "}",
                      [](const Config& c) { c.scaled(48, "mlp_ratio", 4); });
  };
  CHECK(scaled("0.5").empty());
  for (const char* value : {"1e300", "0.001", "-4", "true"})
    CHECK(contains(scaled(value), "mlp_ratio is "));
}

TEST_CASE("a configuration's keys are read, known to change nothing, or refused together") {
  const auto refused = [](const std::string& json) {
    return refusal_of(json, [](const Config& c) {
      c.ignore({"dropout"});
      c.require("transform", {"linear", "cos"});
      c.require_off({"init_values"});
      c.number(c.either("feature_eps", "eps"), 1e-6);
      c.require_all_read();
    });
  };
  CHECK(refused(R"({"dropout": 0.1, "transform": "cos", "init_values": null})").empty());
  CHECK(refused(R"({"init_values": false, "eps": 1e-6, "feature_eps": 1e-6})").empty());
  CHECK(contains(refused(R"({"transform": "sine"})"),
                 R"(transform is "sine"; it must be "linear" or "cos" (nothing else)"));
  CHECK(contains(refused(R"({"init_values": 1e-5})"), "init_values is 1e-05"));
  CHECK(
      contains(refused(R"({"eps": 1e-6, "feature_eps": 1e-5})"), "eps is 1e-06; it must be 1e-05"));
  const std::string three =
      refused(R"({"a": 1, "block_kwargs": {"dwconv": true, "dropout": 0}, "z": null})");
  for (const char* part : {"a = 1", "block_kwargs.dwconv = true", "z = null"})
    CHECK(contains(three, part));
  CHECK_FALSE(contains(three, "dropout"));
  CHECK(contains(refused(R"({"model_args": {"eps": 1}, "eps": 2})"), "but eps is 2"));
}

#ifdef MHLA_RUN_RELEASED
namespace {

/// A small released model of tests/models, and what is changed in its checkpoint and configuration.
class ReleasedModel {
 public:
  explicit ReleasedModel(const std::string& folder)
      : from_(std::filesystem::path(MHLA_SOURCE_DIR "/tests/models") / folder),
        file_(from_ / "model.safetensors") {
    for (const auto& [name, tensor] : file_.tensors())
      add(name, tensor.shape, tensor.elements<float>());
    std::ifstream(from_ / "config.json") >> config;
  }

  void add(const std::string& name, const std::vector<Index>& shape, std::vector<float> elements) {
    tensors_[name] = {shape, std::move(elements)};
  }
  const std::vector<float>& elements(const std::string& name) const {
    return tensors_.at(name).second;
  }

  void write(const std::filesystem::path& folder) const {
    std::vector<checkpoints::NamedTensor<float>> tensors;
    for (const auto& [name, tensor] : tensors_)
      tensors.push_back({name, tensor.first, tensor.second.data()});
    checkpoints::write_safetensors(folder / "model.safetensors", tensors);
    test::write_text(folder / "config.json", config.dump());
  }
  /// mhla_run_released on it, `inputs` being tensors of its folder, or words.
  test::Run run(const std::string& model, const std::vector<std::string>& inputs) const {
    write(folder_ / "");
    std::string command =
        "'" MHLA_RUN_RELEASED "' " + model + " '" + (folder_ / "model.safetensors").string() + "'";
    const Safetensors forward(from_ / "forward.safetensors");
    for (const std::string& input : inputs) {
      if (!forward.has(input)) {
        command += " " + input;
        continue;
      }
      const auto& tensor = forward.tensor(input);
      checkpoints::write_npy(folder_ / "input.npy", {tensor.shape, tensor.elements<double>()});
      command += " '" + (folder_ / "input.npy").string() + "'";
    }
    return test::run_program(command);
  }

  nlohmann::json config;

 private:
  std::filesystem::path from_;
  Safetensors file_;
  std::map<std::string, std::pair<std::vector<Index>, std::vector<float>>> tensors_;
  test::TemporaryFolder folder_;
};

void check_refused(const test::Run& run, const std::vector<std::string>& parts) {
  INFO(run.output);
  CHECK(run.status == 2);
  for (const std::string& part : parts) CHECK(contains(run.output, part));
}

}  // namespace

TEST_CASE("mhla_run_released refuses tensors that it does not apply, all at once, by name") {
  ReleasedModel deit("deit");
  CHECK(deit.run("deit", {"image"}).status == 0);
  deit.add("blocks.0.ls1.gamma", {48}, std::vector<float>(48, 1e-5f));
  deit.add("blocks.1.ls2.gamma", {48}, std::vector<float>(48, 1e-5f));
  check_refused(deit.run("deit", {"image"}),
                {"no use for 2 tensors: blocks.0.ls1.gamma, blocks.1.ls2.gamma"});
  ReleasedModel dit("dit");
  dit.add("blocks.0.dw_conv.weight", {32, 1, 3, 3}, std::vector<float>(288, 1));
  check_refused(dit.run("dit", {"latent"}), {"1 tensors: blocks.0.dw_conv.weight"});
  ReleasedModel wan("wan_gated");
  wan.config["is_gated"] = false;
  check_refused(wan.run("wan", {"x"}), {"2 tensors: g.bias, g.weight"});
  ReleasedModel fewer("lm");
  fewer.config["num_hidden_layers"] = 1;
  check_refused(fewer.run("lm", {"1", "2"}), {"tensors of 2 layers", "num_hidden_layers is 1"});
}

TEST_CASE("mhla_run_released refuses keys that it does not apply, nested ones too") {
  ReleasedModel deit("deit");
  deit.config["init_values"] = 1e-5;
  check_refused(deit.run("deit", {"image"}), {"init_values is 1e-05; it must be false or 0"});
  ReleasedModel dit("dit");
  dit.config["block_kwargs"] = {{"qkv_bias", true}, {"exp_sigma", 3}, {"shift", 1}};
  check_refused(dit.run("dit", {"latent"}), {"block_kwargs.shift = 1;"});
  dit.config["block_kwargs"] = {{"qkv_bias", true}, {"exp_sigma", 3}, {"dropout", 0.1}};
  for (const char* start :
       {"cos", "exp", "gaussian", "local"}) {  // the checkpoint has what it became
    dit.config["transform"] = start;
    CHECK(dit.run("dit", {"latent"}).status == 0);
  }
  dit.config["block_kwargs"] = {{"qkv_bias", false}};
  check_refused(dit.run("dit", {"latent"}), {"block_kwargs.qkv_bias is false; it must be true"});
  ReleasedModel wan("wan");
  wan.config["norm_output"] = true;
  check_refused(wan.run("wan", {"x"}),
                {"norm_output is true; it must be false (the value of normalize_out)"});
}

TEST_CASE("mhla_run_released takes what the released language model's own files hold") {
  ReleasedModel lm("lm");
  // As its configuration is written, with what it stands for here.
  for (const char* name : {"head_k_dim", "head_v_dim", "chunk_size", "rope_theta", "model"})
    lm.config.erase(name);
  lm.config.update(nlohmann::json::parse(R"({"attn_mode": "chunk", "bos_token_id": 1,
      "clamp_min": null, "eos_token_id": 2, "fuse_cross_entropy": true, "fuse_norm": true,
      "hidden_ratio": 4, "initializer_range": 0.02, "model_type": "gla", "use_cache": true,
      "use_gk": true, "use_gv": false, "torch_dtype": "bfloat16", "transformers_version": "4.53.0",
      "architectures": ["GLAForCausalLM"], "attn": null})"));
  // A tied head, and the rotation's table.
  lm.add("lm_head.weight", {47, 40}, lm.elements("model.embeddings.weight"));
  lm.add("model.layers.0.attn.rotary.inv_freq", {5},
         {1, 0.15848932f, 0.025118864f, 0.0039810717f, 0.00063095734f});
  CHECK(lm.run("lm", {"1", "2", "--tokens", "2"}).status == 0);

  lm.add("model.layers.1.attn.rotary.inv_freq", {5}, {1, 0.1584f, 0.0251f, 0.00398f, 0.00063f});
  check_refused(lm.run("lm", {"1"}), {"rotary.inv_freq has the element 0.158400"});
  lm.add("model.layers.1.attn.rotary.inv_freq", {5},
         lm.elements("model.layers.0.attn.rotary.inv_freq"));
  // null is the released MLP's own width, 256 for two thirds of 4 * 40.
  lm.config["intermediate_size"] = nullptr;
  check_refused(lm.run("lm", {"1"}),
                {"mlp.gate_proj.weight has the shape [80, 40], not [256, 40]"});
  lm.config["intermediate_size"] = 80;
  lm.add("lm_head.weight", {47, 40}, std::vector<float>(47 * 40, 1));
  check_refused(lm.run("lm", {"1"}), {"lm_head.weight differs from model.embeddings.weight"});
}

TEST_CASE("mhla_run_released --check notices a wrong epsilon and NaN, in either precision") {
  const test::TemporaryFolder temporary;
  for (const char* name : {"forward.safetensors", "gradients.safetensors"})
    std::filesystem::copy_file(std::filesystem::path(MHLA_SOURCE_DIR "/tests/models/wan") / name,
                               temporary / name);
  const auto check = [&](const char* key, double value, float weight) {
    ReleasedModel wan("wan");
    wan.config[key] = value;
    std::vector<float> weights = wan.elements("q.weight");
    weights[0] = weight;
    wan.add("q.weight", {32, 32}, weights);
    wan.write(temporary / "");
    return test::run_program("'" MHLA_RUN_RELEASED "' --check '" + (temporary / "").string() + "'");
  };
  const float right = ReleasedModel("wan").elements("q.weight")[0];
  CHECK(check("norm_eps", 1e-6, right).status == 0);
  for (const test::Run& run : {check("norm_eps", 3e-6, right), check("norm_eps", 1e-6, NAN)}) {
    CHECK(run.status == 1);
    std::set<std::string> failed;
    std::istringstream lines(run.output);
    for (std::string line; std::getline(lines, line);)
      if (contains(line, "FAILED")) failed.insert(line.substr(0, line.find(' ')));
    CHECK(failed == std::set<std::string>{"double", "float"});
  }
}

TEST_CASE("mhla_run_released refuses malformed and out-of-range numbers") {
  const ReleasedModel lm("lm");
  for (const char* words : {"--tokens 4.5", "--tokens 1e9", "--tokens -1", "--tokens abc",
                            "--temperature nan", "--threads 0", "--seed -1", "1x"})
    CHECK(contains(lm.run("lm", {"1", words}).output, " is not a"));
}
#endif
