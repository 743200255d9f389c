// SPDX-License-Identifier: MIT
// Initial mixing matrices against their formulas, written out here a second time: distances between
// block centres, the transform, the normalization (arXiv 2601.07832, section 4; released code).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mhla/mixing_matrix.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;

using Matrix = std::vector<std::vector<double>>;
using Layout = std::array<int, 3>;

const std::vector<Transform> all_transforms = {
    Transform::linear, Transform::cos,     Transform::exp,      Transform::gaussian,
    Transform::local,  Transform::uniform, Transform::identity, Transform::causal};

std::size_t at(int n) { return static_cast<std::size_t>(n); }

// Centres of the blocks in raster order, in units of `unit`'s blocks.
std::vector<std::array<double, 3>> centres(const Layout& layout, const Layout& unit) {
  std::vector<std::array<double, 3>> result;
  for (int f = 0; f < layout[0]; ++f)
    for (int h = 0; h < layout[1]; ++h)
      for (int w = 0; w < layout[2]; ++w)
        result.push_back({(f + 0.5) * unit[0] / layout[0], (h + 0.5) * unit[1] / layout[1],
                          (w + 0.5) * unit[2] / layout[2]});
  return result;
}

Matrix expected(const Layout& query, const Layout& key, const InitialMixing& options) {
  const auto rows = centres(query, query);
  const auto columns = centres(key, query);
  Matrix distance(rows.size(), std::vector<double>(columns.size()));
  double global_max = 0;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t b = 0; b < columns.size(); ++b) {
      distance[i][b] = std::hypot(rows[i][0] - columns[b][0], rows[i][1] - columns[b][1],
                                  rows[i][2] - columns[b][2]);
      global_max = std::max(global_max, distance[i][b]);
    }

  const double pi = std::acos(-1.0);
  Matrix m = distance;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double row_max = 0;
    for (const double d : distance[i]) row_max = std::max(row_max, d);
    const double max = options.max_mode == MaxMode::row ? row_max : global_max;
    for (std::size_t b = 0; b < columns.size(); ++b) {
      const double d = distance[i][b];
      const double sigma = max / 3;
      switch (options.transform) {
        case Transform::automatic:
        case Transform::linear:
          m[i][b] = 1 - d / max;
          break;
        case Transform::cos:
          m[i][b] = std::cos(d / max * pi / 4);
          break;
        case Transform::exp:
          m[i][b] = std::exp(-d / options.exp_sigma);
          break;
        case Transform::gaussian:
          m[i][b] = std::exp(-d * d / (2 * sigma * sigma));
          break;
        case Transform::local:
          m[i][b] = d <= options.local_threshold ? 1 : 0;
          break;
        case Transform::uniform:
          m[i][b] = 1;
          break;
        case Transform::identity:
          m[i][b] = i == b ? 1 : 0;
          break;
        case Transform::causal:
          m[i][b] = b <= i ? 1.0 / static_cast<double>(i + 1) : 0;
          break;
      }
    }
  }
  for (std::size_t i = 0; i < rows.size() && options.norm_axis == NormAxis::row; ++i) {
    double sum = 0;
    for (const double w : m[i]) sum += w;
    for (double& w : m[i]) w /= sum;
  }
  for (std::size_t b = 0; b < columns.size() && options.norm_axis == NormAxis::column; ++b) {
    double sum = 0;
    for (const auto& row : m) sum += row[b];
    for (auto& row : m) row[b] /= sum;
  }
  return m;
}

// Blocks of 2 x 3 x 4 tokens: distances count blocks, whatever a block's shape.
Grid grid_of(const Layout& layout) {
  return {{2 * layout[0], 3 * layout[1], 4 * layout[2]}, {2, 3, 4}};
}

// [rows][columns] as initialize fills it.
Matrix initialized(const Grid& query, const Grid& key, const InitialMixing& options) {
  const auto rows = static_cast<int>(query.num_blocks());
  const auto columns = static_cast<int>(key.num_blocks());
  std::vector<double> data(at(rows * columns), -7.0);
  mhla::initialize(make_view(data.data(), rows, columns), query, key, options);
  Matrix result;
  for (int i = 0; i < rows; ++i)
    result.emplace_back(data.begin() + i * columns, data.begin() + (i + 1) * columns);
  return result;
}

