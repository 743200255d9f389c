// SPDX-License-Identifier: MIT
// The tables of a call: one launch fills them, however many there are, and each is what the
// geometry, the rotation and mix say.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/tables.cuh>
#include <mhla/mhla.hpp>
#include <mhla/packed.hpp>
#include <vector>

#include "tests/cuda/machine.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using cuda::Place;

template <class Geometry, class Rotation>
using Variant = Attention<Relu, Geometry, Bidirectional, MixedKeySum, Rotation>;

/// A call's tables, poisoned and filled.
template <class A, class V>
struct Tables {
  Problem problem;
  Workspace workspace;
  Arena arena{workspace};
  cuda::Extents<V> extents;
  cuda::RotationTable<A> rotation;
  std::vector<A> mix, packed;
  long launches;

  Tables(const V& attention, const Shape& shape)
      : problem(checked_problem(attention, shape)),
        workspace(measured(attention, problem)),
        extents(arena, attention, problem, 1),
        rotation(angles(arena, attention, problem)) {
    std::fill_n(workspace.data(), workspace.size(), std::byte{0x5a});
    const Index rows = shape.mix_query_blocks, columns = shape.mix_key_blocks;
    for (Index i = 0; i < shape.mix_heads * rows * columns; ++i) mix.push_back(static_cast<A>(i));
    packed.assign(
        static_cast<std::size_t>(shape.mix_heads * extents.mix_rows * extents.mix_columns), A(-1));
    const auto device = machine::device();
    const long before = machine::context().launches;
    // The matrix is read transposed.
    fill_tables(device, attention, extents.queries.table, extents.keys.table, rotation,
                cuda::PackMixing<A>{
                    {mix.data(), {shape.mix_heads, rows, columns}, {rows * columns, 1, rows}},
                    extents.mix_rows,
                    extents.mix_columns,
                    {packed.data(), static_cast<Index>(packed.size())}});
    launches = machine::context().launches - before;
    for (Index h = 0, at = 0; h < shape.mix_heads; ++h)
      for (Index i = 0; i < extents.mix_rows; ++i)
        for (Index b = 0; b < extents.mix_columns; ++b, ++at)
          if (packed[static_cast<std::size_t>(at)] != static_cast<A>((h * columns + b) * rows + i))
            FAIL("packed matrix");
    check_blocks(attention, extents.queries.table);
    check_blocks(attention, extents.keys.table);
    if constexpr (!std::is_same_v<typename V::RotationType, NoRotation>) check_angles(attention);
  }
  static cuda::RotationTable<A> angles(Arena& arena, const V& attention, const Problem& problem) {
    return cuda::rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   problem.feature_dim, problem.grid_box());
  }
  static Index measured(const V& attention, const Problem& problem) {
    Arena arena;
    static_cast<void>(cuda::Extents<V>(arena, attention, problem, 1));
    angles(arena, attention, problem);
    return arena.used();
  }

  static void check_blocks(const V& attention, const cuda::BlockTable& table) {
    cuda::for_each_sequence(attention, table.grid, [&](const cuda::Sequence& sequence) {
      Grid grid = table.grid;
      if (cuda::is_packed<V>) grid.extent[2] = sequence.length;
      std::vector<Index> next(static_cast<std::size_t>(sequence.blocks));
      for (Index t = 0; t < sequence.length; ++t) {
        const Index b = grid.block_of(t);
        const Index entry = next[static_cast<std::size_t>(b)]++;
        const Place place = table.places[(sequence.first_block + b) * table.block_tokens + entry];
        CHECK(place.token == sequence.begin + t);
        for (int a = 0; a < 3; ++a) CHECK(place.coordinate[a] == grid.coordinate(t, a));
      }
      for (Index b = 0; b < sequence.blocks; ++b) {
        CHECK(table.mix_rows[sequence.first_block + b] == b);
        for (Index e = next[static_cast<std::size_t>(b)]; e < table.block_tokens; ++e)
          CHECK(table.places[(sequence.first_block + b) * table.block_tokens + e].token == -1);
      }
    });
  }
  void check_angles(const V& attention) const {
    for (int a = 0; a < 3; ++a) {
      const auto& axis = rotation.axis[a];
      for (Index position = 0; position < axis.positions; ++position)
        for (Index n = 0; n < rotation.pairs; ++n) {
          const Index pair = rotation.pair_of(n);
          const auto angle =
              rotation.angles[(rotation.first_row[a][a] + position) * rotation.pairs + n];
          const bool own = pair >= axis.first && pair < axis.first + axis.count;
          const double radians =
              own ? static_cast<double>(position) *
                        attention.rotation.frequency(pair - axis.first, axis.count)
                  : 0;
          CHECK(angle.cosine == (own ? static_cast<A>(std::cos(radians)) : A(0)));
          CHECK(angle.sine == (own ? static_cast<A>(std::sin(radians)) : A(0)));
        }
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("tables: one launch fills them", "[cuda]", float, double) {
  Variant<Blocks3D, AxialRotary> video{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}},
                                       .scale = 1};
  const Shape shape{1, 2, 1, 105, 105, 22, 4, 2, 8, 8};
  CHECK(Tables<TestType, decltype(video)>(video, shape).launches == 1);
  video.key_blocks = {.grid = {2, 4, 9}, .block = {2, 2, 2}};
  CHECK(
      Tables<TestType, decltype(video)>(video, Shape{1, 2, 1, 105, 72, 4, 4, 1, 8, 10}).launches ==
      1);
  // Blocks longer than their sequence, of a corner of mix; more angles than fit into one launch.
  const Variant<Blocks1D, HalfSplitRotary> line{.blocks = {.block = 40},
                                                .mixing = {.leading_corner = true}};
  CHECK(Tables<TestType, decltype(line)>(line, Shape{1, 1, 1, 33, 33, 6, 4, 1, 3, 2}).launches ==
        1);
  CHECK(Tables<TestType, decltype(line)>(line, Shape{1, 1, 1, 3, 3, 1030, 4, 1, 1, 1}).launches ==
        3);
  const Variant<Blocks2D, NoRotation> image{.blocks = {.grid = {5, 7}, .block = {2, 3}}};
  CHECK(Tables<TestType, decltype(image)>(image, Shape{1, 1, 1, 35, 35, 6, 4, 1, 9, 9}).launches ==
        1);
}

TEST_CASE("tables: packed sequences fill a kernel's arguments several times", "[cuda]") {
  using V = Variant<Blocks1D, HalfSplitRotary>;
  std::vector<std::int32_t> offsets{0};
  for (const int sequences : {1, 16, 17, 40}) {
    while (static_cast<int>(offsets.size()) <= sequences)
      offsets.push_back(offsets.back() + 1 + static_cast<std::int32_t>(offsets.size()) * 5 % 11);
    const Packed<V, std::int32_t> packed(V{.blocks = {.block = 4}},
                                         {offsets.data(), static_cast<Index>(offsets.size())});
    const Index tokens = offsets.back();
    const Tables<float, Packed<V, std::int32_t>> tables(
        packed, Shape{1, 2, 2, tokens, tokens, 8, 4, 2, 3, 3});
    CHECK(tables.launches == (sequences + 15) / 16);
  }
}
