// SPDX-License-Identifier: MIT
#include "tests/fuzz/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace fuzz {

namespace {

using Real = long double;

// A value, and the sum of |terms| that it is formed from, whatever cancels. If no term goes through
// more than K roundings, a result is off by at most K u mass (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1), in whatever order it is summed. So one set of formulas gives
// both the results and their bounds.
struct Number {
  Real value = 0;
  double mass = 0;

  Number& operator+=(const Number& other) {
    value += other.value;
    mass += other.mass;
    return *this;
  }
};
inline Number operator*(const Number& a, const Number& b) {
  return {a.value * b.value, a.mass * b.mass};
}
Number operator+(Number a, const Number& b) { return a += b; }
Number operator-(const Number& a, const Number& b) { return {a.value - b.value, a.mass + b.mass}; }
Number exact(Real x) { return {x, static_cast<double>(std::abs(x))}; }

// A value of which more is known than that K roundings made it: `roundings` of its own, as an
// exponential of 20 has 20. K is never less than 32, and no term has more than two such factors.
constexpr double least_roundings = 32;
Number rounded(Real value, double roundings) {
  return {value, static_cast<double>(std::abs(value)) * (1 + 2 * roundings / least_roundings)};
}

using Row = std::vector<Number>;

std::size_t at(Size i) { return static_cast<std::size_t>(i); }

inline Number dot(const Row& a, const Row& b) {
  Number sum;
  for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}
double square(const Number& a) { return static_cast<double>(a.value * a.value); }
inline void add(Row& to, const Number& factor, const Row& from) {
  for (std::size_t c = 0; c < to.size(); ++c) to[c] += factor * from[c];
}

void add_squares(std::vector<double>& to, double factor, const Row& from) {
  for (std::size_t c = 0; c < to.size(); ++c) to[c] += factor * square(from[c]);
}

// The feature map of a call.
class Features {
 public:
  Features(const Problem& problem, const Precision& precision)
      : map_(problem.policies.map), numbers_(problem.numbers), smallest_(precision.smallest) {}

  Row of(const std::vector<double>& x) const {
    Row phi;
    const Size dim = static_cast<Size>(x.size());
    switch (map_) {
      case Map::softmax:
        return softmax({x.begin(), x.end()});
      case Map::hedgehog: {
        std::vector<Real> z;
        for (const double e : x) z.push_back(2 * Real(e));
        for (const double e : x) z.push_back(-2 * Real(e));
        return softmax(z);
      }
      case Map::dpfp:
        for (Size j = 1; j <= numbers_.nu; ++j)
          for (Size c = 0; c < 2 * dim; ++c)
            phi.push_back(exact(rectified(x, c)) * exact(rectified(x, partner(c, j, dim))));
        return phi;
      case Map::favor:
        for (Size r = 0; r < numbers_.features; ++r) {
          Number exponent;
          for (Size c = 0; c < dim; ++c) {
            const Number scaled = exact(input_scale(dim) * x[at(c)]);
            exponent += exact(projection(r, c, dim)) * scaled + scaled * scaled * exact(-0.5L);
          }
          phi.push_back(exponential(exponent.value,
                                    6 + static_cast<double>(dim + 8) * exponent.mass,
                                    1 / std::sqrt(static_cast<Real>(numbers_.features))));
        }
        return phi;
      default:
        for (const double e : x) phi.push_back(elementwise(e));
        return phi;
    }
  }

  // The square of phi'(x); 0 of maps of whole rows.
  double squared_slope(double x) const {
    const bool of_rows =
        map_ == Map::softmax || map_ == Map::hedgehog || map_ == Map::dpfp || map_ == Map::favor;
    return of_rows ? 0 : square(derivative(x));
  }

