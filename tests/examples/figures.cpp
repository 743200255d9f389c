// SPDX-License-Identifier: MIT
// mhla_figures as its user runs it: every picture and its numbers come out.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/examples/run_program.hpp"

namespace {

using namespace test;

const std::vector<std::string> names{"initial_matrices", "attention_maps", "rank_and_entropy",
                                     "time", "choice_of_blocks"};

const Program program{MHLA_FIGURES};

/// The last field of every line but the first.
std::vector<double> last_fields(const std::string& csv) {
  std::vector<double> values;
  for (std::size_t at = csv.find('\n') + 1; at < csv.size(); at = csv.find('\n', at) + 1)
    values.push_back(std::strtod(csv.c_str() + csv.rfind(',', csv.find('\n', at)) + 1, nullptr));
  return values;
}

}  // namespace

TEST_CASE("figures: every picture is drawn, with its numbers beside it", "[figures]") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary / "pictures";  // which does not exist yet
  program.check("--small --out" + quoted(folder), 0);
  for (const std::string& name : names) {
    INFO(name);
    const std::string svg = text_of(folder / (name + ".svg"));
    CHECK((svg.starts_with("<svg") && svg.ends_with("</svg>\n")));
    const std::vector<double> values = last_fields(text_of(folder / (name + ".csv")));
    CHECK(values.size() > 10);
    for (const double value : values) CHECK((std::isfinite(value) && value >= 0));
  }
  program.check("initial_matrices --small --out" + quoted(temporary / ""), 0);  // and no other
  CHECK(fs::exists(temporary / "initial_matrices.svg"));
  CHECK_FALSE(fs::exists(temporary / "time.svg"));
}

TEST_CASE("figures: what cannot be followed or written is refused", "[figures]") {
  for (const char* arguments : {"portrait", "--out", "--large"})
    program.check(arguments, 2, {"usage: mhla_figures"});
  program.check("--help", 0, names);
  program.check("--small --out /dev/null/pictures", 1);
}
