// SPDX-License-Identifier: MIT
// Lines over two axes, one chart or several side by side, as SVG.
//
// A point that has no place on its axes (NaN, infinity, or not above 0 on a logarithmic one) is
// left out and interrupts its line; a series without any other point is left out altogether.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "axis.hpp"
#include "kept_apart.hpp"
#include "palette.hpp"
#include "svg.hpp"

namespace drawing {

/// Points joined by a line; its name is written at the line's end, and its first word chooses the
/// colour (palette.hpp). Without a name there is no label.
struct Series {
  std::string name{};
  std::vector<double> x{}, y{};
};

struct LineChart {
  std::string title{};
  Axis x{}, y{};
  std::vector<Series> series{};
  std::vector<Series> bounds{};  ///< reference lines, which are dashed
};

namespace line_chart {

inline constexpr double label_gap = 17;          ///< of names at the lines' ends
inline constexpr int most_ticks = 6;             ///< of a linear axis
inline constexpr std::size_t most_markers = 16;  ///< longer series are lines without markers

struct Box {
  double left, top, right, bottom;
};

/// The axes of one chart, laid out within a box.
struct Frame {
  Box box;
  Scale x_scale, y_scale;
  Range x, y;

  double x_of(double value) const {
    return box.left + fraction(value, x, x_scale) * (box.right - box.left);
  }
  double y_of(double value) const {
    return box.bottom - fraction(value, y, y_scale) * (box.bottom - box.top);
  }
  bool has_place(const Series& series, std::size_t i) const {
    return drawing::has_place(series.x[i], x_scale) && drawing::has_place(series.y[i], y_scale);
  }
};

/// The smallest range that contains the axis' zero, if it shows that, and all points that have a
/// place. Throws std::invalid_argument if there are none.
inline Range range_of(const LineChart& chart, const Axis& axis,
                      const std::vector<double> Series::*values) {
  Range range{INFINITY, -INFINITY};
  for (const auto* all : {&chart.series, &chart.bounds})
    for (const Series& series : *all) {
      if (series.x.size() != series.y.size())
        throw std::invalid_argument("series " + series.name + ": x and y have different lengths");
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (!has_place(series.x[i], chart.x.scale) || !has_place(series.y[i], chart.y.scale))
          continue;
        range.low = std::min(range.low, (series.*values)[i]);
        range.high = std::max(range.high, (series.*values)[i]);
      }
    }
  if (range.low > range.high)
    throw std::invalid_argument("chart " + chart.title + " has no point to draw");
  if (axis.shows_zero && axis.scale == Scale::linear)
    range = {std::min(range.low, 0.0), std::max(range.high, 0.0)};
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  if (range.high - range.low > 1e-9 * size) return range;  // else a flat line, but for rounding
  if (axis.scale == Scale::logarithmic) return {range.low / 2, range.high * 2};
  const double room = size == 0 ? 1 : size / 2;
  return {range.low - room, range.high + room};
}

inline double widest_name(const LineChart& chart) {
  double widest = 0;
  for (const auto* all : {&chart.series, &chart.bounds})
    for (const Series& series : *all) widest = std::max(widest, bold_width(series.name));
  return widest;
}

/// The ranges, and a box that leaves room for the title, ticks, labels and names around it.
inline Frame frame_of(const LineChart& chart, const Box& outer) {
  Frame frame{outer, chart.x.scale, chart.y.scale, range_of(chart, chart.x, &Series::x),
              widened(range_of(chart, chart.y, &Series::y), chart.y, most_ticks)};
  double widest_tick = 0;
  for (const Tick& tick : ticks(frame.y, frame.y_scale, most_ticks))
    widest_tick = std::max(widest_tick, text_width(tick.label));
  frame.box = {outer.left + widest_tick + 16, outer.top + 56, outer.right - widest_name(chart) - 18,
               outer.bottom - 48};
  return frame;
}

inline void draw_axes(Svg& svg, const LineChart& chart, const Frame& frame) {
  const Box& box = frame.box;
  for (const Tick& tick : ticks(frame.y, frame.y_scale, most_ticks)) {
    const double y = frame.y_of(tick.value);
    svg.line(box.left, y, box.right, y, "grid");
    svg.text(box.left - 8, y + 4, tick.label, "quiet", Anchor::end);
  }
  const int most = std::max(1, std::min(most_ticks, static_cast<int>((box.right - box.left) / 55)));
  for (const Tick& tick : ticks(frame.x, frame.x_scale, most)) {
    const double x = frame.x_of(tick.value);
    svg.line(x, box.top, x, box.bottom, "grid");
    svg.text(x, box.bottom + 18, tick.label, "quiet", Anchor::middle);
  }
  svg.text((box.left + box.right) / 2, box.bottom + 37, chart.x.label, "quiet", Anchor::middle);
  svg.text(box.left, box.top - 12, chart.y.label, "quiet");
}

/// Draws the line, and returns where it ends; nothing if it has no point.
inline std::optional<std::array<double, 2>> draw_line(Svg& svg, const Series& series,
                                                      const Frame& frame, bool bound,
                                                      const std::string& color) {
  const bool markers = !bound && series.x.size() <= most_markers;
  std::string data;
  std::optional<std::array<double, 2>> end;
  bool joined = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool drawn = frame.has_place(series, i);
    if (drawn) {
      end = {frame.x_of(series.x[i]), frame.y_of(series.y[i])};
      data += (joined ? "L" : "M") + Svg::px((*end)[0]) + ' ' + Svg::px((*end)[1]);
      if (markers) svg.circle((*end)[0], (*end)[1], 3, "point " + color);
    }
    joined = drawn;
  }
  if (end) svg.path(data, (bound ? "bound " : "line ") + color);
  return end;
}

