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
constexpr double infinite = std::numeric_limits<double>::infinity();

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

std::string drawn(const Series& series) { return svg_of({LineChart{.series = {series}}}); }

/// The values of attribute `name` of the elements that contain `part`.
std::vector<double> attributes(const std::string& svg, const std::string& part,
                               const std::string& name) {
  std::vector<double> values;
  std::istringstream lines(svg);
  for (std::string line; std::getline(lines, line);)
    if (says(line, part, " " + name + "=\""))
      values.push_back(figure_after(line, " " + name + "=\""));
  return values;
}

}  // namespace

TEST_CASE("drawing: ticks are round values within the axis", "[drawing]") {
  const struct {
    Range range;
    Scale scale;
    int most;
    const char* labels;
  } axes[] = {{{0, 1}, Scale::linear, 5, " 0.0 0.2 0.4 0.6 0.8 1.0"},
              {{0, 360}, Scale::linear, 6, " 0 100 200 300"},
              {{-1500, 1500}, Scale::linear, 3, " -1,000 0 1,000"},
              {{1.63, 1.67}, Scale::linear, 4, " 1.63 1.64 1.65 1.66 1.67"},
              {{0.02, 20000}, Scale::logarithmic, 6, " 0.1 1 10 100 1,000 10,000"},
              {{15, 90}, Scale::logarithmic, 6, " 20 50"}};
  for (const auto& [range, scale, most, labels] : axes) {
    std::string shown;
    for (const Tick& tick : ticks(range, scale, most)) shown += " " + tick.label;
    CHECK(shown == labels);
  }
  CHECK(ticks({0.001, 1000}, Scale::logarithmic, 6).size() == 7);
  for (const double span : {1e-9, 0.3, 7.0, 99.0, 12345.0})
    for (const int most : {1, 4, 6}) {
      const auto all = ticks({0, span}, Scale::linear, most);
      CHECK(all.size() <= static_cast<std::size_t>(most) + 1);
      CHECK(all.front().value == 0);
      CHECK(all.back().value <= span * (1 + 1e-5));
    }
}

TEST_CASE("drawing: numbers and texts as SVG writes them", "[drawing]") {
  CHECK(rounded(100, 1) == "100");
  CHECK(rounded(0.25, 4) == "0.25");
  CHECK(rounded(-0.01, 1) == "0");
  CHECK(grouped("-1234567.125") == "-1,234,567.125");
  CHECK(grouped("999") == "999");
  CHECK(escaped("a<b> & \"c\"\n") == "a&lt;b&gt; &amp; &quot;c&quot;?");
  CHECK(text_width("\xc3\xa9t\xc3\xa9") == text_width("ete"));
}

TEST_CASE("drawing: labels are kept apart, in order, near the ends of their lines", "[drawing]") {
  const std::vector<double> wanted{50, 10, 52, 51, 300, 299};
  const std::vector<double> placed = kept_apart(wanted, 17, 0, 300);
  for (std::size_t a = 0; a < wanted.size(); ++a)
    for (std::size_t b = 0; b < wanted.size(); ++b)
      if (wanted[a] < wanted[b]) CHECK(placed[b] - placed[a] >= 17 - 1e-9);
  CHECK(placed[1] == 10);
  CHECK(std::abs((placed[0] + placed[2] + placed[3]) / 3 - 51) < 1e-9);
  CHECK(placed[4] <= 300);
  CHECK(kept_apart({5, 5}, 10, 0, 100) == std::vector<double>{0, 10});
  CHECK(kept_apart({}, 10, 0, 100).empty());

  LineChart chart{.title = "nine lines that end in one point"};
  for (int i = 0; i < 9; ++i)
    chart.series.push_back({"s" + std::to_string(i), {0, 1}, {static_cast<double>(i), 4}});
  const std::vector<double> y = attributes(svg_of({chart}), "\"name", "y");
  REQUIRE(y.size() == 9);
  for (std::size_t i = 1; i < y.size(); ++i) CHECK(std::abs(y[i] - y[i - 1]) >= 16);
}

TEST_CASE("drawing: a picture is as wide as its title", "[drawing]") {
  LineChart chart = some_chart();
  HeatMapGrid maps = some_maps();
  chart.title = maps.title = std::string(200, 'x');
  for (const std::string& svg : {svg_of({chart}), svg_of(maps)})
    CHECK(attributes(svg, "<svg", "width")[0] > title_width(chart.title));
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

TEST_CASE("drawing: a kind of attention has one colour in every picture", "[drawing]") {
  ColorAssignment colors, others;
  CHECK(colors("MHLA, 64 blocks") == others("mhla 1.64"));
  CHECK(colors("Softmax") == others("softmax"));
  const std::vector<std::size_t> used{others("softmax"), others("linear"), others("mhla"),
                                      others("none"),    others("x"),      others("y")};
  for (std::size_t a = 0; a < used.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) CHECK(used[a] != used[b]);
  CHECK(others("x, at most") == used[4]);
}

TEST_CASE("drawing: what cannot be drawn is refused, or left out as stated", "[drawing]") {
  LineChart chart = some_chart();
  chart.series.push_back({"diverged", {1, 2}, {undefined, infinite}});
  chart.series.push_back({"negative", {1, 2}, {0, -1}});
  chart.series.push_back({"empty"});
  chart.series.push_back({"broken", {1, 1.5, 2, 3}, {1, 1, undefined, 1}});
  const std::string svg = svg_of({chart});
  CHECK(is_well_formed(svg));
  for (const char* absent : {"diverged", "negative", "empty", "nan", "inf"})
    CHECK_FALSE(says(svg, absent));
  CHECK(says(svg, ">broken<"));

  CHECK_THROWS_AS(drawn({}), std::invalid_argument);
  const Series without_place{"one", {1}, {undefined}}, without_y{"one", {1, 2}, {1}};
  CHECK_THROWS_AS(drawn(without_place), std::invalid_argument);
  CHECK_THROWS_AS(drawn(without_y), std::invalid_argument);
  CHECK_THROWS_AS(svg_of(std::vector<LineChart>{}), std::invalid_argument);
  CHECK_THROWS_AS(svg_of(HeatMapGrid{}), std::invalid_argument);
  HeatMapGrid maps = some_maps();
  maps.maps[0].values.pop_back();
  CHECK_THROWS_AS(svg_of(maps), std::invalid_argument);
  for (const double y : {0.0, 1e-300, -7.0, 1e300}) {
    const Series flat{"flat", {1, 2}, {y, y}}, point{"point", {y}, {y}};
    const Series almost_flat{"flat", {1, 2}, {y, std::nextafter(y, 0)}};
    for (const Series& series : {flat, point, almost_flat}) CHECK(is_well_formed(drawn(series)));
    CHECK_FALSE(says(drawn(almost_flat), "nan"));
  }
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
