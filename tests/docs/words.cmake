# SPDX-License-Identifier: MIT
# Fails on phrases that made readers stumble, in pages, public headers and their messages.
#   cmake -DFOLDER=. -P tests/docs/words.cmake
# Each rule: a regular expression of whole words, and what to write instead.
cmake_minimum_required(VERSION 3.22...3.31)
set(rules
  "behind -> after"
  "(is|are) gone -> has ended, does not answer, is overwritten"
  "goes away -> ends"
  "but for -> except"
  "is no (multiple|square|power|std|run|type) -> is not a ..."
  "would get -> exceeds"
  "shared? out -> divided"
  "as near to -> as ... as"
  "knows no -> unknown"
  "bears? it -> stays accurate"
  "waits? for none -> does not wait"
  "may ask for -> may request"
  "to the byte -> exactly"
  "neighbours were there -> on a shared machine"
  "an own part -> its own part"
  "travel exact -> are sent exactly"
  "are named for -> apply to"
  "what (it|they|a split) takes -> cost"
  "refused the call, which -> call aborted"
  "(// The same|/// The same) -> name the subject: a comment stands without the one above it")

file(GLOB_RECURSE files RELATIVE "${FOLDER}" "${FOLDER}/*.md" "${FOLDER}/include/*.hpp" "${FOLDER}/include/*.cuh")
list(FILTER files EXCLUDE REGEX "(^|/)(build|\\.[^/]*|venv)/")
set(faults "")
foreach(file IN LISTS files)
  foreach(rule IN LISTS rules)
    string(REGEX MATCH "^(.*) -> (.*)$" ignored "${rule}")
    set(instead "${CMAKE_MATCH_2}")
    file(STRINGS "${FOLDER}/${file}" lines REGEX "(^|[^A-Za-z_])${CMAKE_MATCH_1}([^A-Za-z_]|$)" LIMIT_COUNT 1)
    foreach(line IN LISTS lines)
      string(STRIP "${line}" line)
      string(APPEND faults "  ${file}: ${line}\n    write: ${instead}\n")
    endforeach()
  endforeach()
endforeach()
if(faults)
  message(FATAL_ERROR "Phrases that readers stumble on:\n${faults}")
endif()
list(LENGTH files count)
message(STATUS "${count} files, none with a phrase of the list")
