// SPDX-License-Identifier: MIT
// An SVG document: a few shapes and text, each with a CSS class of palette.hpp.
#pragma once

#include <charconv>
#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "palette.hpp"

namespace drawing {

/// UTF-8 text as XML writes it; control characters, which XML forbids, become '?'.
inline std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 32 ? '?' : c;
    }
  return result;
}

/// A finite number with so many decimals, in any locale.
inline std::string fixed_point(double value, int decimals) {
  char buffer[400];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed, decimals).ptr;
  return {buffer, end};
}

/// A finite number of at most so many decimals, without zeros at their end.
inline std::string rounded(double value, int decimals) {
  std::string text = fixed_point(value, decimals);
  if (text.find('.') != std::string::npos) text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

/// With up to six digits, as 1.5e-20 where that is shorter.
inline std::string six_digits(double value) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::general, 6).ptr;
  return {buffer, end};
}

/// Pixels that a text takes at the document's font size, about: fonts differ.
inline double text_width(std::string_view text) {
  std::size_t characters = 0;
  for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return 7.2 * static_cast<double>(characters);
}

/// The same of names, which are bold, and of titles, which are larger too.
inline double bold_width(std::string_view text) { return 1.15 * text_width(text); }
inline double title_width(std::string_view text) { return bold_width(text) * 15 / 13; }

/// Throws std::runtime_error naming the path.
inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

/// Where a text's x is in the text.
enum class Anchor { start, middle, end };

/// Shapes are painted in the order in which they are added. Lengths are pixels.
class Svg {
 public:
  /// `description` is for those who cannot see the picture.
  Svg(double width, double height, std::string_view description)
      : body_("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + px(width) + ' ' +
              px(height) + "\" width=\"" + px(width) + "\" height=\"" + px(height) +
              "\" role=\"img\" aria-label=\"" + escaped(description) + "\">\n" + style()) {
    rectangle(0, 0, width, height, "page");
  }

  void text(double x, double y, std::string_view text, std::string_view css = "label",
            Anchor anchor = Anchor::start) {
    static constexpr const char* anchors[] = {"start", "middle", "end"};
    body_ += "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" text-anchor=\"" +
             anchors[static_cast<int>(anchor)] + "\" class=\"" + escaped(css) + "\">" +
             escaped(text) + "</text>\n";
  }
  /// Read from below to above, its middle at x, y.
  void vertical_text(double x, double y, std::string_view text, std::string_view css) {
    body_ += "<text transform=\"translate(" + px(x) + ' ' + px(y) +
             ") rotate(-90)\" text-anchor=\"middle\" class=\"" + escaped(css) + "\">" +
             escaped(text) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, std::string_view css) {
    path("M" + px(x1) + ' ' + px(y1) + "L" + px(x2) + ' ' + px(y2), css);
  }
  void rectangle(double x, double y, double width, double height, std::string_view css) {
    body_ += "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) + "\" height=\"" +
             px(height) + "\" class=\"" + escaped(css) + "\"/>\n";
  }
  void circle(double x, double y, double radius, std::string_view css) {
    body_ += "<circle cx=\"" + px(x) + "\" cy=\"" + px(y) + "\" r=\"" + px(radius) + "\" class=\"" +
             escaped(css) + "\"/>\n";
  }
  /// `data` is that of SVG's <path d="...">.
  void path(std::string_view data, std::string_view css) {
    body_ += "<path d=\"" + escaped(data) + "\" class=\"" + escaped(css) + "\"/>\n";
  }
  /// Until end_group, x and y are counted from here, in these units.
  void begin_group(double x, double y, double x_unit, double y_unit) {
    body_ += "<g transform=\"translate(" + px(x) + ' ' + px(y) + ") scale(" + rounded(x_unit, 4) +
             ' ' + rounded(y_unit, 4) + ")\">\n";
  }
  void end_group() { body_ += "</g>\n"; }

  std::string document() const { return body_ + "</svg>\n"; }

  /// A length as the document writes it: a tenth of a pixel is never seen.
  static std::string px(double length) { return rounded(length, 1); }

 private:
  std::string body_;
};

}  // namespace drawing
