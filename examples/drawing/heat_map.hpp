// SPDX-License-Identifier: MIT
// Heat maps of matrices, several side by side with one colour bar, as SVG. Neighbours in a row with
// the same colour are one stroke, and all of a colour one path: a matrix of 105 x 105 stays small.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "axis.hpp"
#include "palette.hpp"
#include "svg.hpp"

namespace drawing {

/// A matrix of values that are not negative, drawn as a square. NaN and infinity have no colour:
/// the cell stays that of the page.
struct HeatMap {
  std::string name{};                  ///< in CSV
  std::vector<std::string> caption{};  ///< lines above it
  std::size_t rows = 0, columns = 0;
  std::vector<double> values{};  ///< row-major
  std::string row_label{}, column_label{};
  std::size_t row_step = 0, column_step = 0;        ///< a thin line after so many; 0: none
  std::vector<std::array<std::size_t, 2>> marks{};  ///< cells [row, column] with a box around them
};

/// Heat maps of the same height in rows of `columns`.
struct HeatMapGrid {
  std::string title{};
  std::string bar_label{};  ///< what the colours say
  std::vector<HeatMap> maps{};
  std::size_t columns = 4;
  /// Every map has the last colour where it is largest, and the bar shows fractions of that; else
  /// one scale, from 0 to the largest value of all.
  bool relative = false;
};

namespace heat_map {

inline constexpr double side = 200;  ///< of a map
inline constexpr double gap = 36;    ///< between maps
inline constexpr double line_height = 17;
inline constexpr double label_height = 24;  ///< of the axis' label below a map

inline void check(const HeatMap& map) {
  if (map.rows == 0 || map.columns == 0 || map.values.size() != map.rows * map.columns)
    throw std::invalid_argument("heat map " + map.name + ": rows times columns values are needed");
}

inline double largest(const HeatMap& map) {
  double most = 0;
  for (const double value : map.values)
    if (std::isfinite(value)) most = std::max(most, value);
  return most;
}

/// Of a value, where `full` has the last one: 0 for 0 alone, so that little differs from nothing;
/// -1 of what has no colour.
inline int level_of(double value, double full) {
  if (!std::isfinite(value)) return -1;
  if (full == 0 || value <= 0) return 0;
  const double step = std::floor(value / full * (heat_levels - 1));
  return 1 + static_cast<int>(std::clamp(step, 0.0, heat_levels - 2.0));
}

/// For each level the strokes along rows, in units of cells, as SVG's path data.
inline std::array<std::string, heat_levels> strokes(const HeatMap& map, double full) {
  std::array<std::string, heat_levels> data;
  std::array<std::array<double, 2>, heat_levels> at{};  // where each level's last stroke ended
  for (std::size_t row = 0; row < map.rows; ++row)
    for (std::size_t column = 0, end = 0; column < map.columns; column = end) {
      const auto level = [&](std::size_t c) {
        return level_of(map.values[row * map.columns + c], full);
      };
      for (end = column + 1; end < map.columns && level(end) == level(column);) ++end;
      if (level(column) < 0) continue;
      const auto i = static_cast<std::size_t>(level(column));
      const double x = static_cast<double>(column), y = static_cast<double>(row) + 0.5;
      data[i] += (data[i].empty() ? "M" : "m") + Svg::px(x - at[i][0]) + ' ' +
                 Svg::px(y - at[i][1]) + 'h' + std::to_string(end - column);
      at[i] = {static_cast<double>(end), y};
    }
  return data;
}

/// A frame, and lines after every `row_step` rows and `column_step` columns.
inline void draw_lines(Svg& svg, const HeatMap& map, double left, double top) {
  const std::string length = Svg::px(side);
  const auto start = [](double x, double y) { return "M" + Svg::px(x) + ' ' + Svg::px(y); };
  const auto offset = [](std::size_t cells, std::size_t of) {
    return side * static_cast<double>(cells) / static_cast<double>(of);
  };
  std::string lines;
  for (std::size_t r = map.row_step; r != 0 && r < map.rows; r += map.row_step)
    lines += start(left, top + offset(r, map.rows)) + 'h' + length;
  for (std::size_t c = map.column_step; c != 0 && c < map.columns; c += map.column_step)
    lines += start(left + offset(c, map.columns), top) + 'v' + length;
  if (!lines.empty()) svg.path(lines, "leader");
  svg.path(start(left, top) + 'h' + length + 'v' + length + "h-" + length + 'z', "frame");
}

/// The map itself, as a square.
inline void draw_cells(Svg& svg, const HeatMap& map, double full, double left, double top) {
  const double width = side / static_cast<double>(map.columns);
  const double height = side / static_cast<double>(map.rows);
  svg.begin_group(left, top, width, height);
  const auto data = strokes(map, full);
  for (std::size_t level = 0; level < data.size(); ++level)
    if (!data[level].empty()) svg.path(data[level], "cells h" + std::to_string(level));
  svg.end_group();
  draw_lines(svg, map, left, top);
  for (const auto& [row, column] : map.marks)
    for (const char* css : {"halo", "mark"})  // seen on cells of any colour
      svg.rectangle(left + width * static_cast<double>(column) - 2,
                    top + height * static_cast<double>(row) - 2, width + 4, height + 4, css);
}

/// The caption above the map, and the axes' labels beside it.
inline void draw_texts(Svg& svg, const HeatMap& map, double left, double top) {
  double y = top - 10 - line_height * static_cast<double>(map.caption.size());
  for (const std::string& line : map.caption)
    svg.text(left, y += line_height, line, &line == &map.caption.front() ? "name" : "quiet");
  svg.text(left + side / 2, top + side + 18, map.column_label, "quiet", Anchor::middle);
  svg.vertical_text(left - 9, top + side / 2, map.row_label, "quiet");
}

/// The colours from above 0 up to `full`.
inline void draw_bar(Svg& svg, const std::string& label, double full, double left, double top) {
  const double step = side / (heat_levels - 1);
  for (int level = 1; level < heat_levels; ++level)
    svg.rectangle(left, top + side - step * level, 16, step + 0.5, "bar h" + std::to_string(level));
  const Range range{0, full > 0 ? full : 1};
  for (const Tick& tick : linear_ticks(range, 5))
    svg.text(left + 24, top + side - fraction(tick.value, range, Scale::linear) * side + 4,
             tick.label, "quiet");
  svg.text(left, top - 10, label, "quiet");
}

}  // namespace heat_map

/// Throws std::invalid_argument if there is no map, or one has not rows times columns values.
inline std::string svg_of(const HeatMapGrid& grid) {
  using namespace heat_map;
  if (grid.maps.empty()) throw std::invalid_argument("a picture without a heat map");
  double full = 0;
  std::size_t caption_lines = 0;
  for (const HeatMap& map : grid.maps) {
    check(map);
    full = std::max(full, largest(map));
    caption_lines = std::max(caption_lines, map.caption.size());
  }
  const std::size_t columns = std::max<std::size_t>(1, std::min(grid.columns, grid.maps.size()));
  const std::size_t rows = (grid.maps.size() + columns - 1) / columns;
  const double first_left = 30;
  const double first_top = 50 + line_height * static_cast<double>(caption_lines);
  const double right = first_left + (side + gap) * static_cast<double>(columns);  // of the maps
  const double pitch = first_top - 40 + side + label_height + 14;
  Svg svg(std::max(right + std::max(70.0, text_width(grid.bar_label) + 10),
                   first_left + title_width(grid.title) + 10),
          40 + pitch * static_cast<double>(rows), grid.title);
  svg.text(first_left, 26, grid.title, "title");
  for (std::size_t i = 0; i < grid.maps.size(); ++i) {
    const HeatMap& map = grid.maps[i];
    const double left = first_left + (side + gap) * static_cast<double>(i % columns);
    const double top = first_top + pitch * static_cast<double>(i / columns);
    draw_texts(svg, map, left, top);
    draw_cells(svg, map, grid.relative ? largest(map) : full, left, top);
  }
  draw_bar(svg, grid.bar_label, grid.relative ? 1 : full, right, first_top);
  return svg.document();
}

/// Throws as `svg_of`, and std::runtime_error, which names the path, if the file cannot be written.
inline void write_svg(const std::string& path, const HeatMapGrid& grid) {
  write_file(path, svg_of(grid));
}

}  // namespace drawing
