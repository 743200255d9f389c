// SPDX-License-Identifier: MIT
// A program that does not compile, as docs/finds_broken_snippet must say.

/// \code
/// y = missing(q);
/// \endcode
void with_broken_snippet();
