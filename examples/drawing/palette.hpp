// SPDX-License-Identifier: MIT
// The colours of all pictures, for light and dark pages. Lines differ in lightness as well as in
// hue, for readers who see fewer hues; heat maps go from the page's colour to what stands out most.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace drawing {

/// Of a line on a light and on a dark page. The first ones belong to kinds of attention.
struct LineColor {
  const char* light;
  const char* dark;
};
inline constexpr std::array<LineColor, 9> line_colors{{{"#1559b0", "#58a6ff"},  // softmax
                                                       {"#4b3a0c", "#f2cc3a"},  // linear
                                                       {"#dd3409", "#e8703f"},  // MHLA
                                                       {"#767d84", "#868e96"},  // none
                                                       {"#750a96", "#b273c9"},  // others
                                                       {"#165a40", "#22e08e"},
                                                       {"#d43275", "#f0508c"},
                                                       {"#2a2fd0", "#7484ff"},
                                                       {"#894306", "#c98a2a"}}};
inline constexpr std::array<std::string_view, 4> kinds_of_attention{"softmax", "linear", "mhla",
                                                                    "none"};

/// Gives lines their colours, as indices of `line_colors`: a kind of attention, which is the first
/// word of a name in upper or lower case, has the same one in every picture; other names take the
/// others in turn, the same one for the same text before a comma.
class ColorAssignment {
 public:
  std::size_t operator()(std::string_view name) {
    std::string word;
    for (const char c : name.substr(0, name.find_first_of(" ,:")))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto kind = std::find(kinds_of_attention.begin(), kinds_of_attention.end(), word);
    if (kind != kinds_of_attention.end())
      return static_cast<std::size_t>(kind - kinds_of_attention.begin());
    const std::string other(name.substr(0, name.find(',')));
    auto at = std::find(others_.begin(), others_.end(), other);
    if (at == others_.end()) at = others_.insert(at, other);
    constexpr std::size_t fixed = kinds_of_attention.size();
    return fixed + static_cast<std::size_t>(at - others_.begin()) % (line_colors.size() - fixed);
  }

 private:
  std::vector<std::string> others_;
};

/// How many colours a heat map has: one for 0, and one for each tenth of the largest value.
inline constexpr int heat_levels = 11;

/// The CSS colour of a level, that of 0 being nearly the page's: between stops of even lightness.
inline std::string heat_color(int level, bool dark) {
  static constexpr int stops[2][4][3] = {
      {{247, 247, 245}, {250, 200, 105}, {206, 76, 20}, {70, 12, 20}},
      {{22, 27, 34}, {122, 42, 20}, {226, 128, 40}, {255, 240, 190}}};
  const double at = 3.0 * level / (heat_levels - 1);
  const int stop = std::min(2, static_cast<int>(at));
  std::string color = "#";
  for (int channel = 0; channel < 3; ++channel) {
    const int low = stops[dark][stop][channel], high = stops[dark][stop + 1][channel];
    const auto value = static_cast<unsigned>(std::lround(low + (at - stop) * (high - low)));
    color += "0123456789abcdef"[value / 16];
    color += "0123456789abcdef"[value % 16];
  }
  return color;
}

/// What differs between light and dark pages.
inline std::string color_rules(bool dark) {
  std::string css = dark ? ".page{fill:#0d1117}.halo{color:#0d1117}svg{color:#e6edf3}.quiet{color:#"
                           "9198a1}.grid{color:#30363d}\n"
                         : ".page{fill:#ffffff}.halo{color:#ffffff}svg{color:#1f2328}.quiet{color:#"
                           "59636e}.grid{color:#d8dde3}\n";
  const auto add = [&](char kind, auto number, const std::string& color) {
    css += '.' + (kind + std::to_string(number)) + "{color:" + color + '}';
  };
  for (std::size_t i = 0; i < line_colors.size(); ++i)
    add('c', i, dark ? line_colors[i].dark : line_colors[i].light);
  for (int level = 0; level < heat_levels; ++level) add('h', level, heat_color(level, dark));
  return css + '\n';
}

/// The style sheet: classes of shapes, then c0, c1, ... (lines) and h0, h1, ... (levels of a heat
/// map) and the rest of the colours, of a light page and of a dark one.
inline std::string style() {
  return "<style>\n"
         "text{font:13px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif}\n"
         ".title{font-size:15px;font-weight:600}.name{font-weight:600}\n"
         "text,.point,.bar{fill:currentColor}path,.mark,.halo{fill:none;stroke:currentColor}\n"
         ".line{stroke-width:2.2;stroke-linejoin:round}"
         ".bound{stroke-width:1.6;stroke-dasharray:5 4}.leader{stroke-opacity:.55}"
         ".mark{stroke-width:2}.halo{stroke-width:5}.cells{shape-rendering:crispEdges}\n" +
         color_rules(false) + "@media (prefers-color-scheme:dark){\n" + color_rules(true) +
         "}\n</style>\n";
}

}  // namespace drawing
