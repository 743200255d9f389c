// SPDX-License-Identifier: MIT
// Damaged case folders before mhla_replay's own code: a verdict and a reason, whatever they hold.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "examples/replay/judge.hpp"
#include "tests/fuzz/attack.hpp"

namespace fuzz {

namespace {

namespace fs = std::filesystem;

struct File {
  std::string name;
  std::string bytes;
};
using Folder = std::vector<File>;

// The golden cases, but the largest.
const std::vector<Folder>& golden_cases() {
  static const std::vector<Folder> cases = [] {
    std::vector<Folder> all;
    std::ifstream index(fs::path(MHLA_GOLDEN_DIR) / "index.txt");
    for (std::string name; index >> name;) {
      Folder folder;
      std::size_t bytes = 0;
      for (const auto& entry : fs::directory_iterator(fs::path(MHLA_GOLDEN_DIR) / name)) {
        std::ifstream stream(entry.path(), std::ios::binary);
        folder.push_back(
            {entry.path().filename().string(), {std::istreambuf_iterator<char>(stream), {}}});
        bytes += folder.back().bytes.size();
      }
      const auto order = [](const File& file) {  // case.txt is the first
        return std::pair(file.name != "case.txt", file.name);
      };
      std::sort(folder.begin(), folder.end(),
                [&](const File& a, const File& b) { return order(a) < order(b); });
      if (bytes < 200000) all.push_back(folder);
    }
    if (all.empty()) fail("no golden cases in " MHLA_GOLDEN_DIR);
    return all;
  }();
  return cases;
}

struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("mhla_fuzz_" + std::to_string(getpid()));

  TemporaryFolder() { fs::create_directories(path); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { fs::remove_all(path); }
};

std::string any_word(Draw& draw) {
  static const std::vector<std::string> words = [] {
    std::istringstream all(
        "0 1 2 3 7 64 -1 -0 1e308 -1e308 1e-320 0.5 nan inf 1000000 4294967296 1000000000000000 "
        "4611686018427387904 9223372036854775807 9223372036854775808 relu softmax dpfp favor "
        "official paper none neox_1d wan_3d mix_init attention exp x");
    return std::vector<std::string>{std::istream_iterator<std::string>(all), {}};
  }();
  return draw.once_in(30) ? "" : draw.any_of(words);
}

void damage_bytes(std::string& bytes, Size reach, Draw& draw) {
  if (bytes.empty()) return;
  for (Size count = 1 + draw.below(4); count > 0; --count)
    bytes[static_cast<std::size_t>(draw.below(std::min(reach, std::ssize(bytes))))] =
        static_cast<char>(draw.below(256));
}

// A line of case.txt: its key, then words.
void damage_text(std::string& text, Draw& draw) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.empty()) return;
  std::string& line = draw.any_of(lines);
  const std::size_t space = std::min(line.find(' '), line.size());
  switch (draw.below(6)) {
    case 0:
      line.clear();
      break;
    case 1:
      line += "\n" + draw.any_of(lines);
      break;
    case 2:
      line += " " + any_word(draw);
      break;
    case 3: {  // another line's values
      const std::string other = draw.any_of(lines);
      line = line.substr(0, space) + other.substr(std::min(other.find(' '), other.size()));
      break;
    }
    default:
      line = line.substr(0, space) + " " + any_word(draw);
      if (draw.once_in(3)) line += " " + any_word(draw);
  }
  text.clear();
  for (const std::string& each : lines) text += each + "\n";
}

// A .npy file: its header is text, too.
void damage_array(std::string& bytes, Draw& draw) {
  const std::size_t shape = bytes.find("'shape': (");
  if (shape != std::string::npos && draw.once_in(3)) {
    const std::size_t from = shape + 10;
    const std::size_t to = bytes.find_first_of(",)", from);
    const std::string word = any_word(draw);
    if (to != std::string::npos && word.size() <= to - from + 20)
      bytes.replace(from, to - from, word);
    return;
  }
  damage_bytes(bytes, draw.once_in(2) ? 128 : std::ssize(bytes), draw);
}

void damage(Folder& folder, Draw& draw) {
  File& file = draw.once_in(2) ? draw.any_of(folder) : folder.front();
  switch (draw.below(8)) {
    case 0:
      file.bytes.resize(static_cast<std::size_t>(draw.below(std::ssize(file.bytes) + 1)));
      break;
    case 1:
      damage_bytes(file.bytes, std::ssize(file.bytes), draw);
      break;
    case 2:
      file.bytes += draw.any_of(folder).bytes;
      break;
    case 3:
      std::swap(file.bytes, draw.any_of(folder).bytes);
      break;
    default:
      file.name == "case.txt" ? damage_text(file.bytes, draw) : damage_array(file.bytes, draw);
  }
}

}  // namespace

void attack_files(Draw& draw, Tally& tally) {
  static const TemporaryFolder temporary;
  static const replay::ChosenExecutor executor;
  Folder folder = draw.any_of(golden_cases());
  situation = "files: " + folder.front().bytes;
  const Size damages = draw.between(0, 3);
  for (Size i = 0; i < damages; ++i) damage(folder, draw);
  situation += "as\n" + folder.front().bytes;
  for (const File& file : folder)
    std::ofstream(temporary.path / file.name, std::ios::binary | std::ios::trunc) << file.bytes;

  replay::CommandLine line;
  line.scalar = draw.once_in(2) ? replay::Scalar::f32 : replay::Scalar::f64;
  line.tolerance = line.scalar == replay::Scalar::f64 ? 1e-12 : 1e-5;
  line.decode = draw.once_in(3);
  ++tally.calls;
  const replay::Judgement judgement = replay::Judge(line, executor).judge({temporary.path, "case"});
  for (const File& file : folder) fs::remove(temporary.path / file.name);
  if (judgement.text.empty()) fail("a verdict without a reason");
  const bool right = judgement.verdict == replay::Verdict::ok ||
                     (line.decode && judgement.verdict == replay::Verdict::unsupported);
  if (damages == 0 && !right) fail("a sound case is judged: " + judgement.text);
}

}  // namespace fuzz