  // The gradient in x of <gradient, phi(x)>.
  Row pull_back(const std::vector<double>& x, const Row& phi, const Row& gradient) const {
    const Size dim = static_cast<Size>(x.size());
    Row dx(x.size());
    switch (map_) {
      case Map::softmax: {
        const Number inner = dot(gradient, phi);
        for (std::size_t c = 0; c < dx.size(); ++c) dx[c] = phi[c] * (gradient[c] - inner);
        return dx;
      }
      case Map::hedgehog: {
        const Number inner = dot(gradient, phi);
        for (std::size_t c = 0; c < dx.size(); ++c) {
          const std::size_t m = c + dx.size();
          dx[c] = exact(2) * (phi[c] * (gradient[c] - inner) - phi[m] * (gradient[m] - inner));
        }
        return dx;
      }
      case Map::dpfp:
        for (Size j = 1; j <= numbers_.nu; ++j)
          for (Size c = 0; c < 2 * dim; ++c) {
            const Size other = partner(c, j, dim);
            const Number& g = gradient[at((j - 1) * 2 * dim + c)];
            for (const auto& [mine, factor] : {std::pair{c, other}, std::pair{other, c}})
              if (rectified(x, mine) > 0)
                dx[at(mine % dim)] += g * exact(rectified(x, factor)) * exact(mine < dim ? 1 : -1);
          }
        return dx;
      case Map::favor: {
        const Number scale = exact(input_scale(dim));
        Number sum;
        for (Size r = 0; r < numbers_.features; ++r) {
          const Number weight = gradient[at(r)] * phi[at(r)];
          sum += weight;
          for (Size c = 0; c < dim; ++c) dx[at(c)] += weight * exact(projection(r, c, dim));
        }
        for (Size c = 0; c < dim; ++c)
          dx[at(c)] = scale * (dx[at(c)] - scale * exact(x[at(c)]) * sum);
        return dx;
      }
      default:
        for (std::size_t c = 0; c < dx.size(); ++c) dx[c] = gradient[c] * derivative(x[c]);
        return dx;
    }
  }

 private:
  Number elementwise(double x) const {
    const Real positive = std::max(Real(x), Real(0));
    switch (map_) {
      case Map::identity:
        return exact(x);
      case Map::relu:
        return exact(positive + numbers_.feature_epsilon);
      case Map::squared_relu:
        return exact(positive * positive + numbers_.feature_epsilon);
      case Map::elu_plus_one:
        return x > 0 ? exact(Real(x) + 1) : exponential(x, 4, 1);
      default:
        return exponential(x, 4, 1);
    }
  }
  Number derivative(double x) const {
    switch (map_) {
      case Map::identity:
        return exact(1);
      case Map::relu:
        return exact(x > 0 ? 1 : 0);
      case Map::squared_relu:
        return exact(x > 0 ? 2 * Real(x) : 0);
      case Map::elu_plus_one:
        return x > 0 ? exact(1) : exponential(x, 4, 1);
      default:
        return exponential(x, 4, 1);
    }
  }
  // factor e^x; where it leaves the range of normal numbers, its error is absolute.
  Number exponential(Real x, double roundings, Real factor) const {
    Number result = rounded(factor * std::exp(x), roundings);
    result.mass += smallest_;
    return result;
  }
  // Every exponent is a difference from the largest: |difference| roundings.
  Row softmax(const std::vector<Real>& z) const {
    Row phi;
    if (z.empty()) return phi;
    const Real largest = *std::max_element(z.begin(), z.end());
    Real sum = 0;
    Real sum_of_roundings = 0;
    for (const Real e : z) {
      sum += std::exp(e - largest);
      sum_of_roundings += std::exp(e - largest) * (largest - e);
    }
    const double common =
        static_cast<double>(sum_of_roundings / sum) + 10 + static_cast<double>(z.size());
    for (const Real e : z)
      phi.push_back(exponential(e - largest, static_cast<double>(largest - e) + common, 1 / sum));
    return phi;
  }

  static Real rectified(const std::vector<double>& x, Size c) {
    const Size dim = static_cast<Size>(x.size());
    return std::max(c < dim ? x[at(c)] : -x[at(c - dim)], 0.0);
  }
  // The element of [relu(x), relu(-x)] that, rolled by j, meets element c.
  static Size partner(Size c, Size j, Size dim) {
    Size p = c - j;
    while (p < 0) p += 2 * dim;
    return p;
  }
  static Real input_scale(Size dim) { return 1 / std::sqrt(std::sqrt(static_cast<Real>(dim))); }
  double projection(Size r, Size c, Size dim) const { return numbers_.projection[at(r * dim + c)]; }

