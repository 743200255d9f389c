# SPDX-License-Identifier: MIT
# Columns in what scripts print.

# "text" with blanks up to `width` characters.
function(pad result text width)
  string(LENGTH "${text}" length)
  set(blanks "")
  if(length LESS width)
    math(EXPR missing "${width} - ${length}")
    string(REPEAT " " ${missing} blanks)
  endif()
  set(${result} "${text}${blanks}" PARENT_SCOPE)
endfunction()
