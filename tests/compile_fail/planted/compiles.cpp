// SPDX-License-Identifier: MIT
// A planted fault: there is no mistake to find.
// EXPECT: anything
int nothing_wrong;
