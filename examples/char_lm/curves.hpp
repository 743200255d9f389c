// SPDX-License-Identifier: MIT
// A picture of losses that fall: one curve for each model, as SVG.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace char_lm {

struct Curve {
  std::string name;
  std::vector<double> losses;  ///< of every step, in nats per character
  double validation = 0;       ///< at the end
};

/// Means over neighbouring steps, some 45 of them.
inline std::vector<double> smoothed(const std::vector<double>& losses) {
  const std::size_t window = std::max<std::size_t>(1, losses.size() / 45);
  std::vector<double> means;
  for (std::size_t first = 0; first + window <= losses.size(); first += window) {
    double sum = 0;
    for (std::size_t i = first; i < first + window; ++i) sum += losses[i];
    means.push_back(sum / static_cast<double>(window));
  }
  return means;
}

/// Returns whether the file could be written.
inline bool write_curves(const std::string& path, const std::vector<Curve>& curves) {
  constexpr double width = 720, height = 300, left = 44, right = 560, top = 16, bottom = 262;
  constexpr const char* colors[] = {"#9a9a9a", "#c98a00", "#2f6fb5", "#c0392b"};
  double highest = 0, lowest = 1e9;
  for (const Curve& curve : curves)
    for (const double loss : smoothed(curve.losses)) {
      highest = std::max(highest, loss);
      lowest = std::min(lowest, loss);
    }
  highest = std::ceil(highest), lowest = std::floor(lowest);
  const auto y_of = [&](double loss) {
    return bottom - (loss - lowest) / (highest - lowest) * (bottom - top);
  };
  std::ofstream out(path);
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height
      << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  for (double loss = lowest; loss <= highest; ++loss)
    out << "<path d=\"M" << left << ' ' << y_of(loss) << "H" << right
        << "\" stroke=\"#dddddd\"/><text x=\"" << left - 8 << "\" y=\"" << y_of(loss) + 4
        << "\" text-anchor=\"end\">" << loss << "</text>\n";
  const std::size_t steps = curves.empty() ? 0 : curves.front().losses.size();
  out << "<text x=\"" << (left + right) / 2 << "\" y=\"" << bottom + 26
      << "\" text-anchor=\"middle\">training loss, nats per character, over " << steps
      << " steps</text>\n<text x=\"" << right + 10 << "\" y=\"" << top + 4
      << "\" fill=\"#555555\">validation loss</text>\n";
  double label = bottom + 40;  // labels from the lowest up, kept apart
  std::vector<std::size_t> order(curves.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return curves[a].validation < curves[b].validation;
  });
  for (const std::size_t i : order) {
    const char* const color = colors[i % std::size(colors)];
    const std::vector<double> means = smoothed(curves[i].losses);
    if (means.empty()) continue;
    out << "<path fill=\"none\" stroke=\"" << color << "\" stroke-width=\"2\" d=\"";
    for (std::size_t n = 0; n < means.size(); ++n)
      out << (n == 0 ? 'M' : 'L')
          << left + (right - left) * static_cast<double>(n + 1) / static_cast<double>(means.size())
          << ' ' << y_of(means[n]);
    label = std::min(y_of(means.back()) + 4, label - 18);
    char loss[32];
    std::snprintf(loss, sizeof(loss), "%.2f", curves[i].validation);
    out << "\"/>\n<text x=\"" << right + 10 << "\" y=\"" << label << "\" fill=\"" << color
        << "\" font-weight=\"bold\">" << curves[i].name << ' ' << loss << "</text>\n";
  }
  out << "</svg>\n";
  return static_cast<bool>(out);
}

}  // namespace char_lm