/// The lines, then their names at the right, kept apart, each joined to its line's end.
inline void draw_series(Svg& svg, const LineChart& chart, const Frame& frame,
                        ColorAssignment& colors) {
  struct Label {
    std::string name, color;
    std::array<double, 2> end;
  };
  std::vector<Label> labels;
  std::vector<double> wanted;
  for (const auto* all : {&chart.bounds, &chart.series})
    for (const Series& series : *all) {
      const std::string color = "c" + std::to_string(colors(series.name));
      const auto end = draw_line(svg, series, frame, all == &chart.bounds, color);
      if (!end || series.name.empty()) continue;
      labels.push_back({series.name, color, *end});
      wanted.push_back((*end)[1]);
    }
  const std::vector<double> placed = kept_apart(wanted, label_gap, frame.box.top, frame.box.bottom);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const Label& label = labels[i];
    svg.line(label.end[0] + 4, label.end[1], frame.box.right + 10, placed[i],
             "leader " + label.color);
    svg.text(frame.box.right + 13, placed[i] + 4, label.name, "name " + label.color);
  }
}

inline void draw(Svg& svg, const LineChart& chart, const Box& outer, ColorAssignment& colors) {
  const Frame frame = frame_of(chart, outer);
  svg.text(outer.left + 8, outer.top + 22, chart.title, "title");
  draw_axes(svg, chart, frame);
  draw_series(svg, chart, frame, colors);
}

}  // namespace line_chart

/// Charts of the same size in rows of `columns`, one picture: two fill the width of a page. Throws
/// std::invalid_argument if a chart has no point to draw or a series as many x as y.
inline std::string svg_of(const std::vector<LineChart>& charts, std::size_t columns = 2) {
  if (charts.empty()) throw std::invalid_argument("a picture without a chart");
  columns = std::max<std::size_t>(1, std::min(columns, charts.size()));
  const std::size_t rows = (charts.size() + columns - 1) / columns;
  std::size_t names = 0;
  std::string description;
  double widest = 0, widest_title = 0;
  for (const LineChart& chart : charts) {
    names = std::max(names, chart.series.size() + chart.bounds.size());
    widest = std::max(widest, line_chart::widest_name(chart));
    widest_title = std::max(widest_title, title_width(chart.title));
    description += (description.empty() ? "" : "; ") + chart.title;
  }
  const double width = std::max((columns == 1 ? 600 : 270) + widest, widest_title + 16);
  const double height = std::max(columns == 1 ? 340.0 : 300.0,
                                 104 + line_chart::label_gap * static_cast<double>(names));
  Svg svg(width * static_cast<double>(columns), height * static_cast<double>(rows), description);
  ColorAssignment colors;
  for (std::size_t i = 0; i < charts.size(); ++i) {
    const double left = width * static_cast<double>(i % columns);
    const double top = height * static_cast<double>(i / columns);
    line_chart::draw(svg, charts[i], {left, top, left + width, top + height}, colors);
  }
  return svg.document();
}

/// Writes one chart, or several side by side. Throws as `svg_of`, and std::runtime_error, which
/// names the path, if the file cannot be written.
inline void write_svg(const std::string& path, const LineChart& chart) {
  write_file(path, svg_of({chart}));
}
inline void write_svg(const std::string& path, const std::vector<LineChart>& charts,
                      std::size_t columns = 2) {
  write_file(path, svg_of(charts, columns));
}

}  // namespace drawing
