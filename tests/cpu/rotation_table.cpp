// SPDX-License-Identifier: MIT
// The tables of a rotation against angles written out here, at positions where float angles fail.
#include <algorithm>
#include <cmath>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/cpu/executors.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace mhla;
using namespace mhla::cpu;

// A table and the memory it lies in.
template <class A>
struct OwnedTable {
  Workspace workspace;
  RotationTable<A> table;

  template <class Rotation>
  OwnedTable(const Rotation& rotation, int rank, Index feature_dim, const Grid& queries,
             const Grid& keys, const ExecutorRef& executor)
      : OwnedTable(rotation, rank, feature_dim, hull(queries.grid_box(), keys.grid_box()),
                   executor) {}
  template <class Rotation>
  OwnedTable(const Rotation& rotation, int rank, Index feature_dim, const GridBox& box,
             const ExecutorRef& executor) {
    Arena measure;
    rotation_table<A>(measure, rotation, rank, feature_dim, box, executor);
    workspace = Workspace(measure.used());
    Arena arena(workspace);
    table = rotation_table<A>(arena, rotation, rank, feature_dim, box, executor);
    CHECK(arena.used() == measure.used());
  }
};

// One feature pair and what turns it, by hand.
struct TurnedPair {
  Index first;
  Index second;
  Index axis;       // of the last three coordinates
  double exponent;  // angle = coordinate theta^-exponent
};

// Rows of random features rotated by the table and by hand, and back.
template <class A>
void check_rotation(const RotationTable<A>& table, const std::vector<TurnedPair>& pairs,
                    double theta, Index feature_dim, const Index (&coordinate)[3]) {
  INFO("coordinate " << coordinate[0] << " " << coordinate[1] << " " << coordinate[2]);
  const auto row = mhla::testing::random_tensor<A>(mhla::testing::Normal{}, 1, feature_dim);
  auto rotated = row;
  table.turn(panel(rotated.view().data, 1, feature_dim), coordinate, Turn::forward);
  // A few roundings of a sum of two products; cosine and sine are never better than double.
  constexpr double roundoff =
      std::max(::tolerance::unit_roundoff<A>, ::tolerance::unit_roundoff<double>);
  double bound = 0;
  for (const A x : row.elements())
    bound = std::max(bound, 4 * roundoff * static_cast<double>(std::abs(x)));
  for (const TurnedPair& pair : pairs) {
    const long double angle =
        static_cast<long double>(coordinate[pair.axis]) *
        std::pow(static_cast<long double>(theta), -static_cast<long double>(pair.exponent));
    const long double x = row(pair.first);
    const long double y = row(pair.second);
    const double angle_error = 4 * static_cast<double>(angle) * ::tolerance::unit_roundoff<double>;
    CAPTURE(pair.first, pair.second);
    CHECK(std::abs(static_cast<double>(rotated(pair.first) -
                                       (x * std::cos(angle) - y * std::sin(angle)))) <=
          bound + 8 * angle_error);
    CHECK(std::abs(static_cast<double>(rotated(pair.second) -
                                       (x * std::sin(angle) + y * std::cos(angle)))) <=
          bound + 8 * angle_error);
  }
  auto back = rotated;
  table.turn(panel(back.view().data, 1, feature_dim), coordinate, Turn::back);
  for (Index c = 0; c < feature_dim; ++c)
    CHECK(std::abs(static_cast<double>(back(c) - row(c))) <= 2 * bound);
}

}  // namespace

TEMPLATE_TEST_CASE("rotation table: half-split pairs (c, c + D/2), angle t theta^(-2c/D)", "[cpu]",
                   float, double, long double) {
  constexpr Index dim = 10;
  std::vector<TurnedPair> pairs;
  for (Index c = 0; c < dim / 2; ++c)
    pairs.push_back({c, c + dim / 2, 2, 2 * static_cast<double>(c) / dim});
  const HalfSplitRotary rotation{.theta = 500};
  // The longer side decides how many positions there are.
  const Grid shorter{{1, 1, 7}, {1, 1, 3}};
  const Grid longer{{1, 1, 31500}, {1, 1, 64}};
  for (const bool swapped : {false, true}) {
    const OwnedTable<TestType> owned(rotation, 1, dim, swapped ? longer : shorter,
                                     swapped ? shorter : longer, SerialExecutor{});
    CHECK(owned.table.rotates());
    for (const Index position : {0, 1, 5, 1000, 31499})
      check_rotation(owned.table, pairs, 500, dim, {0, 0, position});
  }
}