  Map map_;
  const Numbers& numbers_;
  double smallest_;
};

// Turns pairs of features by position times frequency, or back.
class Turn {
 public:
  Turn(const Problem& problem, const Precision& precision)
      : policies_(problem.policies),
        theta_(problem.numbers.theta),
        angle_roundings_(16 * std::numeric_limits<double>::epsilon() / 2 / precision.roundoff) {}

  void operator()(Row& row, const std::array<Size, 3>& coordinates, bool back) const {
    const Size pairs = static_cast<Size>(row.size()) / 2;
    if (policies_.rotation == Rotation::half_split) {
      for (Size c = 0; c < pairs; ++c)
        turn(row[at(c)], row[at(c + pairs)], angle(coordinates[2], c, pairs), back);
    } else if (policies_.rotation == Rotation::axial) {
      const Size share = pairs / policies_.rank;  // of every axis but the first, which has the rest
      Size pair = 0;
      for (int axis = 0; axis < policies_.rank; ++axis) {
        const Size own = axis == 0 ? pairs - (policies_.rank - 1) * share : share;
        for (Size j = 0; j < own; ++j, ++pair)
          turn(row[at(2 * pair)], row[at(2 * pair + 1)],
               angle(coordinates[at(axis + 3 - policies_.rank)], j, own), back);
      }
    }
  }

 private:
  Real angle(Size position, Size j, Size count) const {
    return static_cast<Real>(position) *
           std::pow(Real(theta_), -static_cast<Real>(j) / static_cast<Real>(count));
  }
  // An angle is computed in double: a power with an exponent up to ln(10000), and two products.
  void turn(Number& a, Number& b, Real angle, bool back) const {
    const double error = 2 * (angle_roundings_ * static_cast<double>(angle) + 2) / least_roundings;
    Number cosine = exact(std::cos(angle));
    Number sine = exact(back ? -std::sin(angle) : std::sin(angle));
    cosine.mass += error;
    sine.mass += error;
    const Number first = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = first;
  }

  Policies policies_;
  double theta_;
  double angle_roundings_;
};

// A tensor of results, and the squares of their terms: see Estimate.
struct Sums {
  Dense<Number> numbers;
  Dense<double> squares;

  explicit Sums(const Extents& extent) : numbers(extent), squares(extent) {}
  Number& operator()(Size a, Size b, Size c, Size d) { return numbers(a, b, c, d); }
};

// The tokens of one head on one side of a sequence.
struct Tokens {
  std::vector<std::vector<double>> x;
  std::vector<Row> plain, rotated;           // phi, R phi
  std::vector<Row> d_plain, d_rotated;       // their gradients
  std::vector<std::vector<double>> squares;  // of the terms of both: see Estimate
  std::vector<Size> block, offset;           // of every token, and where in its block it lies
  std::vector<bool> takes_part;

  Tokens(const Dense<double>& tensor, Size item, Size head, Size first, const Grid& grid,
         const std::vector<bool>& mask, const Features& features, const Turn& turn) {
    std::vector<Size> filled(at(grid.blocks()));
    for (Size t = 0; t < grid.tokens(); ++t) {
      std::vector<double> row;
      for (Size c = 0; c < tensor.extent[3]; ++c) row.push_back(tensor(item, head, first + t, c));
      takes_part.push_back(mask.empty() || mask[at(item * tensor.extent[2] + first + t)]);
      if (!takes_part.back()) std::fill(row.begin(), row.end(), 0.0);
      x.push_back(row);
      plain.push_back(features.of(row));
      rotated.push_back(plain.back());
      turn(rotated.back(), grid.coordinates(t), false);
      d_plain.emplace_back(plain.back().size());
      d_rotated.emplace_back(plain.back().size());
      squares.emplace_back(plain.back().size());
      block.push_back(grid.block_of(t));
      offset.push_back(filled[at(block.back())]++);
    }
  }
  std::size_t size() const { return x.size(); }

