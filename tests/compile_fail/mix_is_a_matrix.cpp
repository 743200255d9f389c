// SPDX-License-Identifier: MIT
// A mixing matrix in an Eigen::Matrix or a std::vector, without a view of it.
// EXPECT: mhla: initialize takes a view or an Eigen tensor to write to: of an Eigen::Matrix
// EXPECT: mhla: project takes a view or an Eigen tensor to write to: of an Eigen::Matrix
// LINES: 40
#include <mhla/mhla.hpp>
#include <vector>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, Eigen::MatrixXf& matrix, std::vector<float>& vector) {
#ifdef MHLA_CONTROL
  mhla::initialize(mhla::mix_view(matrix), attention);
  mhla::initialize(mhla::make_view(vector.data(), 4, 4), attention,
                   {.transform = mhla::Transform::linear});
  mhla::project(mhla::mix_view(matrix));
#else
  mhla::initialize(matrix, attention);
  mhla::initialize(vector, attention, {.transform = mhla::Transform::linear});
  mhla::project(matrix);
#endif
  static_cast<void>(vector);
}
