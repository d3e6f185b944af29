// bfloat16: the upper half of an f32. model.md 0.2.
#pragma once

#include <bit>
#include <cstdint>

namespace fathom::quant {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

inline float to_f32(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

// Nearest, ties to even. NaN stays NaN (quiet), infinities stay, overflow goes to infinity.
inline Bf16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

// bf(x) of model.md: rounded to bfloat16, carried on as f32.
inline float round_bf16(float x) { return to_f32(to_bf16(x)); }

}  // namespace fathom::quant