  // Adds the gradients in x to those of a tensor.
  void pull_back(Size item, Size head, Size first, const Grid& grid, const Features& features,
                 const Turn& turn, Sums& gradient) {
    for (std::size_t t = 0; t < size(); ++t) {
      if (!takes_part[t]) continue;
      const Size token = static_cast<Size>(t);
      turn(d_rotated[t], grid.coordinates(token), true);
      add(d_rotated[t], exact(1), d_plain[t]);
      const Row dx = features.pull_back(x[t], plain[t], d_rotated[t]);
      for (std::size_t c = 0; c < dx.size(); ++c) {
        gradient(item, head, first + token, static_cast<Size>(c)) += dx[c];
        // (A rotation keeps the squares' sum over a pair.)
        if (squares[t][c] > 0 && dx.size() == squares[t].size())
          gradient.squares(item, head, first + token, static_cast<Size>(c)) +=
              squares[t][c] * features.squared_slope(x[t][c]);
      }
    }
  }
};

// The mixing matrix of a head of a sequence, from mix.
class Weights {
 public:
  Weights(const Problem& problem, const Sequence& sequence, Size matrix)
      : problem_(problem),
        queries_(sequence.queries),
        keys_(sequence.keys),
        matrix_(matrix),
        terms_(problem.numbers.terms),
        entries_(Extents{1, 1, queries_.blocks(), keys_.blocks()}) {
    switch (problem.policies.mixing) {
      case Mixing::dense:
        for_each([&](Size i, Size b) { entry(i, b) = parameter(i, b); });
        break;
      case Mixing::separable:
        for_each([&](Size i, Size b) {
          for (Size r = 0; r < terms_; ++r) entry(i, b) += product_of_factors(r, i, b, -1);
        });
        break;
      case Mixing::recurrent:
        for_each([&](Size i, Size b) {
          if (i == b) entry(i, b) = parameter(row(i), 0);
        });
        for (Size r = 0; r < terms_; ++r)
          for (Size j = 0; j < keys_.blocks(); ++j) {
            const Row path = path_from(r, j);
            for (Size i = j + 1; i < queries_.blocks(); ++i)
              entry(i, j) += parameter(row(i), 1 + r) * path[at(i)];
          }
    }
  }
  const Number& operator()(Size i, Size b) const { return entries_(0, 0, i, b); }

  // Adds to the gradient of mix, from that of the matrix.
  void pull_back(const Dense<Number>& gradient, Dense<Number>& dmix) const {
    const auto add_to = [&](Size r, Size c, const Number& d) { dmix(0, matrix_, r, c) += d; };
    switch (problem_.policies.mixing) {
      case Mixing::dense:
        return for_each([&](Size i, Size b) { add_to(i, b, gradient(0, 0, i, b)); });
      case Mixing::separable:
        return for_each([&](Size i, Size b) {
          for (Size r = 0; r < terms_; ++r)
            for (int axis = 3 - problem_.policies.rank; axis < 3; ++axis)
              add_to(r, place_of_factor(axis, i, b),
                     gradient(0, 0, i, b) * product_of_factors(r, i, b, axis));
        });
      case Mixing::recurrent:
        for_each([&](Size i, Size b) {
          if (i == b) add_to(row(i), 0, gradient(0, 0, i, b));
        });
        for (Size r = 0; r < terms_; ++r)
          for (Size j = 0; j + 1 < queries_.blocks(); ++j) {
            const Row path = path_from(r, j);
            Number d_path;
            for (Size i = queries_.blocks() - 1; i > j; --i) {
              add_to(row(i), 1 + r, gradient(0, 0, i, j) * path[at(i)]);
              d_path += gradient(0, 0, i, j) * parameter(row(i), 1 + r);
              if (i == j + 1) {
                add_to(row(i), 1 + terms_ + r, d_path);
              } else {
                add_to(row(i), 1 + 2 * terms_ + r, d_path * path[at(i - 1)]);
                d_path = d_path * parameter(row(i), 1 + 2 * terms_ + r);
              }
            }
          }
    }
  }

 private:
  template <class F>
  void for_each(const F& f) const {
    for (Size i = 0; i < queries_.blocks(); ++i)
      for (Size b = 0; b < keys_.blocks(); ++b) f(i, b);
  }
  Number& entry(Size i, Size b) { return entries_(0, 0, i, b); }
  Number parameter(Size r, Size c) const { return exact(problem_.mix(0, matrix_, r, c)); }

  // Of a recurrence: b of block j + 1 times the decays up to block i, for every i > j.
  Size row(Size i) const { return problem_.mix.extent[2] == 1 ? 0 : i; }
  Row path_from(Size r, Size j) const {
    Row path(at(queries_.blocks()));
    for (Size i = j + 1; i < queries_.blocks(); ++i)
      path[at(i)] = i == j + 1 ? parameter(row(i), 1 + terms_ + r)
                               : path[at(i - 1)] * parameter(row(i), 1 + 2 * terms_ + r);
    return path;
  }