Matrix initialized(const Grid& grid, const InitialMixing& options) {
  return initialized(grid, grid, options);
}

double max_difference(const Matrix& a, const Matrix& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      const double difference = std::abs(a[i][j] - b[i][j]);
      if (!(difference <= worst)) worst = difference;  // NaN counts as worst
    }
  }
  return worst;
}

constexpr double rounding = 1e-14;

}  // namespace

TEST_CASE("initial mixing: three blocks in a row, by hand", "[mixing_matrix]") {
  const Grid three = mhla::Blocks1D{.block = 5}.grid_of(15);
  SECTION("released code: columns of 1 - d / 2") {
    const Matrix columns = {{2. / 3, 1. / 4, 0}, {1. / 3, 1. / 2, 1. / 3}, {0, 1. / 4, 2. / 3}};
    CHECK(max_difference(initialized(three, {}), columns) <= rounding);
  }
  SECTION("paper: rows of 1 - d / the row's own maximum") {
    const Matrix rows = {{2. / 3, 1. / 3, 0}, {0, 1, 0}, {0, 1. / 3, 2. / 3}};
    const InitialMixing paper{.max_mode = MaxMode::row, .norm_axis = NormAxis::row};
    CHECK(max_difference(initialized(three, paper), rows) <= rounding);
  }
  SECTION("language model: the mean over the past") {
    const Matrix rows = {{1, 0, 0}, {1. / 2, 1. / 2, 0}, {1. / 3, 1. / 3, 1. / 3}};
    CHECK(max_difference(initialized(three, {.transform = Transform::causal}), rows) <= rounding);
  }
  SECTION("local: the threshold itself is near") {
    const Matrix columns = {{1. / 2, 1. / 3, 0}, {1. / 2, 1. / 3, 1. / 2}, {0, 1. / 3, 1. / 2}};
    const InitialMixing next{.transform = Transform::local, .local_threshold = 1};
    CHECK(max_difference(initialized(three, next), columns) <= rounding);
  }
  SECTION("uniform and identity") {
    const Matrix uniform(3, std::vector<double>(3, 1. / 3));
    const Matrix identity = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    CHECK(max_difference(initialized(three, {.transform = Transform::uniform}), uniform) == 0);
    CHECK(max_difference(initialized(three, {.transform = Transform::identity}), identity) == 0);
  }
}

TEST_CASE("initial mixing: every transform follows its formula on 1-D, 2-D and 3-D layouts",
          "[mixing_matrix]") {
  for (const Layout& layout : {Layout{1, 1, 7}, Layout{1, 4, 4}, Layout{1, 3, 5}, Layout{3, 2, 4}})
    for (const Transform transform : all_transforms)
      for (const MaxMode max_mode : {MaxMode::global, MaxMode::row})
        for (const NormAxis norm_axis : {NormAxis::column, NormAxis::row, NormAxis::none}) {
          if (transform == Transform::causal && layout[1] != 1) continue;  // an error, see below
          const InitialMixing options{.transform = transform,
                                      .max_mode = max_mode,
                                      .norm_axis = norm_axis,
                                      .exp_sigma = 2.5,
                                      .local_threshold = 1.2};
          INFO("layout " << layout[0] << "x" << layout[1] << "x" << layout[2] << ", transform "
                         << int(transform) << ", max " << int(max_mode) << ", norm "
                         << int(norm_axis));
          CHECK(max_difference(initialized(grid_of(layout), options),
                               expected(layout, layout, options)) <= rounding);
        }
}

