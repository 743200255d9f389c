// SPDX-License-Identifier: MIT
// The pictures that mhla_figures draws, each a function.
#pragma once

#include <cstdio>
#include <string>

#include "../drawing/csv.hpp"

namespace figures {

/// Where the pictures go, and whether few sizes are enough: of what is then drawn only the form is
/// right.
struct Request {
  std::string folder = ".";
  bool small = false;
};

/// Mixing matrices as `mhla::initialize` fills them, for the shapes of released models.
void draw_initial_matrices(const Request& request);

/// What three queries of one image attend to, by softmax attention, linear attention and MHLA.
void draw_attention_maps(const Request& request);

/// Rank, effective rank and entropy of the three attention matrices as tokens become more.
void draw_rank_and_entropy(const Request& request);

/// Time of one forward pass against the number of tokens, and against the number of blocks.
void draw_time(const Request& request);

/// Time and workspace of both passes against the number of blocks.
void draw_choice_of_blocks(const Request& request);

/// Writes NAME.svg, and its numbers as NAME.csv.
template <class Picture>
void write(const Request& request, const std::string& name, const Picture& picture) {
  const std::string path = request.folder + '/' + name;
  drawing::write_svg(path + ".svg", picture);
  drawing::write_csv(path + ".csv", picture);
}

}  // namespace figures