  // Of a Kronecker product: where the factor of an axis stands in its row, and the product of all
  // axes' but `without`.
  static Size along(const Grid& grid, int axis, Size block) {
    const Size rest = axis == 0   ? block / grid.layout(2) / grid.layout(1)
                      : axis == 1 ? block / grid.layout(2)
                                  : block;
    return rest % grid.layout(axis);
  }
  Size place_of_factor(int axis, Size i, Size b) const {
    Size before = 0;
    for (int a = 3 - problem_.policies.rank; a < axis; ++a)
      before += queries_.layout(a) * keys_.layout(a);
    return before + along(queries_, axis, i) * keys_.layout(axis) + along(keys_, axis, b);
  }
  Number product_of_factors(Size r, Size i, Size b, int without) const {
    Number product = exact(1);
    for (int axis = 3 - problem_.policies.rank; axis < 3; ++axis)
      if (axis != without) product = product * parameter(r, place_of_factor(axis, i, b));
    return product;
  }

  const Problem& problem_;
  Grid queries_, keys_;
  Size matrix_, terms_;
  Dense<Number> entries_;
};

class Attention {
 public:
  Attention(const Problem& problem, const Precision& precision, bool gradients)
      : problem_(problem),
        precision_(precision),
        gradients_(gradients),
        features_(problem, precision),
        turn_(problem, precision),
        y_(Extents{problem.q.extent[0], problem.q.extent[1], problem.q.extent[2],
                   problem.v.extent[3]}),
        dq_(problem.q.extent),
        dk_(problem.k.extent),
        dv_(problem.v.extent),
        dmix_(problem.mix.extent) {
    // As many roundings as a term can meet: sums over tokens, blocks, features, columns and heads,
    // each twice in a gradient, and a product's own.
    const Size features = feature_dim(problem.policies.map, problem.numbers, problem.q.extent[3]);
    const Size columns = problem.v.extent[3];
    const Size sums = problem.q.extent[1] + problem.q.extent[2] + problem.k.extent[2] +
                      problem.q.extent[3] + features + columns + problem.mix.extent[2] +
                      problem.mix.extent[3];
    // An entry of a structured mixing's matrix is a product of up to as many factors as blocks.
    Size factors = 0;
    if (problem.policies.mixing != Mixing::dense)
      for (const Sequence& s : problem.sequences)
        factors =
            std::max(factors, 8 + s.queries.blocks() + s.keys.blocks() + problem.numbers.terms);
    roundings_ = least_roundings + 2 * static_cast<double>(sums + factors);
    dmix_roundings_ = roundings_ + static_cast<double>(features * (columns + 1) +
                                                       problem.q.extent[0] * problem.q.extent[1] +
                                                       factors * factors);
  }

  Results run() {
    const Size group = problem_.k.extent[1] == 0 ? 0 : problem_.q.extent[1] / problem_.k.extent[1];
    for (const Sequence& s : problem_.sequences)
      for (Size kv_head = 0; kv_head < problem_.k.extent[1]; ++kv_head) {
        Tokens keys(problem_.k, s.item, kv_head, s.first, s.keys, problem_.key_mask, features_,
                    turn_);
        for (Size h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          Tokens queries(problem_.q, s.item, h, s.first, s.queries, problem_.query_mask, features_,
                         turn_);
          head(s, h, kv_head, queries, keys);
          if (gradients_) queries.pull_back(s.item, h, s.first, s.queries, features_, turn_, dq_);
        }
        if (gradients_) keys.pull_back(s.item, kv_head, s.first, s.keys, features_, turn_, dk_);
      }
    return {estimates(y_, roundings_), estimates(dq_, roundings_), estimates(dk_, roundings_),
            estimates(dv_, roundings_), estimates(dmix_, dmix_roundings_)};
  }

 private:
  bool sees(const Tokens& queries, const Tokens& keys, std::size_t t, std::size_t j) const {
    if (!keys.takes_part[j]) return false;
    if (problem_.policies.causality == Causality::causal) return j <= t;
    return problem_.policies.causality == Causality::bidirectional ||
           keys.block[j] <= queries.block[t];
  }

