// SPDX-License-Identifier: MIT
// The numbers of a picture as CSV (RFC 4180): one line for each point or matrix entry, also for
// those that the picture leaves out, and every number with as many digits as reading it back needs.
#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "heat_map.hpp"
#include "line_chart.hpp"
#include "svg.hpp"

namespace drawing {

/// In quotes where commas, quotes or ends of lines need them.
inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? "\"\"" : std::string(1, c);
  return field + '"';
}

/// The shortest decimal that reads back equal.
inline std::string csv_number(double value) {
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

inline std::string csv_points(const LineChart& chart, const std::string& prefix) {
  std::string lines;
  for (const auto* all : {&chart.series, &chart.bounds})
    for (const Series& series : *all)
      for (std::size_t i = 0; i < series.x.size() && i < series.y.size(); ++i)
        lines += prefix + csv_field(series.name) + ',' + csv_number(series.x[i]) + ',' +
                 csv_number(series.y[i]) + '\n';
  return lines;
}

/// series,x,y. Throws std::runtime_error naming the path if the file cannot be written, as those
/// below.
inline void write_csv(const std::string& path, const LineChart& chart) {
  write_file(path, "series,x,y\n" + csv_points(chart, ""));
}

/// chart,series,x,y
inline void write_csv(const std::string& path, const std::vector<LineChart>& charts) {
  std::string lines = "chart,series,x,y\n";
  for (const LineChart& chart : charts) lines += csv_points(chart, csv_field(chart.title) + ',');
  write_file(path, lines);
}

/// map,row,column,value: rows and columns are counted from 0.
inline void write_csv(const std::string& path, const HeatMapGrid& grid) {
  std::string lines = "map,row,column,value\n";
  for (const HeatMap& map : grid.maps) {
    heat_map::check(map);
    const std::string name = csv_field(map.name);
    for (std::size_t i = 0; i < map.values.size(); ++i)
      lines += name + ',' + std::to_string(i / map.columns) + ',' +
               std::to_string(i % map.columns) + ',' + csv_number(map.values[i]) + '\n';
  }
  write_file(path, lines);
}

}  // namespace drawing
