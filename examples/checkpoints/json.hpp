// SPDX-License-Identifier: MIT
// Parses JSON files: headers of checkpoints, configurations, vocabularies.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "file_errors.hpp"

namespace checkpoints {

/// Parses `text`, which is part of `file`; messages call it `what`.
/// \throws UnreadableFile where it is not JSON, names a key twice in one object, or nests objects
/// and lists more than `deepest` deep.
inline nlohmann::json parse_json(const std::filesystem::path& file, const std::string& what,
                                 std::string_view text, int deepest) {
  using Json = nlohmann::json;
  using Event = Json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;  // their keys
  const auto check = [&](int depth, Event event, Json& value) {
    if (depth > deepest)
      throw UnreadableFile(file,
                           what + " is nested more than " + std::to_string(deepest) + " deep");
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key &&
        !open_objects.back().insert(value.get_ref<const std::string&>()).second)
      throw UnreadableFile(file, what + " names " + value.get_ref<const std::string&>() + " twice");
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& problem) {
    // Drops the library's prefix, and limits the length: the end may repeat a long token.
    std::string reason = problem.what();
    reason = reason.substr(reason.find("] ") + 2).substr(0, 200);
    throw UnreadableFile(file, what + " is not JSON: " + reason);
  }
}

}  // namespace checkpoints
