// SPDX-License-Identifier: MIT
// Features of a tile of tokens: phi, scale and rotation in float, in place, after the copy has
// landed and before products read the tile, so that a feature is rounded once. The same pass
// provides the unrotated features in float, for key sums and denominators.
//
// Lanes share rows of features, and of floats, which sums of products become on their way from
// warps to lanes. A row is processed in strips: a few adjacent elements, and as many half a row
// further, so that a rotation's pairs are in one strip, half-split or interleaved. Each half of a
// strip is one access to shared memory.
#pragma once

#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/head_dims.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <int Dim>
struct Strips {
  static constexpr int half = strip_width(Dim);  // elements of each half
  static constexpr int size = 2 * half;
  static constexpr int count = Dim / size;  // of a row
  static constexpr int lanes = lanes_of_row(Dim);
  static constexpr int of_lane = (count + lanes - 1) / lanes;
  static_assert(Dim % size == 0);

  using Elements = float[std::size_t{size}];

  /// The column of a strip's element e.
  MHLA_HOST_DEVICE static constexpr int column(int n, int e = 0) {
    return n * half + e % half + e / half * (Dim / 2);
  }
  /// The row of a thread, among those that all threads process at once. A warp's rows are `apart`,
  /// so that the lanes that are served at once read different banks.
  static constexpr int rows_of_warp = 32 / lanes;
  static constexpr int apart = lanes * half * 2 < 128 ? lanes * half / 8 : 1;
  MHLA_HOST_DEVICE static constexpr int row(int thread) {
    const int warp = thread / 32;
    return warp / apart * (rows_of_warp * apart) + warp % apart + thread % 32 / lanes * apart;
  }
  static_assert(has_no_bank_conflicts<2 * half>([](int lane) {
                  return row(lane) * tile_stride(Dim) + column(lane % lanes, 0) * 2;
                }),
                "lanes would share banks");
  /// Whether it writes what the lanes of a row share.
  MHLA_DEVICE static bool leads(const Block& block) { return block.lane() % lanes == 0; }

  /// Calls f(n, i) for this lane's strips of a row, the i-th one n.
  template <class F>
  MHLA_DEVICE static void for_each(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < of_lane; ++i) {
      const int n = i * lanes + block.lane() % lanes;
      if (count % lanes == 0 || n < count) f(n, i);
    }
  }
  template <int Threads, int Rows>
  static constexpr int rows_of_thread = Rows* lanes / Threads;
  /// Calls f(n, row) for each of Rows rows, by the lanes that share it, whose n-th it is.
  template <int Threads, int Rows, class F>
  MHLA_DEVICE static void for_each_row(const Block& block, const F& f) {
    static_assert(Threads / 32 % apart == 0 && Rows % (Threads / lanes) == 0);
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < rows_of_thread<Threads, Rows>; ++n)
      f(n, n * (Threads / lanes) + row(block.thread));
  }
};

/// Reads strip n of a row of 16-bit elements.
template <class T, int Rows, int Dim>
MHLA_DEVICE void read_strip(const Tile<Rows, Dim>& tile, int row, int n,
                            typename Strips<Dim>::Elements& out) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += S::half) {
    const auto words =
        machine::read<Vector<std::uint32_t, S::half / 2>>(tile.at(row, S::column(n, e)));
    MHLA_DEVICE_UNROLL
    for (int w = 0; w < S::half / 2; ++w) {
      out[e + 2 * w] = machine::first_of<T>(words.element[w]);
      out[e + 2 * w + 1] = machine::second_of<T>(words.element[w]);
    }
  }
}
/// Rounds and writes it; `elements` becomes what was written.
template <class T, int Rows, int Dim>
MHLA_DEVICE void write_strip(const Tile<Rows, Dim>& tile, int row, int n,
                             typename Strips<Dim>::Elements& elements) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += S::half) {
    Vector<std::uint32_t, S::half / 2> words;
    MHLA_DEVICE_UNROLL
    for (int w = 0; w < S::half / 2; ++w) {
      words.element[w] = machine::rounded_pair<T>(elements[e + 2 * w], elements[e + 2 * w + 1]);
      elements[e + 2 * w] = machine::first_of<T>(words.element[w]);
      elements[e + 2 * w + 1] = machine::second_of<T>(words.element[w]);
    }
    machine::write(tile.at(row, S::column(n, e)), words);
  }
}
/// Reads strip n of Dim floats in shared memory.
template <int Dim>
MHLA_DEVICE void read_strip(Shared from, int n, typename Strips<Dim>::Elements& out) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += 4) {
    const auto four =
        machine::read<Vector<float, 4>>(from + static_cast<Shared>(S::column(n, e) * 4));
    MHLA_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) out[e + x] = four.element[x];
  }
}

/// A matrix of floats in shared memory, read and written in pairs: rows are 8 banks apart.
template <int Rows, int Cols>
struct FloatTile {
  static constexpr int rows = Rows;
  static constexpr int stride = float_tile_stride(Cols);  // bytes
  static constexpr int bytes = Rows * stride;

  static_assert(bytes % 16 == 0, "what follows would not be aligned for copies");
  static_assert(has_no_bank_conflicts<8>([](int lane) { return lane / 4 * stride + lane % 4 * 8; }),
                "pairs of accumulators would share banks");

  struct alignas(8) Pair {
    float first;
    float second;
  };
  Shared begin;

  MHLA_DEVICE Shared at(int row, int col) const {
    return begin + static_cast<Shared>(row * stride + col * 4);
  }
  MHLA_DEVICE void write_pair(int row, int col, float first, float second) const {
    machine::write(at(row, col), Pair{first, second});
  }
  /// Writes sums of products.
  template <class Sum>
  MHLA_DEVICE void write(const Block& block, Sum& sum) const {
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      write_pair(row, col, first, second);
    });
  }
  /// Strip n of a row.
  MHLA_DEVICE void read_strip(int row, int n, typename Strips<Cols>::Elements& out) const {
    fused::read_strip<Cols>(at(row, 0), n, out);
  }
  MHLA_DEVICE void write_strip(int row, int n,
                               const typename Strips<Cols>::Elements& elements) const {
    for (int e = 0; e < Strips<Cols>::size; e += 2)
      write_pair(row, Strips<Cols>::column(n, e), elements[e], elements[e + 1]);
  }
};

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
      block, of, range, tile, [&](int) { return of.scale; }, Ignore(), Ignore());
}

/// Its adjoint, of a gradient g of features: s phi'(x) o (R^T(r g) + what is added), or without R^T
/// if that is done, replaces x in the tile. weight(row) is r; add(row, i, elements) adds to the
/// lane's i-th strip.
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

/// R^T g of a tile's present tokens, in place, before sums of unrotated features are added.
template <int Threads, class T, class Map, int Rows, int Dim>
MHLA_DEVICE void turn_back(const Block& block, const FeatureTokens<T, Map, true>& of,
                           const TokenRange& range, const FloatTile<Rows, Dim>& gradient) {
  const LaneAngles<Dim, true> angles(block, of.rotation);
  for_each_token<Threads, Rows, Dim, true>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        const auto of_token = angles.of(block, place);
        Strips<Dim>::for_each(block, [&](int n, [[maybe_unused]] int i) {
          typename Strips<Dim>::Elements g;
          gradient.read_strip(row, n, g);
          angles.turn(i, of_token, Turn::back, g);
          gradient.write_strip(row, n, g);
        });
      });
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
