# SPDX-License-Identifier: MIT
# README.md is short, begins with the two commands, and the pages show the examples word for word, so
# that what they show compiles. Links lead somewhere.   cmake -DSOURCE_DIR=. -P tests/structure/readme.cmake
cmake_minimum_required(VERSION 3.22...3.31)
set(most_words 1300)

file(READ "${SOURCE_DIR}/README.md" readme)
string(FIND "${readme}" "```" start)
string(SUBSTRING "${readme}" ${start} -1 block)
if(NOT block MATCHES "^```[a-z]*\ncmake -P cmake/quickstart.cmake\ncmake -P cmake/test.cmake\n```\n")
  message(FATAL_ERROR "The first code block of README.md is not exactly the two commands.")
endif()

# Words: what stands between white space and has a letter or a digit, code included.
string(REGEX REPLACE "[][;]" "," words "${readme}")
string(REGEX REPLACE "[ \n]+" ";" words "${words}")
list(FILTER words INCLUDE REGEX "[A-Za-z0-9]")
list(LENGTH words count)
if(count GREATER most_words)
  message(FATAL_ERROR "README.md has ${count} words, and may have ${most_words}.")
endif()

# require_shown(page example first last): the page has the lines of the example from the one that
# begins with `first` to the end of the first text `last` behind it, or of the file.
function(require_shown page example first last)
  file(READ "${SOURCE_DIR}/${page}" text)
  file(READ "${SOURCE_DIR}/examples/${example}" program)
  string(FIND "${program}" "\n${first}" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "${example} has no line that begins with: ${first}")
  endif()
  math(EXPR begin "${begin} + 1")
  string(SUBSTRING "${program}" ${begin} -1 program)
  if(last)
    string(FIND "${program}" "${last}" end)
    string(LENGTH "${last}" length)
    math(EXPR end "${end} + ${length}")
    string(SUBSTRING "${program}" 0 ${end} program)
  endif()
  string(STRIP "${program}" program)
  string(FIND "${text}" "```cpp\n${program}\n```" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${page} does not show examples/${example} as it is.")
  endif()
endfunction()
require_shown(README.md minimal.cpp "#define EIGEN_USE_THREADS" "")
require_shown(README.md packed_qkv.cpp "// qkv [tokens" "\n}\n")
require_shown(include/mhla/README.md own_feature_map.cpp "// phi(x)" "mhla::Blocks1D>;\n")
require_shown(examples/README.md own_kernel_test.cpp "TEST_CASE" "")

# Relative links of every page.
file(GLOB_RECURSE pages RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/include/*.md" "${SOURCE_DIR}/examples/*.md"
  "${SOURCE_DIR}/tests/*.md" "${SOURCE_DIR}/bench/*.md" "${SOURCE_DIR}/cmake/*.md")
list(APPEND pages README.md CONTRIBUTING.md CHANGELOG.md)
foreach(page IN LISTS pages)
  get_filename_component(folder "${SOURCE_DIR}/${page}" DIRECTORY)
  file(READ "${SOURCE_DIR}/${page}" text)
  string(REGEX REPLACE "[;[]" "," text "${text}")
  string(REPLACE "](" "<link>" text "${text}") # a list splits at no semicolon behind an open bracket
  string(REGEX MATCHALL "<link>[^)# ]+[)#]" links "${text}")
  foreach(link IN LISTS links)
    string(REGEX REPLACE "^<link>|[)#]$" "" link "${link}")
    if(NOT link MATCHES "^https?:" AND NOT EXISTS "${folder}/${link}")
      message(FATAL_ERROR "${page} links to ${link}, which does not exist.")
    endif()
  endforeach()
endforeach()
list(LENGTH pages number)
message(STATUS "README.md: ${count} words (at most ${most_words}); links of ${number} pages")
