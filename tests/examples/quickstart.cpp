// SPDX-License-Identifier: MIT
// quickstart's parts: the tokens it makes of a file, and the softmax attention it races against.
#include <cmath>
#include <mhla/reference/softmax_attention.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "examples/quickstart/softmax_attention.hpp"
#include "examples/quickstart/tensors.hpp"
#include "examples/quickstart/token_source.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using namespace quickstart;

/// An image of 40 x 30 pixels, no two alike.
std::string color_image() {
  std::string bytes = "P6\n# columns and rows\n40 30\n255\n";
  for (int row = 0; row < 30; ++row)
    for (int column = 0; column < 40; ++column)
      for (const int value : {row * 8, column * 6, (row * column) % 256})
        bytes += static_cast<char>(value);
  return bytes;
}

const Program program{MHLA_QUICKSTART};

}  // namespace

TEST_CASE("quickstart: pixels of PPM and PGM images, of one byte and of two", "[quickstart]") {
  const Image color(color_image());
  CHECK((color.rows == 30 && color.columns == 40 && color.channels == 3));
  CHECK(color(2, 3, 0) == 16.0f / 255);
  CHECK(color(29, 39, 1) == 234.0f / 255);

  const Image wide("P5 2 1 # one row\n1000 \x01\x02\x03\xe8");
  CHECK(wide.channels == 1);
  CHECK(wide(0, 0, 0) == 258.0f / 1000);
  CHECK(wide(0, 1, 0) == 1.0f);
  CHECK_FALSE(Image::is_image("P3 1 1 255 0 0 0"));
  CHECK_FALSE(Image::is_image("P"));
}

TEST_CASE("quickstart: a damaged image is refused", "[quickstart]") {
  const std::string whole = color_image();
  for (const std::size_t length :
       {whole.size() - 1, std::size_t{34}, std::size_t{20}, std::size_t{3}})
    CHECK_THROWS_AS(Image(whole.substr(0, length)), std::runtime_error);
  for (const char* header : {"P5 0 1 255\n", "P5 1 1 65536\n  ", "P5 1 x 255\n ",
                             "P5 999999999 999999999 255\n  ", "P5 9999999999 1 255\n ", "P5 #"})
    CHECK_THROWS_AS(Image(header), std::runtime_error);
}

TEST_CASE("quickstart: tokens of a file differ, repeat with it, and have mean square 1",
          "[quickstart]") {
  const TemporaryFolder temporary;
  write_text(temporary / "text", "It was the best of times, it was the worst of times");
  write_text(temporary / "image.ppm", color_image());
  for (const char* name : {"text", "image.ppm"})
    for (const mhla::Grid& grid :
         {mhla::Grid{{1, 1, 37}, {1, 1, 8}}, mhla::Grid{{1, 6, 8}, {1, 3, 4}},
          mhla::Grid{{3, 4, 5}, {1, 2, 5}}}) {
      INFO(name << " of " << grid.num_tokens() << " tokens");
      const Matrix x = TokenSource(temporary / name).embed(grid);
      REQUIRE(x.rows() == grid.num_tokens());
      REQUIRE(x.cols() == TokenSource::width);
      CHECK(x.allFinite());
      CHECK((x - TokenSource(temporary / name).embed(grid)).norm() == 0);
      for (mhla::Index t = 0; t < x.rows(); ++t) {
        CHECK(std::abs(x.row(t).squaredNorm() / static_cast<float>(x.cols()) - 1) <= 1e-5f);
        for (mhla::Index j = 0; j < t; ++j) CHECK((x.row(t) - x.row(j)).norm() > 1e-3f);
      }
    }
  CHECK_THROWS_AS(TokenSource(temporary / "nowhere"), std::runtime_error);
  write_text(temporary / "empty", "");
  CHECK_THROWS_AS(TokenSource(temporary / "empty"), std::runtime_error);
}

TEST_CASE("quickstart: the softmax attention it races against is right", "[quickstart]") {
  using mhla::testing::fill_random;
  Eigen::ThreadPool threads(3);
  const Eigen::ThreadPoolDevice pool(&threads, 3);
  for (const Index tokens : {1, 63, 300, 777}) {
    Tensor<float, 4> q(1, 2, tokens, 7), k(1, 2, tokens, 7), v(1, 2, tokens, 5), y(1, 2, tokens, 5);
    fill_random(mhla::testing::Uniform{-6, 6}, 1, view_of(q));
    fill_random(mhla::testing::Uniform{-6, 6}, 2, view_of(k));
    fill_random(mhla::testing::Normal{}, 3, view_of(v));
    Tensor<double, 4> exact(1, 2, tokens, 5);
    const Tensor<double, 4> q64 = q.cast<double>(), k64 = k.cast<double>(), v64 = v.cast<double>();
    mhla::reference::softmax_attention_forward(mhla::reference::SoftmaxAttention<>{}, view_of(q64),
                                               view_of(k64), view_of(v64), view_of(exact));
    quickstart::softmax_attention(pool, q, k, v, y);
    CHECK(mhla::testing::compare(view_of(y), view_of(exact)).rms_ratio <= 2e-6);
  }
}

TEST_CASE("quickstart: what it cannot read it says", "[quickstart]") {
  const TemporaryFolder temporary;
  write_text(temporary / "half.ppm", color_image().substr(0, 1000));
  program.check(quoted(temporary / "half.ppm"), 2, {"the image ends before its last pixel"});
  program.check(quoted(temporary / "nowhere"), 2);
  program.check("a b", 64);
}

#ifndef MHLA_SMALL_PRODUCT  // it measures time: nothing for Debug and sanitizers
TEST_CASE("quickstart: three tables of an image", "[quickstart]") {
  const TemporaryFolder temporary;
  write_text(temporary / "image.ppm", color_image());
  const std::string output =
      program.check(quoted(temporary / "image.ppm"), 0,
                    {"image.ppm, an image of 40 x 30 pixels", "\nDeiT-T 256px ", "\nDiT-S/2 512px ",
                     "\nWan, smaller ", "\nlanguage model ", "\n           9216 ", "\nsoftmax ",
                     "\nlinear ", "\nMHLA "});
#if defined(__x86_64__)
  // The peer is compiled for this machine: its vectors are as long as those that MHLA chooses.
  const char* const vectors = __builtin_cpu_supports("avx512f") ? "(AVX512"
                              : __builtin_cpu_supports("avx")   ? "(AVX"
                                                                : "(SSE";
  CHECK(says(output, vectors));
#endif
}
#endif
