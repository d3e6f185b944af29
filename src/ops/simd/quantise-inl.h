// The block quantisers of quant/block.h on whole registers: the same bits (cpu_kernels_test.cc compares every pattern).
#if defined(FATHOM_OPS_SIMD_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_QUANTISE_INL_H_
#undef FATHOM_OPS_SIMD_QUANTISE_INL_H_
#else
#define FATHOM_OPS_SIMD_QUANTISE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/simd/lanes-inl.h"
#include "quant/block.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {

// The largest |x|; NaN counts as 0. *nan: whether there is one.
HWY_INLINE float max_abs(const float* x, std::int64_t n, bool* nan) {
  auto top = hn::Zero(D());
  auto nans = hn::IsNaN(top);
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const auto v = hn::LoadU(D(), x + i);
    const auto is_nan = hn::IsNaN(v);
    nans = hn::Or(nans, is_nan);
    top = hn::Max(top, hn::IfThenZeroElse(is_nan, hn::Abs(v)));
  }
  float m = hn::GetLane(hn::MaxOfLanes(D(), top));
  *nan = !hn::AllFalse(D(), nans);
  for (; i < n; ++i) {
    *nan |= std::isnan(x[i]);
    m = std::isnan(x[i]) ? m : std::max(m, std::fabs(x[i]));
  }
  return m;
}

// a rounded to kBits mantissa bits, ties to even; below the smallest normal, to the multiples that adding and taking
// away `magic` leaves.
template <int kBits, class DF, class VF>
HWY_INLINE VF round_mantissa(DF d, VF a, float smallest_normal, float magic) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, a);
  constexpr int kDrop = 23 - kBits;
  const auto odd = hn::And(hn::ShiftRight<kDrop>(bits), hn::Set(du, 1U));
  const auto half = hn::Set(du, (1U << (kDrop - 1)) - 1U);
  const auto kept = hn::And(hn::Add(hn::Add(bits, half), odd), hn::Set(du, ~((1U << kDrop) - 1U)));
  const auto m = hn::Set(d, magic);
  const auto small = hn::Sub(hn::Add(a, m), m);
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, smallest_normal)), small, hn::BitCast(d, kept));
}

// quant::fp8_round_trip, to the bit.
HWY_INLINE void fp8_round_trip(float* x, std::int64_t n, std::int64_t block) {
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t size = std::min(block, n - begin);
    float* part = x + begin;
    bool nan = false;
    const float top = std::max(max_abs(part, size, &nan), 1e-4F) * (1.0F / quant::kE4m3Max);
    const float scale = quant::ue8m0_value(quant::ue8m0_ceil(top));
    const float inverse = 1 / scale;  // a power of two as well: multiplying rounds as dividing does
    for_each_register(size, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto v = hn::Mul(hn::LoadU(d, part + i), hn::Set(d, inverse));
      const auto a = hn::Min(hn::Abs(v), hn::Set(d, quant::kE4m3Max));
      const auto r = hn::CopySign(round_mantissa<3>(d, a, 0x1p-6F, 0x1.8p14F), v);
      const auto not_number = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
      hn::StoreU(hn::Mul(hn::IfThenElse(hn::IsNaN(v), not_number, r), hn::Set(d, scale)), d, part + i);
    });
  }
}

// quant::fp4_round_trip, to the bit but for the payload of a NaN.
HWY_INLINE void fp4_round_trip(float* x, std::int64_t n) {
  for (std::int64_t begin = 0; begin < n; begin += quant::kFp4Block) {
    const std::int64_t size = std::min<std::int64_t>(quant::kFp4Block, n - begin);
    float* part = x + begin;
    bool nan = false;
    const float top = std::max(max_abs(part, size, &nan), quant::kE2m1Max * 0x1p-126F) * (1.0F / quant::kE2m1Max);
    const float scale = quant::ue8m0_value(nan ? std::uint8_t{255} : quant::ue8m0_ceil(top));
    const float inverse = 1 / scale;
    for_each_register(size, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto v = hn::Mul(hn::LoadU(d, part + i), hn::Set(d, inverse));
      const auto a = hn::Min(hn::Abs(v), hn::Set(d, quant::kE2m1Max));
      const auto r = hn::CopySign(round_mantissa<1>(d, a, 1.0F, 0x1.8p22F), v);
      hn::StoreU(hn::Mul(r, hn::Set(d, scale)), d, part + i);
    });
  }
}

// quant::hadamard, to the bit: the same butterflies in the same order.
HWY_INLINE void hadamard(float* x, std::int64_t n) {
  std::int64_t stride = 1;
  for (; stride < n && stride < kWidth; stride *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * stride) {
      for (std::int64_t j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
  for (; stride < n; stride *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * stride) {
      for (std::int64_t j = i; j < i + stride; j += kWidth) {
        const auto a = hn::LoadU(D(), x + j);
        const auto b = hn::LoadU(D(), x + j + stride);
        hn::StoreU(hn::Add(a, b), D(), x + j);
        hn::StoreU(hn::Sub(a, b), D(), x + j + stride);
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(n));
  for_each_register(n, [&](auto d, std::int64_t i)
                           HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale)), d, x + i); });
}

}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
