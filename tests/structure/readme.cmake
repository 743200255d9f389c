# SPDX-License-Identifier: MIT
# README.md begins with the two commands, and shows examples/minimal.cpp word for word.
cmake_minimum_required(VERSION 3.22...3.31)
file(READ "${SOURCE_DIR}/README.md" readme)
file(READ "${SOURCE_DIR}/examples/minimal.cpp" program)

string(FIND "${readme}" "```" start)
string(SUBSTRING "${readme}" ${start} -1 block)
if(NOT block MATCHES "^```[a-z]*\ncmake -P cmake/quickstart.cmake\ncmake -P cmake/test.cmake\n```\n")
  message(FATAL_ERROR "The first code block of README.md is not exactly the two commands.")
endif()

string(REGEX REPLACE "^(//[^\n]*\n)+" "" program "${program}") # without its head comment
string(STRIP "${program}" program)
string(FIND "${readme}" "```cpp\n${program}\n```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "README.md does not show examples/minimal.cpp as it is.")
endif()

file(READ "${SOURCE_DIR}/examples/own_feature_map.cpp" own)
string(REGEX MATCH "// phi.*\nusing Attention[^\n]*" map "${own}")
string(FIND "${readme}" "```cpp\n${map}\n```" position)
if(NOT map OR position EQUAL -1)
  message(FATAL_ERROR "README.md does not show the map of examples/own_feature_map.cpp as it is.")
endif()
