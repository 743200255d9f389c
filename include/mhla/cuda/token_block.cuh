// SPDX-License-Identifier: MIT
// Tokens to panels and back. Panels hold the rows of all blocks consecutively, [batch, kv_heads,
// blocks, query heads of the kv head, block tokens, dim]; a gather copies q, k, v and dy there,
// applying phi and the rotation, and the adjoints copy gradients back. Rows of absent tokens are
// zero.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/launch.cuh>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/feature_map.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// panel = tensor                                                                      // [rows,
/// dim]
template <class T, class A>
struct Gather {
  PanelRows rows;
  TensorView<const T, 4> tensor;
  A* panel;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index dim = tensor.extent[3];
    const auto row = rows[i / dim];
    panel[i] = row.present()
                   ? static_cast<A>(load(tensor(row.item, row.head, row.place.token, i % dim)))
                   : A(0);
  }
};
template <class T, class A>
void gather(const CudaDevice& device, const PanelRows& rows, const TensorView<const T, 4>& tensor,
            A* panel) {
  launch(device, rows.count() * tensor.extent[3], Gather<T, A>{rows, tensor, panel});
}

/// tensor (+)= panel
template <class T, class A>
struct Scatter {
  PanelRows rows;
  const A* panel;
  TensorView<T, 4> tensor;
  Update update;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index dim = tensor.extent[3];
    const auto row = rows[i / dim];
    if (!row.present()) return;
    T& to = tensor(row.item, row.head, row.place.token, i % dim);
    store(to, update == Update::overwrite ? panel[i] : static_cast<A>(load(to)) + panel[i]);
  }
};
template <class T, class A>
void scatter(const CudaDevice& device, const PanelRows& rows, const A* panel,
             const TensorView<T, 4>& tensor, Update update) {
  launch(device, rows.count() * tensor.extent[3], Scatter<T, A>{rows, panel, tensor, update});
}

/// Zeros the tokens that a mask removes, which are in no panel; without a mask, all.
template <class T>
struct ClearMasked {
  TensorView<const std::uint8_t, 2> mask;
  TensorView<T, 4> tensor;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index c = i % tensor.extent[3];
    const Index t = i / tensor.extent[3] % tensor.extent[2];
    const Index h = i / tensor.extent[3] / tensor.extent[2] % tensor.extent[1];
    const Index n = i / tensor.extent[3] / tensor.extent[2] / tensor.extent[1];
    if (mask.data == nullptr || mask(n, t) == 0) tensor(n, h, t, c) = T{};
  }
};
/// Zeros the gradient of a call without an output.
template <class T>
void clear(const CudaDevice& device, const GradientView<T, 4>& gradient) {
  if (gradient.wanted) launch(device, gradient.view.size(), ClearMasked<T>{{}, gradient.view});
}
template <class T>
void clear(const CudaDevice& device, const GradientView<T, 3>& gradient) {
  const auto& [data, extent, stride] = gradient.view;
  if (gradient.wanted)
    launch(device, gradient.view.size(),
           ClearMasked<T>{
               {},
               {data, {1, extent[0], extent[1], extent[2]}, {0, stride[0], stride[1], stride[2]}}});
}
template <class T>
void clear_masked(const CudaDevice& device, const TensorView<const std::uint8_t, 2>& mask,
                  const TensorView<T, 4>& tensor) {
  if (mask.data != nullptr) launch(device, tensor.size(), ClearMasked<T>{mask, tensor});
}

/// features = scale phi(tensor), element by element                            // [rows,
/// feature_dim]
template <class Map, class T, class A>
struct MapElements {
  Map map;
  A scale;
  PanelRows rows;
  TensorView<const T, 4> tensor;
  A* features;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index dim = tensor.extent[3];
    const auto row = rows[i / dim];
    features[i] = row.present() ? scale * map.value(static_cast<A>(load(tensor(
                                              row.item, row.head, row.place.token, i % dim))))
                                : A(0);
  }
};

/// features = scale phi(inputs), row by row.
template <class Map, class A>
struct MapRows {
  Map map;
  A scale;
  PanelRows rows;
  const A* inputs;  // [rows, key_dim]
  Index key_dim;
  A* features;  // [rows, feature_dim]
  Index feature_dim;

  MHLA_HOST_DEVICE void operator()(Index r) const {
    const Span<A> out{features + r * feature_dim, feature_dim};
    const bool present = rows[r].present();
    if (present) map.value(Span<const A>{inputs + r * key_dim, key_dim}, out);
    for (Index c = 0; c < feature_dim; ++c) out[c] = present ? scale * out[c] : A(0);
  }
};