TEMPLATE_TEST_CASE("rotation table: axial pairs (2c, 2c + 1), shared out over the axes", "[cpu]",
                   float, double, long double) {
  const AxialRotary rotation{.theta = 100};
  // By hand for D = 22: 11 pairs; in 2-D the rows get 6, the columns 5; in 3-D the frames 5, rows
  // and columns 3 each.
  constexpr Index dim = 22;
  std::vector<TurnedPair> pairs;
  Index next = 0;
  const auto add_axis = [&](Index axis, Index count) {
    for (Index j = 0; j < count; ++j, ++next)
      pairs.push_back(
          {2 * next, 2 * next + 1, axis, static_cast<double>(j) / static_cast<double>(count)});
  };
  SECTION("1-D") {
    add_axis(2, 11);
    const Grid grid{{1, 1, 40}, {1, 1, 4}};
    const OwnedTable<TestType> owned(rotation, 1, dim, grid, grid, SerialExecutor{});
    check_rotation(owned.table, pairs, 100, dim, {0, 0, 39});
  }
  SECTION("2-D") {
    add_axis(1, 6);
    add_axis(2, 5);
    const Grid grid{{1, 9, 7}, {1, 4, 4}};
    const OwnedTable<TestType> owned(rotation, 2, dim, grid, grid, SerialExecutor{});
    check_rotation(owned.table, pairs, 100, dim, {0, 8, 3});
    check_rotation(owned.table, pairs, 100, dim, {0, 2, 6});
  }
  SECTION("3-D, and grids of which neither holds the other") {
    add_axis(0, 5);
    add_axis(1, 3);
    add_axis(2, 3);
    const OwnedTable<TestType> owned(rotation, 3, dim, Grid{{3, 9, 7}, {1, 4, 4}},
                                     Grid{{5, 2, 8}, {1, 1, 1}}, SerialExecutor{});
    check_rotation(owned.table, pairs, 100, dim, {4, 8, 7});
    check_rotation(owned.table, pairs, 100, dim, {1, 0, 5});
  }
}

TEMPLATE_TEST_CASE("rotation table: circling angles are those of every position", "[cpu]", float,
                   double) {
  using A = TestType;
  for (const double frequency : {1.0, 0.3, 1e-3, 0.0}) {
    mhla::cpu::CirclingAngles<A> angles;
    for (const double other : {0.7, frequency, 0.2}) angles.add(other);
    double worst = 0;  // in units of u; and of what the angle's own rounding in double makes of it
    for (Index position = 0; position < 40000; ++position) {
      A cosines[3], sines[3];
      angles.at(position, cosines, sines);
      const A cosine = cosines[1], sine = sines[1];
      const long double angle =
          static_cast<long double>(position) * static_cast<long double>(frequency);
      const double allowed = ::tolerance::unit_roundoff<A> +
                             (static_cast<double>(angle) + 8) * ::tolerance::unit_roundoff<double>;
      worst = std::max({worst, static_cast<double>(std::abs(cosine - std::cos(angle))) / allowed,
                        static_cast<double>(std::abs(sine - std::sin(angle))) / allowed});
    }
    CAPTURE(frequency, worst);
    CHECK(worst <= 1);
  }
}

// In float, positions share the angles of a stretch, which a box may cut.
TEMPLATE_TEST_CASE("rotation table: a position has the same bits in any box", "[cpu]", float,
                   double) {
  using A = TestType;
  const auto check = [](const auto& rotation, int rank, const GridBox& box) {
    constexpr Index dim = 48;
    const GridBox all{{0, 0, 0}, {40, 50, 200}};
    const OwnedTable<A> whole(rotation, rank, dim, all, SerialExecutor{});
    const OwnedTable<A> part(rotation, rank, dim, box, SerialExecutor{});
    CHECK(part.workspace.size() < whole.workspace.size() / 3);
    const auto x = mhla::testing::random_tensor<A>(mhla::testing::Normal{}, 1, dim);
    for (Index i = box.begin[0]; i < box.end[0]; ++i)
      for (Index j = box.begin[1]; j < box.end[1]; ++j)
        for (Index l = box.begin[2]; l < box.end[2]; ++l) {
          auto some = x;
          auto same = x;
          part.table.turn(panel(some.view().data, 1, dim), {i, j, l}, Turn::forward);
          whole.table.turn(panel(same.view().data, 1, dim), {i, j, l}, Turn::forward);
          if (some.elements() != same.elements()) FAIL("at " << i << " " << j << " " << l);
        }
  };
  check(HalfSplitRotary{}, 1, {{0, 0, 61}, {1, 1, 101}});
  check(HalfSplitRotary{}, 1, {{0, 0, 199}, {1, 1, 200}});
  check(AxialRotary{}, 3, {{5, 10, 61}, {7, 13, 66}});
}
