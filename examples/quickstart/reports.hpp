// SPDX-License-Identifier: MIT
// The three tables that quickstart prints.
#pragma once

#include "tensors.hpp"

namespace quickstart {

/// Forward and backward at shapes of the paper, against the token-by-token oracle in double.
/// Returns whether every error is as small as the library promises.
bool report_agreement(const TokenSource& source, const Eigen::ThreadPoolDevice& pool);

/// Time of one forward pass against softmax attention and global linear attention, as the number
/// of tokens grows.
void report_growth(const TokenSource& source, const Eigen::ThreadPoolDevice& pool);

/// Rank and entropy of the three attention matrices (arXiv 2601.07832, figure 3).
void report_matrices(const TokenSource& source);

}  // namespace quickstart
