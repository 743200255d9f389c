// SPDX-License-Identifier: MIT
// Features of a tile of tokens: phi, scale and rotation in float, in place, after the copy has
// landed and before products read the tile, so that a feature is rounded once. The same pass
// provides the unrotated features in float, for key sums and denominators.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/fused/strips.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/tables.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// What every fused kernel is compiled for.
template <class Scalar, class FeatureMap, bool Rotates, int KeyDim, int ValueDim>
struct KernelTraits {
  using T = Scalar;
  using Map = FeatureMap;
  static constexpr bool rotates = Rotates;
  static constexpr int key_dim = KeyDim;
  static constexpr int value_dim = ValueDim;
};

/// q or k, and what computes its features: s phi(x), rotated if there is a rotation.
template <class T, class Map, bool Rotates>
struct FeatureTokens {
  Tokens<const T> x;
  Map map;
  float scale;
  RotationTable<float> rotation;
};

/// Rotates a lane's strips; where their angles are in the table's rows is known before the tokens.
/// Without a rotation it does nothing.
template <int Dim, bool Rotates>
struct LaneAngles {
  struct OfToken {};
  MHLA_DEVICE LaneAngles(const Block&, const RotationTable<float>&) {}
  MHLA_DEVICE OfToken of(const Block&, const Place&) const { return {}; }
  MHLA_DEVICE static void turn(int, const OfToken&, Turn, typename Strips<Dim>::Elements&) {}
};
template <int Dim>
class LaneAngles<Dim, true> {
  using S = Strips<Dim>;
  static constexpr int of_half = S::half / 2;  // pairs
  static constexpr int row_bytes = Dim / 2 * static_cast<int>(sizeof(Angle<float>));
  using TwoAngles = Vector<float, 4>;

 public:
  MHLA_DEVICE LaneAngles(const Block& block, const RotationTable<float>& of)
      : interleaved(static_cast<int>(of.layout.gap) == 1) {
    S::for_each(block, [&](int n, int i) {
      MHLA_DEVICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        half[i][h] = machine::load_from(of.halves.data + h * S::count + n);
        angles[i][h] = reinterpret_cast<const char*>(of.angles.data) +
                       (h * (of_half / 2) * S::count + n) * int{sizeof(TwoAngles)};
      }
    });
  }

  struct OfToken {
    TwoAngles two[std::size_t{S::of_lane}][2][std::size_t{of_half / 2}];
    bool interleaved;
  };
  /// A token's angles of all the lane's strips: loads that do not wait for one another.
  MHLA_DEVICE OfToken of(const Block& block, const Place& place) const {
    OfToken token;
    token.interleaved = interleaved;
    S::for_each(block, [&](int, int i) {
      MHLA_DEVICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const char* const from =
            angles[i][h] + machine::wide_product(half[i][h].of(place.coordinate), row_bytes);
        MHLA_DEVICE_UNROLL
        for (int v = 0; v < of_half / 2; ++v)
          token.two[i][h][v] = machine::load_from(
              reinterpret_cast<const TwoAngles*>(from + v * (S::count * int{sizeof(TwoAngles)})));
      }
    });
    return token;
  }

  /// R, or R^T, of the lane's i-th strip of a token's features.
  MHLA_DEVICE static void turn(int i, const OfToken& token, Turn turn,
                               typename S::Elements& elements) {
    MHLA_DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const auto turn_pair = [&](int p, float& x, float& y) {
        const float* const angle = token.two[i][h][p / 2].element + p % 2 * 2;
        const float sine = turn == Turn::forward ? angle[1] : -angle[1];
        const float turned = x * angle[0] - y * sine;
        y = y * angle[0] + x * sine;
        x = turned;
      };
      if (token.interleaved) {
        MHLA_DEVICE_UNROLL
        for (int p = 0; p < of_half; ++p)
          turn_pair(p, elements[h * S::half + 2 * p], elements[h * S::half + 2 * p + 1]);
      } else {
        MHLA_DEVICE_UNROLL
        for (int p = 0; p < of_half; ++p)
          turn_pair(p, elements[h * of_half + p], elements[h * of_half + p + S::half]);
      }
    }
  }

 private:
  bool interleaved;
  AngleRow half[std::size_t{S::of_lane}][2];
  const char* angles[std::size_t{S::of_lane}][2];  // in row 0
};

