// SPDX-License-Identifier: MIT
// A command line of named values, and the usage text that goes with it.
#pragma once

#include <charconv>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace training {

/// A command line that cannot be followed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A text or image that cannot be used.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CommandLine {
 public:
  /// `about` stands above the options in the usage text.
  explicit CommandLine(std::string about) : about_(std::move(about)) {}

  /// --name N, least <= N <= most; `meaning` is followed by what `value` is without it.
  template <class Number>
  void number(const std::string& name, Number& value, Number least, Number most,
              const std::string& meaning) {
    std::ostringstream otherwise;
    otherwise << meaning << " (" << value << ")";
    add(name + " N", otherwise.str(), [name, &value, least, most](const std::string& text) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error != std::errc() || stop != end || !(value >= least && value <= most))
        throw UsageError(name + " cannot be " + text);
    });
  }
  /// --name METAVAR, any text.
  void text(const std::string& name, const std::string& metavar, std::string& value,
            const std::string& meaning) {
    add(name + " " + metavar, meaning, [&value](const std::string& text) { value = text; });
  }
  /// --name METAVAR, which `take` understands, or throws a UsageError.
  void option(const std::string& name, const std::string& metavar, const std::string& meaning,
              std::function<void(const std::string&)> take) {
    add(name + " " + metavar, meaning, std::move(take));
  }
  /// --name, which is set or not.
  void flag(const std::string& name, bool& value, const std::string& meaning) {
    add(name, meaning, [&value](const std::string&) { value = true; });
  }
  /// What is not an option, up to `most` of them.
  void others(std::vector<std::string>& values, std::size_t most, const std::string& name) {
    others_ = &values;
    most_others_ = most;
    name_of_others_ = name;
  }

  void parse(const std::vector<std::string>& arguments) const {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      if (argument.rfind("--", 0) != 0) {
        if (others_ == nullptr) throw UsageError("what is " + argument + "?");
        if (others_->size() == most_others_) throw UsageError("too many " + name_of_others_);
        others_->push_back(argument);
        continue;
      }
      const Option& option = find(argument);
      if (!option.has_value) {
        option.take({});
      } else if (i + 1 == arguments.size()) {
        throw UsageError(argument + " needs a value");
      } else {
        option.take(arguments[++i]);
      }
    }
  }

  std::string usage() const {
    constexpr std::size_t column = 21;
    std::string text = about_;
    for (const Option& option : options_) {
      std::string line = "  " + option.form;
      if (line.size() + 2 > column) {
        text += line + "\n";
        line.clear();
      }
      text += line + std::string(column - line.size(), ' ') + option.meaning + "\n";
    }
    return text;
  }

 private:
  struct Option {
    std::string name;
    std::string form;  // with what follows it
    std::string meaning;
    bool has_value;
    std::function<void(const std::string&)> take;
  };

  void add(const std::string& form, const std::string& meaning,
           std::function<void(const std::string&)> take) {
    const std::size_t blank = form.find(' ');
    options_.push_back(
        {form.substr(0, blank), form, meaning, blank != std::string::npos, std::move(take)});
  }
  const Option& find(const std::string& name) const {
    for (const Option& option : options_)
      if (option.name == name) return option;
    throw UsageError("unknown option " + name);
  }

  std::string about_;
  std::vector<Option> options_;
  std::vector<std::string>* others_ = nullptr;
  std::size_t most_others_ = 0;
  std::string name_of_others_;
};

}  // namespace training