TEST_CASE("initial mixing: weights that are all zero, or 0 / 0, become uniform",
          "[mixing_matrix]") {
  const Grid one = grid_of({1, 1, 1});
  const Grid two = grid_of({1, 1, 2});
  const Grid three = grid_of({1, 1, 3});
  const Grid four = grid_of({1, 2, 2});
  SECTION("one block, whatever the settings") {
    for (const Transform transform : all_transforms)
      for (const NormAxis norm_axis : {NormAxis::automatic, NormAxis::column, NormAxis::none})
        CHECK(initialized(one, {.transform = transform, .norm_axis = norm_axis}) == Matrix{{1}});
  }
  SECTION("all keys at the maximum distance") {
    CHECK(initialized(one, two, {}) == Matrix{{0.5, 0.5}});
    CHECK(initialized(one, four, {}) == Matrix{{0.25, 0.25, 0.25, 0.25}});
    CHECK(initialized(one, two, {.norm_axis = NormAxis::none}) == Matrix{{0.5, 0.5}});
    // of three query blocks and two keys, the middle one is as far from either
    const Matrix rows = initialized(three, two, {.max_mode = MaxMode::row});
    CHECK(rows[1] == std::vector<double>{0.5, 0.5});
  }
  SECTION("one key block") {
    CHECK(initialized(three, one, {}) == Matrix{{1}, {1}, {1}});
    CHECK(initialized(three, one, {.max_mode = MaxMode::row}) == Matrix{{1}, {1}, {1}});
    CHECK(initialized(three, one, {.norm_axis = NormAxis::column}) == Matrix{{0}, {1}, {0}});
    CHECK(initialized(three, one, {.norm_axis = NormAxis::none}) == Matrix{{1}, {1}, {1}});
  }
  SECTION("a column out of every query's reach") {
    const InitialMixing nearest{
        .transform = Transform::local, .norm_axis = NormAxis::column, .local_threshold = 0.1};
    // key centres at 1/2, 3/2, 5/2 thirds of two blocks; the middle key alone is 1/2 from both
    CHECK(initialized(two, three, nearest) == Matrix{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}});
  }
}

TEMPLATE_TEST_CASE("initial mixing: a causal variant gets the mean over the past",
                   "[mixing_matrix]", mhla::Causal, mhla::BlockCausal) {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, TestType> attention{.blocks = {.block = 64}};
  const auto of_variant = [&](const InitialMixing& options) {
    std::vector<double> mix(5 * 5);
    mhla::initialize(make_view(mix.data(), 5, 5), attention, options);
    Matrix result;
    for (int i = 0; i < 5; ++i) result.emplace_back(mix.begin() + i * 5, mix.begin() + (i + 1) * 5);
    return result;
  };
  std::vector<double> mix(2 * 5 * 5);
  mhla::initialize(make_view(mix.data(), 2, 5, 5), attention);
  for (int head = 0; head < 2; ++head)
    for (int i = 0; i < 5; ++i) {
      double seen = 0;
      for (int b = 0; b < 5; ++b) {
        const double entry = mix[at((head * 5 + i) * 5 + b)];
        CHECK(entry == (b <= i ? 1. / (i + 1) : 0));
        if (b <= i) seen += entry;
      }
      CHECK(std::abs(seen - 1) <= rounding);
    }
  CHECK(of_variant({}) == of_variant({.transform = Transform::causal}));
  CHECK(of_variant({.exp_sigma = 2}) == of_variant({.transform = Transform::causal}));

  // Whoever names a transform gets it.
  const Grid five = attention.blocks.grid_of(5 * 64);
  for (const Transform transform : {Transform::linear, Transform::exp, Transform::identity})
    CHECK(of_variant({.transform = transform}) == initialized(five, {.transform = transform}));
  // A grid does not know who attends to it.
  CHECK(initialized(five, {}) == initialized(five, {.transform = Transform::linear}));

  double rectangle[2 * 5] = {-7.0};
  CHECK_THROWS_AS(mhla::initialize(make_view(rectangle, 2, 5), attention), mhla::ShapeError);
  CHECK(rectangle[0] == -7.0);
}

