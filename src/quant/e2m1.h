// FP4 E2M1, two values a byte, low nibble first. checkpoint.md 5.4.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace fathom::quant {

inline constexpr float kE2m1Max = 6.0F;

// The values of the 16 codes. Code 8 is minus zero, which counts as zero.
inline constexpr std::array<float, 16> kE2m1Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// Nearest, ties to the even code (0.25 -> 0, 0.75 -> 1, 2.5 -> 2, 5 -> 4), saturating at +-6. NaN has no code here: it
// gives 6, and whoever quantises checks for NaN before.
inline std::uint8_t to_e2m1(float x) {
  const float a = std::fabs(x);
  std::uint8_t code = 7;
  if (a <= 0.25F) code = 0;
  else if (a < 0.75F) code = 1;
  else if (a <= 1.25F) code = 2;
  else if (a < 1.75F) code = 3;
  else if (a <= 2.5F) code = 4;
  else if (a < 3.5F) code = 5;
  else if (a <= 5.0F) code = 6;
  return std::signbit(x) ? static_cast<std::uint8_t>(code | 8U) : code;
}

}  // namespace fathom::quant
