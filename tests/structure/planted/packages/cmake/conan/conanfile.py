# SPDX-License-Identifier: MIT
# No fault here: it reads "version.hpp".
