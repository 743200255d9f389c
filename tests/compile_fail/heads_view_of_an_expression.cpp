// SPDX-License-Identifier: MIT
// A view shows memory that is there, and stays.
// EXPECT: mhla: heads_view and mix_view read a matrix where it lies: an Eigen::Matrix, a Map
// EXPECT: mhla: heads_view and mix_view do not own memory, and this matrix is a temporary
#include <mhla/mhla.hpp>

struct Call {
  Eigen::MatrixXf x, w;

  void use() {
    mhla::heads_view(x, 4);
    mhla::heads_view(x.leftCols(8), 4);
#ifndef MHLA_CONTROL
    mhla::heads_view(x * w, 4);
    mhla::mix_view(Eigen::MatrixXf(x * w));
#endif
  }
};
