// SPDX-License-Identifier: MIT
// Two faults, and three lists as long that are none.
#pragma once

namespace cpu {

template <class A, int B, int C, int D, int E, int F, int G, int H, int I, int J, int K>
void gather(const Panel<A, Index>& a, int b, int* c = nullptr, int d = sum(1, 2), int, int (&f)[3],
            std::vector<std::pair<int, int>> g = {}, A&&... h, const char* i = ",");

struct Gather {
  Gather(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l);
};

// int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l
inline void scatter(int a, int b, int c, int d, int e, int f, int g, int h) {
  gather(a, b * c, &c, d & e, e, f, g, h, Index{1}, static_cast<Index>(a));
}

}  // namespace cpu
