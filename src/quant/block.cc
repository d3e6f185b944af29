#include "quant/block.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::quant {
namespace {

float max_abs(std::span<const float> x) {
  float m = 0;
  for (const float v : x) m = std::max(m, std::fabs(v));  // a NaN loses every comparison and is skipped
  return m;
}

}  // namespace

std::uint8_t fp8_block_scale(std::span<const float> x) {
  constexpr float kInverse = 1.0F / kE4m3Max;
  return ue8m0_ceil(std::max(max_abs(x), 1e-4F) * kInverse);
}

std::uint8_t fp4_block_scale(std::span<const float> x) {
  constexpr float kInverse = 1.0F / kE2m1Max;
  if (std::any_of(x.begin(), x.end(), [](float v) { return std::isnan(v); })) return 255;
  return ue8m0_ceil(std::max(max_abs(x), kE2m1Max * 0x1p-126F) * kInverse);
}

void fp8_round_trip(std::span<float> x, int block) {
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(block)) {
    const auto part = x.subspan(begin, std::min<std::size_t>(static_cast<std::size_t>(block), x.size() - begin));
    const float scale = ue8m0_value(fp8_block_scale(part));
    for (float& v : part) v = kE4m3Values[to_e4m3(v / scale)] * scale;
  }
}

void fp4_round_trip(std::span<float> x) {
  for (std::size_t begin = 0; begin < x.size(); begin += kFp4Block) {
    const auto part = x.subspan(begin, std::min<std::size_t>(kFp4Block, x.size() - begin));
    const float scale = ue8m0_value(fp4_block_scale(part));
    for (float& v : part) v = kE2m1Values[to_e2m1(v / scale)] * scale;
  }
}

void hadamard(std::span<float> x) {
  const std::size_t n = x.size();
  FATHOM_CHECK(std::has_single_bit(n), "a Hadamard transform needs a power of two");
  for (std::size_t stride = 1; stride < n; stride *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * stride) {
      for (std::size_t j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(n));
  for (float& v : x) v *= scale;
}

}  // namespace fathom::quant