/// out = R in, or R^T in, pair by pair; `out` may be `in`.
template <class A>
struct TurnPairs {
  PanelRows rows;
  RotationTable<A> rotation;
  Index feature_dim;
  const A* in;
  A* out;
  Turn turn;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index pairs = feature_dim / 2;
    const auto row = rows[i / pairs];
    const Index at = i / pairs * feature_dim;
    rotation.turn(rows.table.grid, row.place.position, i % pairs, in + at, out + at, turn);
  }
};
template <class A>
void turn(const CudaDevice& device, const PanelRows& rows, const RotationTable<A>& rotation,
          Index feature_dim, const A* in, A* out, Turn turn) {
  launch(device, rows.count() * (feature_dim / 2),
         TurnPairs<A>{rows, rotation, feature_dim, in, out, turn});
}

/// Buffers of a row-wise map: its input, and the gradient in it.
template <class A>
struct RowBuffers {
  Span<A> input;     // [rows, key_dim]
  Span<A> gradient;  // [rows, key_dim]
};

/// features = scale phi(tensor) and, with a rotation, rotated = R features.
template <class Map, class T, class A>
void pack_features(const CudaDevice& device, const Map& map, A scale, const PanelRows& rows,
                   const RotationTable<A>& rotation, const TensorView<const T, 4>& tensor,
                   Index feature_dim, A* features, A* rotated, const RowBuffers<A>& buffers) {
  if constexpr (RowwiseFeatureMap<Map>) {
    gather(device, rows, tensor, buffers.input.data);
    launch(device, rows.count(),
           MapRows<Map, A>{map, scale, rows, buffers.input.data, tensor.extent[3], features,
                           feature_dim});
  } else {
    launch(device, rows.count() * feature_dim,
           MapElements<Map, T, A>{map, scale, rows, tensor, features});
  }
  if (rotation.rotates())
    turn(device, rows, rotation, feature_dim, features, rotated, Turn::forward);
}

/// tensor (+)= scale phi'(x) gradient, element by element
template <class Map, class T, class A>
struct UnmapElements {
  Map map;
  A scale;
  PanelRows rows;
  TensorView<const T, 4> x;
  const A* gradient;  // [rows, feature_dim]
  TensorView<T, 4> tensor;
  Update update;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index dim = tensor.extent[3];
    const auto row = rows[i / dim];
    if (!row.present()) return;
    const Index c = i % dim;
    const A input = static_cast<A>(load(x(row.item, row.head, row.place.token, c)));
    T& to = tensor(row.item, row.head, row.place.token, c);
    const A result = scale * map.derivative(input) * gradient[i];
    store(to, update == Update::overwrite ? result : static_cast<A>(load(to)) + result);
  }
};

/// out = scale J(in)^T gradient, row by row.
template <class Map, class A>
struct UnmapRows {
  Map map;
  A scale;
  PanelRows rows;
  const A* inputs;  // [rows, key_dim]
  Index key_dim;
  const A* gradient;  // [rows, feature_dim]
  Index feature_dim;
  A* out;  // [rows, key_dim]

  MHLA_HOST_DEVICE void operator()(Index r) const {
    if (!rows[r].present()) return;
    const Span<A> result{out + r * key_dim, key_dim};
    map.vjp(Span<const A>{inputs + r * key_dim, key_dim},
            Span<const A>{gradient + r * feature_dim, feature_dim}, result);
    for (Index c = 0; c < key_dim; ++c) result[c] *= scale;
  }
};

/// tensor (+)= scale J(x)^T gradient: the adjoint of pack_features, with the rotation undone
/// already.
template <class Map, class T, class A>
void unpack_feature_gradient(const CudaDevice& device, const Map& map, A scale,
                             const PanelRows& rows, const TensorView<const T, 4>& x,
                             const A* gradient, Index feature_dim, const TensorView<T, 4>& tensor,
                             Update update, const RowBuffers<A>& buffers) {
  if constexpr (RowwiseFeatureMap<Map>) {
    gather(device, rows, x, buffers.input.data);
    launch(device, rows.count(),
           UnmapRows<Map, A>{map, scale, rows, buffers.input.data, x.extent[3], gradient,
                             feature_dim, buffers.gradient.data});
    scatter<T, A>(device, rows, buffers.gradient.data, tensor, update);
  } else {
    launch(device, rows.count() * feature_dim,
           UnmapElements<Map, T, A>{map, scale, rows, x, gradient, tensor, update});
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
