// SPDX-License-Identifier: MIT
// Tile registers where the machine has none: their instructions raise a signal, whose handler does
// what they say, and ends the program where shapes do not fit. x86-64 Linux only.
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mhla/cpu/kernels.hpp>

namespace tile_machine {

using Tile = std::uint32_t[16][16];
inline mhla::cpu::TileShapes shapes;
inline bool configured = false;
inline Tile tiles[8];

// An instruction in VEX encoding, and its operand in memory, if any.
struct Decoded {
  int prefix;  // 0: none, 2: F3, 3: F2
  int opcode;
  int reg, vvvv, rm;
  bool in_memory, indexed;
  char* base;
  std::int64_t index;
  const std::uint8_t* next;
};

inline bool decode(const std::uint8_t* code, const greg_t* registers, Decoded& in) {
  constexpr int of_number[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
  constexpr int vex = 0xc4, map_0f38 = 2, w_and_length = 0x84;
  if (code[0] != vex || (code[1] & 0x1f) != map_0f38 || (code[2] & w_and_length) != 0) return false;
  const int more_index = (code[1] & 0x40) != 0 ? 0 : 8, more_base = (code[1] & 0x20) != 0 ? 0 : 8;
  const int mode = code[4] >> 6;
  in = {code[2] & 3, code[3], code[4] >> 3 & 7, ~(code[2] >> 3) & 15, code[4] & 7, mode != 3, false,
        nullptr,     0,       code + 5};
  if (!in.in_memory) return true;
  int base = in.rm;
  in.indexed = base == 4;
  if (in.indexed) {
    base = *in.next & 7;
    const int index = (*in.next >> 3 & 7) | more_index;
    if (index != 4) in.index = registers[of_number[index]] << (*in.next >> 6);
    ++in.next;
  }
  if (mode == 0 && base == 5) {  // relative to the next instruction
    if (in.indexed) return false;
    std::int32_t offset;
    std::memcpy(&offset, in.next, sizeof(offset));
    in.next += sizeof(offset);
    in.base = const_cast<char*>(reinterpret_cast<const char*>(in.next)) + offset;
    return true;
  }
  in.base = reinterpret_cast<char*>(registers[of_number[base | more_base]]);
  if (mode == 1) in.base += static_cast<std::int8_t>(*in.next++);
  if (mode == 2) {
    std::int32_t offset;
    std::memcpy(&offset, in.next, sizeof(offset));
    in.next += sizeof(offset);
    in.base += offset;
  }
  return true;
}

// Of bits, 0 where subnormal.
inline float flushed(std::uint32_t bits) {
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float flushed(float value) { return flushed(bits_of(value)); }

inline bool has(int tile) { return configured && shapes.rows[tile] > 0; }

inline bool configure(const void* from) {
  std::memcpy(&shapes, from, sizeof(shapes));
  mhla::cpu::TileShapes legal;
  for (int t = 0; t < 8; ++t) {
    if ((shapes.rows[t] == 0) != (shapes.row_bytes[t] == 0)) return false;
    if (shapes.rows[t] > 16 || shapes.row_bytes[t] > 64) return false;
    legal.rows[t] = shapes.rows[t];
    legal.row_bytes[t] = shapes.row_bytes[t];
  }
  configured = std::memcmp(&shapes, &legal, sizeof(legal)) == 0;
  std::memset(tiles, 0, sizeof(tiles));
  return configured;
}

inline bool multiply(int to, int a, int b) {
  if (!has(to) || !has(a) || !has(b) || to == a || to == b || a == b) return false;
  if (shapes.row_bytes[a] != 4 * shapes.rows[b] || shapes.rows[to] != shapes.rows[a] ||
      shapes.row_bytes[to] != shapes.row_bytes[b])
    return false;
  for (int r = 0; r < shapes.rows[to]; ++r)
    for (int c = 0; c < shapes.row_bytes[to] / 4; ++c) {
      float even = 0, odd = 0;
      for (int k = 0; k < shapes.rows[b]; ++k) {
        const std::uint32_t x = tiles[a][r][k], y = tiles[b][k][c];
        even = flushed(std::fma(flushed(x << 16), flushed(y << 16), even));
        odd = flushed(std::fma(flushed(x & 0xffff0000u), flushed(y & 0xffff0000u), odd));
      }
      tiles[to][r][c] = bits_of(flushed(flushed(tiles[to][r][c]) + flushed(even + odd)));
    }
  return true;
}

inline bool run(const Decoded& in) {
  constexpr int f3 = 2, f2 = 3;
  if (in.opcode == 0x49 && in.prefix == 0 && in.in_memory) return configure(in.base + in.index);
  if (in.opcode == 0x49 && in.prefix == 0) {  // TILERELEASE
    configured = false;
    return in.reg == 0 && in.rm == 0;
  }
  if (in.opcode == 0x5c && in.prefix == f3) return multiply(in.reg, in.rm, in.vvvv);
  if (!has(in.reg)) return false;
  Tile& tile = tiles[in.reg];
  if (in.opcode == 0x49 || in.prefix == f2) std::memset(tile, 0, sizeof(tile));
  if (in.opcode == 0x49) return in.prefix == f2 && !in.in_memory;
  if (in.opcode != 0x4b || !in.indexed) return false;
  for (int r = 0; r < shapes.rows[in.reg]; ++r) {
    char* const row = in.base + r * in.index;
    if (in.prefix == f2) std::memcpy(tile[r], row, shapes.row_bytes[in.reg]);
    if (in.prefix == f3) std::memcpy(row, tile[r], shapes.row_bytes[in.reg]);
  }
  return true;
}

/// From here on to the end of the test case, as Catch has a handler for each.
inline void install() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    Decoded instruction;
    if (decode(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]), registers, instruction) &&
        run(instruction)) {
      registers[REG_RIP] = reinterpret_cast<greg_t>(instruction.next);
    } else {
      std::signal(SIGILL, SIG_DFL);  // it is run again
    }
  };
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace tile_machine
#endif
