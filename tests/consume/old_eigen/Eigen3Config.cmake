# SPDX-License-Identifier: MIT
# An Eigen that is too old for us, for the test consume/refuses_old_eigen.
add_library(Eigen3::Eigen INTERFACE IMPORTED)