/// Calls f(row, place) for the rows of a tile of the range's first tokens, by the lanes that share
/// each. Without a rotation a place has no coordinates. Places are loaded first, so that their
/// loads do not wait for one another.
template <int Threads, int Rows, int Dim, bool Rotates, class F>
MHLA_DEVICE void for_each_token(const Block& block, const BlockTable& table,
                                const TokenRange& range, const F& f) {
  using S = Strips<Dim>;
  const RangeTokens token_of(table, range);
  Place places[std::size_t{S::template rows_of_thread<Threads, Rows>}];
  S::template for_each_row<Threads, Rows>(block, [&](int n, int row) {
    if constexpr (Rotates) {
      places[n] = token_of.place(row);
    } else {
      places[n] = absent;
      places[n].token = token_of.unmasked(row);
    }
  });
  S::template for_each_row<Threads, Rows>(block, [&](int n, int row) {
    if (token_of.hides(places[n].token)) places[n].token = -1;
    f(row, places[n]);
  });
}

/// Replaces a tile of the range's first tokens by phi^r, times weight(row), the scale included.
/// use(n, i, elements) gets every weighted strip of present tokens, the lane's i-th: before
/// rotation or, without one, as rounded in the tile, so that sums which nearly cancel products of
/// the tile are of the same numbers. row_end(row) follows each row, where the warp meets.
/// Synchronizes the thread block before and after.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim, class Weight, class Use,
          class RowEnd>
MHLA_DEVICE void make_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                               const TokenRange& range, const Tile<Rows, Dim>& tile,
                               const Weight& weight, const Use& use, const RowEnd& row_end) {
  using S = Strips<Dim>;
  using Elements = typename S::Elements;
  const LaneAngles<Dim, Rotates> angles(block, of.rotation);
  for_each_token<Threads, Rows, Dim, Rotates>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token == absent.token) {
          Elements zeros = {};
          S::for_each(block, [&](int n, int) { write_strip<T>(tile, row, n, zeros); });
        } else {
          const float factor = weight(row);
          const auto of_token = angles.of(block, place);
          S::for_each(block, [&](int n, int i) {
            Elements elements;
            read_strip<T>(tile, row, n, elements);
            for (float& x : elements) x = factor * of.map.value(x);
            if constexpr (Rotates) {
              use(n, i, elements);
              angles.turn(i, of_token, Turn::forward, elements);
            }
            write_strip<T>(tile, row, n, elements);
            if constexpr (!Rotates) use(n, i, elements);
          });
        }
        row_end(row);
      });
}
/// Makes s phi^r alone.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                               const TokenRange& range, const Tile<Rows, Dim>& tile) {
  make_features<Threads>(
      block, of, range, tile, [&](int) { return of.scale; },
      [](int, int, const typename Strips<Dim>::Elements&) {}, [](int) {});
}

/// Its adjoint, of a gradient g of features: s phi'(x) o (R^T(r g) + what is added), or without R^T
/// if that is done, replaces x in the tile. weight(row) is r; add(row, i, elements) adds to the
/// lane's i-th strip. Synchronizes the thread block before and after.
template <int Threads, bool turns_back, class T, class Map, bool Rotates, int Rows, int Dim,
          class Weight, class Add>
MHLA_DEVICE void unmake_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                 const TokenRange& range, const Tile<Rows, Dim>& tile,
                                 const FloatTile<Rows, Dim>& gradient, const Weight& weight,
                                 const Add& add) {
  const LaneAngles<Dim, turns_back> angles(block, of.rotation);
  for_each_token<Threads, Rows, Dim, turns_back>(block, of.x.table, range,
                                                 [&](int row, const Place& place) {
                                                   if (place.token < 0) return;
                                                   const float r = weight(row);
                                                   const auto of_token = angles.of(block, place);
                                                   Strips<Dim>::for_each(block, [&](int n, int i) {
                                                     typename Strips<Dim>::Elements g, x;
                                                     gradient.read_strip(row, n, g);
                                                     for (float& element : g) element *= r;
                                                     angles.turn(i, of_token, Turn::back, g);
                                                     add(row, i, g);
                                                     read_strip<T>(tile, row, n, x);
                                                     for (int e = 0; e < Strips<Dim>::size; ++e)
                                                       g[e] *= of.scale * of.map.derivative(x[e]);
                                                     write_strip<T>(tile, row, n, g);
                                                   });
                                                 });
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