  // The query whose features stand in den_t beside key j: t's own, or under MixedProduct the one at
  // t's offset in j's block.
  static std::size_t query_at(const Tokens& queries, Size block, Size offset) {
    std::size_t u = 0;
    while (queries.block[u] != block || queries.offset[u] != offset) ++u;
    return u;
  }

  // A query and a key: the products of their features are times the scale.
  struct Pair {
    std::size_t j, u;
    Number m, inner, unrotated;
  };

  // Under Precision::fast: what a pair's terms of the gradients add to squares. u = dy / den, and v
  // is less y under a normalizer, which den's gradient takes away.
  void add_squares_of_pair(const Pair& p, Tokens& queries, std::size_t t, Tokens& keys,
                           const Row& u, const Row& v_less_y, double* dv, double& dm) {
    double d_squares = 0;
    for (std::size_t c = 0; c < u.size(); ++c) d_squares += square(u[c]) * square(v_less_y[c]);
    dm += square(p.inner) * d_squares;
    const double weighted = square(exact(problem_.numbers.scale) * p.m) * d_squares;
    add_squares(queries.squares[t], weighted, keys.rotated[p.j]);
    add_squares(keys.squares[p.j], weighted, queries.rotated[t]);
    for (std::size_t c = 0; c < u.size(); ++c) dv[c] += square(p.m * p.inner * u[c]);
  }

  void head(const Sequence& s, Size h, Size kv_head, Tokens& queries, Tokens& keys) {
    const Normalizer normalizer = problem_.policies.normalizer;
    const bool products = normalizer == Normalizer::mixed_product;
    const bool normalizes = normalizer != Normalizer::unnormalized;
    const bool same_dots = !products && problem_.policies.rotation == Rotation::none;
    const Size matrix = problem_.mix.extent[1] == 1 ? 0 : h;
    const Number scale = exact(problem_.numbers.scale);
    const Size columns = problem_.v.extent[3];
    const Weights weights(problem_, s, matrix);
    Dense<Number> d_weights(Extents{1, 1, s.queries.blocks(), s.keys.blocks()});
    std::vector<Row> values;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      Row row;
      for (Size c = 0; c < columns; ++c)
        row.push_back(keys.takes_part[j]
                          ? exact(problem_.v(s.item, kv_head, s.first + static_cast<Size>(j), c))
                          : Number{});
      values.push_back(row);
    }
    for (std::size_t t = 0; t < queries.size(); ++t) {
      if (!queries.takes_part[t]) continue;
      const Size token = s.first + static_cast<Size>(t);
      std::vector<Pair> pairs;
      Row numerator(at(columns));
      Number den;
      for (std::size_t j = 0; j < keys.size(); ++j) {
        if (!sees(queries, keys, t, j)) continue;
        Pair p{j, t, weights(queries.block[t], keys.block[j]), {}, {}};
        if (products) p.u = query_at(queries, keys.block[j], queries.offset[t]);
        p.inner = scale * dot(queries.rotated[t], keys.rotated[j]);
        p.unrotated = same_dots    ? p.inner
                      : normalizes ? scale * dot(queries.plain[p.u], keys.plain[j])
                                   : Number{};
        add(numerator, p.m * p.inner, values[j]);
        if (normalizes) den += p.m * p.unrotated;
        pairs.push_back(p);
      }
      if (normalizes) {
        den += exact(problem_.numbers.normalizer_epsilon);
      } else {
        den = exact(1);
      }
      if (den.mass == 0) continue;  // every term is 0: so are y and the gradients
      Row y;
      for (Size c = 0; c < columns; ++c) {
        y.push_back(quotient(numerator[at(c)], den));
        y_(s.item, h, token, c) = y.back();
      }
      if (problem_.numbers.fast)
        for (const Pair& p : pairs)
          for (Size c = 0; c < columns; ++c)
            y_.squares(s.item, h, token, c) +=
                square(p.m * p.inner * values[p.j][at(c)]) / square(den);
      if (!gradients_) continue;

      Row dy;
      for (Size c = 0; c < columns; ++c) dy.push_back(exact(problem_.dy(s.item, h, token, c)));
      Row u;  // which the library forms: see quotient
      for (const Number& element : dy) u.push_back(quotient(element, den));
      const Number d_den = exact(-1) * quotient(dot(dy, y), den);
      for (const Pair& p : pairs) {
        const Number d_weight = quotient(dot(dy, values[p.j]), den);
        Number& d_m = d_weights(0, 0, queries.block[t], keys.block[p.j]);
        d_m += p.inner * d_weight;
        add(queries.d_rotated[t], scale * p.m * d_weight, keys.rotated[p.j]);
        add(keys.d_rotated[p.j], scale * p.m * d_weight, queries.rotated[t]);
        for (Size c = 0; c < columns; ++c)
          dv_(s.item, kv_head, s.first + static_cast<Size>(p.j), c) += p.m * p.inner * u[at(c)];
        if (problem_.numbers.fast && columns > 0) {
          Row v_less_y = values[p.j];
          for (Size c = 0; c < columns && normalizes; ++c)
            v_less_y[at(c)] = v_less_y[at(c)] - y[at(c)];
          add_squares_of_pair(p, queries, t, keys, u, v_less_y,
                              &dv_.squares(s.item, kv_head, s.first + static_cast<Size>(p.j), 0),
                              dmix_.squares(0, matrix, queries.block[t], keys.block[p.j]));
        }
        if (!normalizes) continue;
        d_m += p.unrotated * d_den;
        add(queries.d_plain[p.u], scale * p.m * d_den, keys.plain[p.j]);
        add(keys.d_plain[p.j], scale * p.m * d_den, queries.plain[p.u]);
      }
    }
    if (gradients_) weights.pull_back(d_weights, dmix_.numbers);
  }

