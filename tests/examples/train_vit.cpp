// SPDX-License-Identifier: MIT
// train_vit: its images against their definition, files of images, the classifier's gradient, and
// the program as its user runs it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "examples/train_vit/classifier.hpp"
#include "examples/train_vit/image_files.hpp"
#include "tests/examples/gradients.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using namespace train_vit;

/// What stands in each cell: one of 8 kinds, 8 for the marker, -1 for nothing.
std::vector<int> cells_of(const std::vector<float>& pixels) {
  const std::uint16_t patterns[] = {0xf99f, 0x9669, 0xcccc, 0xff00, 0x8421,
                                    0x1248, 0xa5a5, 0xf888, 0x6ff6};
  std::vector<int> cells;
  for (Index y = 0; y < 8; ++y)
    for (Index x = 0; x < 8; ++x) {
      std::uint16_t lit = 0;
      for (Index p = 0; p < 16; ++p)
        if (pixels[static_cast<std::size_t>((4 * y + p / 4) * 32 + 4 * x + p % 4)] == 2)
          lit = static_cast<std::uint16_t>(lit | 0x8000 >> p);
      const auto found = std::find(std::begin(patterns), std::end(patterns), lit);
      cells.push_back(found == std::end(patterns) ? -1
                                                  : static_cast<int>(found - std::begin(patterns)));
    }
  return cells;
}

const Program program{MHLA_TRAIN_VIT};

std::string idx(const std::vector<int>& extents, const std::string& bytes) {
  std::string file{'\0', '\0', '\x08', static_cast<char>(extents.size())};
  for (const int extent : extents)
    for (int shift = 24; shift >= 0; shift -= 8)
      file += static_cast<char>(static_cast<unsigned>(extent) >> shift & 255u);
  return file + bytes;
}

/// Images of the numbers 0, 1, ..., of three classes in turn.
ImageFiles images_in(const TemporaryFolder& folder, int count, int rows, int columns) {
  std::string bytes, labels;
  for (int i = 0; i < count * rows * columns; ++i) bytes += static_cast<char>(i);
  for (int i = 0; i < count; ++i) labels += static_cast<char>(i % 3);
  write_text(folder / "images", idx({count, rows, columns}, bytes));
  write_text(folder / "labels", idx({count}, labels));
  return ImageFiles::idx((folder / "images").string(), (folder / "labels").string(), 1);
}

}  // namespace

TEST_CASE("train_vit: the class is the kind of the shape nearest to the marker", "[train_vit]") {
  const DrawnShapes images(3);
  std::vector<float> pixels(static_cast<std::size_t>(images.shape().size()));
  std::set<int> seen;
  for (Index number = 0; number < 200; ++number) {
    const int label = images.image(Part::training, number, pixels.data());
    const std::vector<int> cells = cells_of(pixels);
    REQUIRE(std::count(cells.begin(), cells.end(), 8) == 1);
    const auto marker = std::find(cells.begin(), cells.end(), 8) - cells.begin();
    double nearest = 1e9;
    int kind = -1;
    for (std::ptrdiff_t cell = 0; cell < 64; ++cell) {
      const int there = cells[static_cast<std::size_t>(cell)];
      if (there < 0 || there == 8) continue;
      const double distance = std::hypot(static_cast<double>(cell % 8 - marker % 8),
                                         static_cast<double>(cell / 8 - marker / 8));
      if (distance < nearest) nearest = distance, kind = there;
    }
    REQUIRE(kind == label);
    REQUIRE(nearest >= 2);
    seen.insert(label);
  }
  CHECK(seen.size() == 8);
  std::vector<float> other = pixels;
  images.image(Part::validation, 199, other.data());
  CHECK(other != pixels);
}

TEST_CASE("train_vit: the classifier's gradient", "[train_vit]") {
  const TemporaryFolder temporary;
  const ImageFiles images = images_in(temporary, 12, 4, 4);
  for (const bool with_all : {false, true}) {
    ModelShape shape{.patch = 1, .block = {2, 2}, .layers = 1, .width = 8, .heads = 2};
    shape.positional_convolution = with_all;
    shape.gate = with_all;
    const Classifier classifier(shape, images, mhla::Exp{});
    const Values origin = classifier.initial_values(1);
    const auto scratch = classifier.scratch();
    Values gradient = Values::Constant(origin.size(), std::nan(""));  // shows what is not written
    classifier.score(origin, Part::training, 0, 4, *scratch, 0.25, &gradient);
    const auto loss = [&](const Values& displaced) {
      return classifier.score(displaced, Part::training, 0, 4, *scratch, 0, nullptr).loss / 4;
    };
    require_gradient(1e-8, origin, 0.02, gradient, loss);  // norms of few channels are much curved
  }
}

TEST_CASE("train_vit: what cannot be done", "[train_vit]") {
  for (const char* arguments : {"--patch 5", "--heads 5", "--images some", "--steps", "what",
                                "--rank 0", "--mixing recurrent"})
    program.check(arguments, 2, {"train_vit: "});
  program.check("--cifar nowhere", 3);
}

TEST_CASE("train_vit: a short training of every row", "[train_vit]") {
  const std::string small = " --batch 2 --width 16 --heads 2 --layers 1 --steps 2";
  program.check(small, 0,
                {"\n  none ", "\n  linear ", "\n  softmax ", "\n  MHLA ", "\n  MHLA, gate ",
                 "\n  MHLA, CPE ", "\n  softmax, CPE, gate ", "\n  MHLA, CPE, gate "});
  const std::string both = program.check("--mixing separable" + small, 0,
                                         {"\n  dense ", "\n  separable ", "\n  dense, gate ",
                                          "\n  separable, CPE ", "\n  separable, CPE, gate "});
  CHECK_FALSE(says(both, "softmax"));
  program.check("--sweep" + small, 0, {"\n  M = 1 ", "\n  M = 4 ", "\n  M = 16 ", "\n  M = 64 "});
}