TEST_CASE("initial mixing: what does not fit is refused before anything is written",
          "[mixing_matrix]") {
  std::vector<double> data(400, -7.0);
  const Grid four = grid_of({1, 2, 2});
  const Grid two = grid_of({1, 1, 2});
  const auto view = [&](auto... extents) { return make_view(data.data(), extents...); };

  const auto refused = [](const char* words, const auto& call) {
    CHECK(says(error_message<ShapeError>(call), words));
  };
  refused("mix: axis query blocks is 3 but must be 4", [&] { mhla::initialize(view(3, 4), four); });
  refused("mix: axis key blocks is 5 but must be 4",
          [&] { mhla::initialize(view(2, 4, 5), four, {}); });
  refused("mix: axis key blocks is 4 but must be 2",
          [&] { mhla::initialize(view(4, 4), four, two); });
  refused("mix: has 16 elements but a null address",
          [&] { mhla::initialize(make_view(static_cast<double*>(nullptr), 4, 4), four); });
  refused("mix: two of its elements share memory", [&] {
    mhla::initialize(mhla::TensorView<double, 2>{data.data(), {4, 4}, {0, 1}}, four);
  });
  refused("Transform::identity needs the same layout",
          [&] { mhla::initialize(view(4, 2), four, two, {.transform = Transform::identity}); });
  const InitialMixing causal{.transform = Transform::causal};
  refused("Transform::causal needs one sequence",
          [&] { mhla::initialize(view(4, 4), four, causal); });
  refused("Transform::causal needs one sequence", [&] {
    mhla::initialize(view(2, 3), two, grid_of({1, 1, 3}), causal);
  });
  const auto option = [&](const char* words, const InitialMixing& options) {
    refused(words, [&] { mhla::initialize(view(4, 4), four, options); });
  };
  option("exp_sigma is 0 but must be positive", {.exp_sigma = 0});
  for (const double wrong : {-3.0, std::numeric_limits<double>::quiet_NaN()}) {
    option("exp_sigma is ", {.exp_sigma = wrong});
    option("local_threshold is ", {.local_threshold = wrong});
  }
  option("transform is ", {.transform = static_cast<Transform>(9)});
  option("max_mode is ", {.max_mode = static_cast<MaxMode>(-1)});
  option("norm_axis is ", {.norm_axis = static_cast<NormAxis>(9)});
  refused("5 tokens in blocks of 0",
          [&] { mhla::initialize(view(1, 1), mhla::Blocks1D{}.grid_of(5)); });
  refused("the key grid has axis 2 of -4 tokens", [&] {
    mhla::initialize(view(1, 1), two, Grid{{1, 1, -4}, {1, 1, 4}});
  });
  refused("key_blocks.grid[1] is -4", [&] {
    mhla::initialize(view(4, 4), mhla::Attention<mhla::Relu, mhla::Blocks2D>{
                                     .blocks = {.grid = {4, 4}, .block = {2, 2}},
                                     .key_blocks = {.grid = {4, -4}, .block = {2, 2}}});
  });
  refused("blocks.block is 0",
          [&] { mhla::initialize(view(4, 4), mhla::Attention<mhla::Relu, mhla::Blocks1D>{}); });

  // More blocks than can be counted, which would wrap to none; matrices that no memory holds.
  constexpr Index huge = Index{1} << 32;
  const mhla::TensorView<double, 2> none{data.data(), {0, 0}, {0, 1}};
  refused("the query grid's blocks: axis 2 is 4294967296, which makes", [&] {
    mhla::initialize(none, Grid{{1, huge, huge}});
  });
  for (const Index extent : {huge, Index{-4}}) {
    const mhla::TensorView<double, 2> wrong{data.data(), {extent, extent}, {0, 0}};
    const char* said = extent < 0 ? "is -4, which is negative" : "too large";
    refused(said, [&] { mhla::initialize(wrong, grid_of({1, 1, 4})); });
    refused(said, [&] { mhla::project(wrong); });
    refused(said, [&] { mhla::extend(view(4, 4), wrong, mhla::Extension::causal_average); });
    refused(said, [&] {
      mhla::extend(mhla::TensorView<const double, 2>(wrong), view(4, 4),
                   mhla::Extension::causal_average);
    });
  }
  // As many heads of nothing as there may be: nothing to do, at once.
  const mhla::TensorView<double, 3> hollow{data.data(), {Index{1} << 56, 0, 0}, {0, 0, 0}};
  mhla::initialize(hollow, grid_of({1, 0, 1}));
  mhla::project(hollow);
  mhla::extend(hollow, hollow, mhla::Extension::causal_average);

  for (const double x : data) REQUIRE(x == -7.0);
}