  // a / den, to whose error that of den adds. None can be told where den is all rounding, or so
  // small that the quotient leaves the range of the numbers that sums are formed in.
  Number quotient(const Number& a, const Number& den) const {
    const double size = static_cast<double>(std::abs(den.value));
    const double condition = den.mass / size;
    const double mass = (a.mass + static_cast<double>(std::abs(a.value)) * condition) / size;
    if (!(condition * (roundings_ * precision_.roundoff + precision_.of_factors) < 0.125) ||
        !(mass < precision_.largest))
      return {0, std::numeric_limits<double>::infinity()};
    return {a.value / den.value, mass};
  }

  // Roundings to higher than the first order stay below a quarter of the first (see quotient).
  Dense<Estimate> estimates(const Sums& sums, double roundings) const {
    Dense<Estimate> result(sums.numbers.extent);
    const double share = roundings * precision_.roundoff + precision_.of_factors;
    for (std::size_t i = 0; i < result.elements.size(); ++i) {
      const Number& n = sums.numbers.elements[i];
      const double likely = 2 * std::sqrt(roundings) * precision_.roundoff * n.mass;
      result.elements[i] = {n.value, 1.25 * share * n.mass + precision_.smallest,
                            sums.squares.elements[i], likely + precision_.smallest};
    }
    return result;
  }

  const Problem& problem_;
  Precision precision_;
  bool gradients_;
  Features features_;
  Turn turn_;
  double roundings_ = 0;
  double dmix_roundings_ = 0;
  Sums y_, dq_, dk_, dv_, dmix_;
};

}  // namespace

Size feature_dim(Map map, const Numbers& numbers, Size key_dim) {
  if (map == Map::hedgehog) return 2 * key_dim;
  if (map == Map::dpfp) return 2 * numbers.nu * key_dim;
  return map == Map::favor ? numbers.features : key_dim;
}

std::array<Size, 2> mix_extents(const Policies& policies, const Numbers& numbers,
                                const Grid& queries, const Grid& keys) {
  if (policies.mixing == Mixing::dense) return {queries.blocks(), keys.blocks()};
  if (policies.mixing == Mixing::recurrent) return {queries.blocks(), 3 * numbers.terms + 1};
  Size columns = 0;
  for (int axis = 3 - policies.rank; axis < 3; ++axis)
    columns += queries.layout(axis) * keys.layout(axis);
  return {numbers.terms, columns};
}

Results attend(const Problem& problem, const Precision& precision, bool gradients) {
  return Attention(problem, precision, gradients).run();
}

}  // namespace fuzz
