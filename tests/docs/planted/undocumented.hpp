// SPDX-License-Identifier: MIT
// Not documented, as docs/finds_undocumented must say.
namespace mhla {
void undocumented();
}
