// Small vector functions that several operations share: norms, rotation, the exponential.
#if defined(FATHOM_OPS_SIMD_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_VECTOR_INL_H_
#undef FATHOM_OPS_SIMD_VECTOR_INL_H_
#else
#define FATHOM_OPS_SIMD_VECTOR_INL_H_
#endif

#include <cmath>

#include "ops/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {

// 1 / sqrt(mean of squares + eps); the sum of squares is a dot16.
HWY_INLINE float inverse_rms(const float* x, std::int64_t n, float eps) {
  return static_cast<float>(1.0 / std::sqrt(double{dot16(x, x, n)} / static_cast<double>(n) + double{eps}));
}

// y = w * (x * inverse_rms(x)). y may be x.
HWY_INLINE void rms_norm(const float* x, const float* w, std::int64_t n, float eps, float* y) {
  const float rho = inverse_rms(x, n, eps);
  for_each_register(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, w + i), hn::Mul(hn::LoadU(d, x + i), hn::Set(d, rho))), d, y + i);
  });
}

// Turns the last 2n of dim values at x: (a, b) -> (a cos - b sin, a sin + b cos), sin times `sign`.
HWY_INLINE void rotate(float* x, std::int64_t dim, const float* cos, const float* sin, std::int64_t n, float sign) {
  float* pairs = x + dim - 2 * n;
  for_each_register(n, [&](auto d, std::int64_t j) HWY_ATTR {
    using VF = hn::Vec<decltype(d)>;
    VF a;
    VF b;
    hn::LoadInterleaved2(d, pairs + 2 * j, a, b);
    const VF c = hn::LoadU(d, cos + j);
    const VF s = hn::Mul(hn::LoadU(d, sin + j), hn::Set(d, sign));
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(a, s, hn::Mul(b, c)), d, pairs + 2 * j);
  });
}

// e^x within 2 units in the last place where the result is normal; 0 and infinity beyond; NaN for NaN.
template <class DF, class VF = hn::Vec<DF>>
HWY_INLINE VF exponential(DF d, VF x) {
  const hn::Rebind<std::int32_t, DF> di;
  const VF inside = hn::Min(hn::Max(x, hn::Set(d, -105.0F)), hn::Set(d, 90.0F));
  const auto n = hn::NearestInt(hn::Mul(inside, hn::Set(d, 1.44269504088896341F)));
  const VF nf = hn::ConvertTo(d, n);
  // x - n ln 2, with ln 2 in two parts of which the first is short: |r| <= 0.35.
  VF r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375F), inside);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4F), r);
  // Minimax polynomial of (e^r - 1 - r) / r^2 (Cephes expf).
  VF p = hn::Set(d, 1.9875691500e-4F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1F));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
  // Times 2^n in two steps, each within the exponents of f32.
  const auto half = hn::ShiftRight<1>(n);
  const auto bias = hn::Set(di, 127);
  const VF first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const VF second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, first), second));
}

}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
