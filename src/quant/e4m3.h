// FP8 E4M3 ("FN": no infinities, 0x7F and 0xFF are NaN). checkpoint.md 5.1.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace fathom::quant {

inline constexpr float kE4m3Max = 448.0F;

// The value of a code.
constexpr float e4m3_value(std::uint8_t code) {
  const unsigned exponent = (code >> 3) & 15U;
  const unsigned mantissa = code & 7U;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000U);
  // 2^-9 * m below the smallest normal, else (1 + m/8) * 2^(exponent-7); both exact in f32.
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9F
                                        : std::bit_cast<float>(((exponent + 120U) << 23) | (mantissa << 20));
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> t{};
  for (unsigned i = 0; i < 256; ++i) t[i] = e4m3_value(static_cast<std::uint8_t>(i));
  return t;
}();

// Nearest, ties to even, saturating at +-448. NaN gives 0x7F.
inline std::uint8_t to_e4m3(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80U);
  const float a = std::fabs(x);
  if (std::isnan(x)) return 0x7f;
  if (a >= kE4m3Max) return sign | 0x7eU;
  if (a < 0x1p-6F) {
    // Subnormals are multiples of 2^-9. Adding 1.5*2^14 makes f32's own rounding (ties to even) happen at 2^-9.
    const float shifted = a + 0x1.8p14F;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(shifted) & 0xfU);
  }
  const std::uint32_t m = u & 0x7fffffffU;
  const std::uint32_t rounded = m + 0x7ffffU + ((m >> 20) & 1U);  // keep 3 mantissa bits; ties to even
  return sign | static_cast<std::uint8_t>((rounded >> 20) - (120U << 3));
}

}  // namespace fathom::quant
