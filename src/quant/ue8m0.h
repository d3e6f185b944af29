// E8M0: a scale that is a power of two, stored as its biased exponent. checkpoint.md 5.2.
#pragma once

#include <bit>
#include <cstdint>

namespace fathom::quant {

// 2^(code-127). Code 255 is NaN; code 0 is 2^-127, an f32 subnormal.
inline float ue8m0_value(std::uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000U);
  if (code == 0) return 0x1p-127F;
  return std::bit_cast<float>(std::uint32_t{code} << 23);
}

// The code of the smallest power of two >= p, for p finite and > 0, read from the bits (no logarithm): model.md 9.2.
inline std::uint8_t ue8m0_ceil(float p) {
  const auto u = std::bit_cast<std::uint32_t>(p);
  const std::uint32_t exponent = (u >> 23) & 255U;
  return static_cast<std::uint8_t>(exponent + ((u & 0x7fffffU) != 0 ? 1U : 0U));
}

}  // namespace fathom::quant
