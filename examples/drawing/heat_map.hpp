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

/// A matrix of values that are not negative. NaN and infinity have no colour: the cell stays that
/// of the page.
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

inline void draw_map(Svg& svg, const HeatMap& map, double full, double left, double top) {
  const double width = side / static_cast<double>(map.columns);
  const double height = side / static_cast<double>(map.rows);
  svg.begin_group(left, top, width, height);
  const auto data = strokes(map, full);
  for (std::size_t level = 0; level < data.size(); ++level)
    if (!data[level].empty()) svg.path(data[level], "cells h" + std::to_string(level));
  svg.end_group();
  std::string lines;
  for (std::size_t row = map.row_step; row != 0 && row < map.rows; row += map.row_step)
    lines += "M" + Svg::px(left) + ' ' + Svg::px(top + height * static_cast<double>(row)) + 'h' +
             Svg::px(side);
  for (std::size_t c = map.column_step; c != 0 && c < map.columns; c += map.column_step)
    lines += "M" + Svg::px(left + width * static_cast<double>(c)) + ' ' + Svg::px(top) + 'v' +
             Svg::px(side);
  if (!lines.empty()) svg.path(lines, "leader");
  svg.path("M" + Svg::px(left) + ' ' + Svg::px(top) + "h200v200h-200z", "");
  for (const auto& [row, column] : map.marks)
    for (const char* css : {"halo", "mark"})  // seen on cells of any colour
      svg.rectangle(left + width * static_cast<double>(column) - 2,
                    top + height * static_cast<double>(row) - 2, width + 4, height + 4, css);
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
  if (grid.maps.empty()) throw std::invalid_argument("a picture without a heat map");
  double full = 0;
  std::size_t caption_lines = 0;
  for (const HeatMap& map : grid.maps) {
    heat_map::check(map);
    full = std::max(full, heat_map::largest(map));
    caption_lines = std::max(caption_lines, map.caption.size());
  }
  const std::size_t columns = std::max<std::size_t>(1, std::min(grid.columns, grid.maps.size()));
  const std::size_t rows = (grid.maps.size() + columns - 1) / columns;
  const double caption = heat_map::line_height * static_cast<double>(caption_lines) + 10;
  const double pitch = caption + heat_map::side + heat_map::label_height + 14;
  const double width = 30 + (heat_map::side + heat_map::gap) * static_cast<double>(columns) +
                       std::max(70.0, text_width(grid.bar_label) + 10);
  Svg svg(width, 40 + pitch * static_cast<double>(rows), grid.title);
  svg.text(30, 26, grid.title, "title");
  for (std::size_t i = 0; i < grid.maps.size(); ++i) {
    const HeatMap& map = grid.maps[i];
    const double left = 30 + (heat_map::side + heat_map::gap) * static_cast<double>(i % columns);
    const double top = 40 + caption + pitch * static_cast<double>(i / columns);
    for (std::size_t line = 0; line < map.caption.size(); ++line)
      svg.text(
          left,
          top - 10 - heat_map::line_height * static_cast<double>(map.caption.size() - 1 - line),
          map.caption[line], line == 0 ? "name" : "quiet");
    heat_map::draw_map(svg, map, grid.relative ? heat_map::largest(map) : full, left, top);
    svg.text(left + heat_map::side / 2, top + heat_map::side + 18, map.column_label, "quiet",
             Anchor::middle);
    svg.vertical_text(left - 9, top + heat_map::side / 2, map.row_label, "quiet");
  }
  heat_map::draw_bar(svg, grid.bar_label, grid.relative ? 1 : full,
                     30 + (heat_map::side + heat_map::gap) * static_cast<double>(columns),
                     40 + caption);
  return svg.document();
}

/// Throws as `svg_of`, and std::runtime_error, which names the path, if the file cannot be written.
inline void write_svg(const std::string& path, const HeatMapGrid& grid) {
  write_file(path, svg_of(grid));
}

}  // namespace drawing
