// SPDX-License-Identifier: MIT
// The pictures of the examples: where ticks and names stand, that a document is well-formed, that
// what cannot be drawn is refused or left out as stated, and that CSV keeps every bit.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/drawing/csv.hpp"
#include "examples/drawing/heat_map.hpp"
#include "examples/drawing/line_chart.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace drawing;
using namespace test;

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t occurrences = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++occurrences;
  return occurrences;
}

/// Every element is closed, in the order in which they were opened, and no character that XML
/// forbids is left.
bool is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos || xml.find('<', at + 1) < end) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (count(tag, "\"") % 2 != 0) return false;
    if (tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back("/" + tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag) {
      return false;
    } else {
      open.pop_back();
    }
  }
  for (std::size_t at = xml.find('&'); at != std::string::npos; at = xml.find('&', at + 1))
    if (xml.find(';', at) > at + 5) return false;
  const auto forbidden = [](unsigned char c) { return c < 32 && c != '\n'; };
  return open.empty() && std::none_of(xml.begin(), xml.end(), forbidden);
}

LineChart some_chart() {
  return {
      .title = "Loss & <time>",
      .x = {.label = "\"steps\""},
      .y = {.label = "nats", .scale = Scale::logarithmic},
      .series = {{"softmax", {1, 2, 3}, {1, 0.1, 0.1 / 3}}, {"a, \"b\"", {1, 2}, {0.5, 1e-300}}},
      .bounds = {{"linear, at most", {1, 3}, {1, 1}}}};
}

HeatMapGrid some_maps() {
  return {.title = "a < b",
          .bar_label = "weight",
          .maps = {{.name = "first",
                    .caption = {"first", "of two"},
                    .rows = 2,
                    .columns = 3,
                    .values = {0, 0, 1, 0.5, 0.5, undefined},
                    .row_step = 1,
                    .marks = {{1, 2}}},
                   {.caption = {"second"}, .rows = 1, .columns = 1, .values = {0}}},
          .columns = 1};
}

}  // namespace

TEST_CASE("drawing: numbers and texts as SVG writes them", "[drawing]") {
  CHECK(rounded(100, 1) == "100");
  CHECK(rounded(0.25, 4) == "0.25");
  CHECK(rounded(-0.01, 1) == "0");
  CHECK(grouped("-1234567.125") == "-1,234,567.125");
  CHECK(grouped("999") == "999");
  CHECK(escaped("a<b> & \"c\"\n") == "a&lt;b&gt; &amp; &quot;c&quot;?");
  CHECK(text_width("\xc3\xa9t\xc3\xa9") == text_width("ete"));
}

TEST_CASE("drawing: documents are well-formed, whatever the texts", "[drawing]") {
  CHECK_FALSE(is_well_formed("<a><b></a>"));
  const std::string one = svg_of({some_chart()});
  const std::string three = svg_of({some_chart(), some_chart(), some_chart()}, 2);
  const std::string maps = svg_of(some_maps());
  for (const std::string& svg : {one, three, maps}) CHECK(is_well_formed(svg));
  CHECK(says(one, "Loss &amp; &lt;time&gt;", "prefers-color-scheme:dark"));
  CHECK(count(one, "class=\"page\"") == 1);
  CHECK(count(one, "class=\"bound") == 1);
  CHECK(count(one, "<circle") == 5);
  CHECK(count(three, "class=\"title\"") == 3);
  CHECK(count(maps, "class=\"cells") == 4);  // three levels of the first map, one of the second
  CHECK(count(maps, "class=\"mark\"") == 1);
  CHECK_FALSE(says(maps, "nan"));
}

TEST_CASE("drawing: files hold the picture, and numbers that read back equal", "[drawing]") {
  const TemporaryFolder temporary;
  const std::string path = (temporary / "chart.csv").string();
  const LineChart chart = some_chart();
  write_csv(path, chart);
  std::istringstream csv(text_of(path));
  std::string line;
  std::getline(csv, line);
  CHECK(line == "series,x,y");
  for (const auto* all : {&chart.series, &chart.bounds})
    for (const Series& series : *all)
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        std::getline(csv, line);
        const std::size_t y = line.rfind(','), x = line.rfind(',', y - 1);
        CHECK(line.substr(0, x) == csv_field(series.name));
        CHECK(std::strtod(line.c_str() + x + 1, nullptr) == series.x[i]);
        CHECK(std::strtod(line.c_str() + y + 1, nullptr) == series.y[i]);
      }
  CHECK_FALSE(std::getline(csv, line));
  CHECK(csv_field("a, \"b\"") == "\"a, \"\"b\"\"\"");

  write_csv(path, std::vector<LineChart>{chart, chart});
  CHECK(text_of(path).find("chart,series,x,y\nLoss & <time>,softmax,1,1\n") == 0);
  write_csv(path, some_maps());
  CHECK(text_of(path).find("map,row,column,value\nfirst,0,0,0\n") == 0);
  CHECK(count(text_of(path), "\n") == 8);

  write_svg(path, chart);
  CHECK(text_of(path) == svg_of({chart}));
  write_svg(path, some_maps());
  CHECK(text_of(path) == svg_of(some_maps()));
  const std::string nowhere = (temporary / "nowhere" / "chart.svg").string();
  CHECK(says(error_message<std::runtime_error>([&] { write_svg(nowhere, chart); }), nowhere));
  CHECK_THROWS_AS(write_csv(nowhere, chart), std::runtime_error);
}
