// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <type_traits>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;

static_assert(!std::is_copy_constructible_v<Workspace> && !std::is_copy_assignable_v<Workspace>);
static_assert(std::is_nothrow_move_constructible_v<Workspace>);

namespace {
std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
}  // namespace

TEST_CASE("workspace: memory begins at a cache line and moves without a copy", "[core]") {
  for (const Index bytes : {1, 63, 64, 65, 4096}) {
    Workspace workspace(bytes);
    CHECK(workspace.size() == bytes);
    CHECK(address(workspace.data()) % 64 == 0);
    workspace.data()[bytes - 1] = std::byte{1};  // for the sanitizers
    const std::byte* data = workspace.data();
    Workspace moved(std::move(workspace));
    CHECK(moved.data() == data);
    Workspace assigned(8);
    assigned = std::move(moved);
    CHECK(assigned.data() == data);
    CHECK(assigned.size() == bytes);
    const WorkspaceView view = assigned;
    CHECK(view.data == data);
    CHECK(view.size == bytes);
  }
  CHECK(Workspace(0).data() == nullptr);
  CHECK(Workspace().size() == 0);
  CHECK_THROWS_AS(Workspace(-1), mhla::WorkspaceError);
}

TEST_CASE("workspace: an arena measures exactly what it lays out", "[core]") {
  struct Piece {
    const std::byte* begin;
    Index bytes;
  };
  const auto lay_out = [](Arena& arena, auto&& visit) {
    const auto take = [&](auto span) {
      visit(Piece{reinterpret_cast<const std::byte*>(span.data),
                  span.size * static_cast<Index>(sizeof(*span.data))});
    };
    take(arena.take<float>(5));
    take(arena.take<double>(0));
    take(arena.take<double>(8));
    take(arena.take<long double>(3));
    take(arena.take<char>(65));
  };

  Arena measuring;
  CHECK(measuring.measures());
  lay_out(measuring, [](Piece piece) { CHECK(piece.begin == nullptr); });
  CHECK(measuring.used() == 64 + 0 + 64 + 64 + 128);

  Workspace workspace(measuring.used());
  Arena arena(workspace);
  CHECK_FALSE(arena.measures());
  const std::byte* end = workspace.data();
  lay_out(arena, [&](Piece piece) {
    CHECK(address(piece.begin) % 64 == 0);
    CHECK(piece.begin >= end);  // after the piece before it
    if (piece.bytes > 0) end = piece.begin + piece.bytes;
    CHECK(end <= workspace.data() + workspace.size());
  });
  CHECK(arena.used() == measuring.used());
}

TEST_CASE("workspace: sizes beyond 64 bits throw instead of wrapping", "[core]") {
  constexpr Index largest = std::numeric_limits<Index>::max();
  Arena arena;
  CHECK_THROWS_AS(arena.take<double>(largest / 4), mhla::ShapeError);
  CHECK_THROWS_AS(arena.take<char>(largest), mhla::ShapeError);  // rounds up to 64 bytes
  arena.take<char>(largest - 127);
  CHECK_THROWS_AS(arena.take<char>(128), mhla::ShapeError);
}

TEST_CASE("workspace: one byte too few or a crooked address is a WorkspaceError", "[core]") {
  Workspace workspace(256);
  CHECK_NOTHROW(mhla::require_workspace(workspace, 256, "forward_into"));
  CHECK_NOTHROW(mhla::require_workspace({}, 0, "forward_into"));
  const std::string short_by_one = error_message<mhla::WorkspaceError>([&] {
    mhla::require_workspace({workspace.data(), 255}, 256, "forward_into");
  });
  CHECK(says(short_by_one, "forward_into", "workspace", "256", "255", "forward_workspace_size"));
  const std::string crooked = error_message<mhla::WorkspaceError>([&] {
    mhla::require_workspace({workspace.data() + 8, 248}, 128, "backward_into");
  });
  CHECK(says(crooked, "backward_into", "multiple of 64"));
}
