// Sixteen lanes of f32, and the one order in which every dot product of the CPU backend is summed.
//
// dot16. A sum over k runs in 16 lanes. Lane j adds its elements in increasing k by fused multiply-add, starting from
// 0; element k belongs to lane k mod 16 (packed FP4 deals them out otherwise, decode-inl.h). At the end lane j gets
// lane j + 8 added, then j + 4, j + 2, j + 1. Where 16 does not divide the length, the missing elements are zeros. With
// block scales the lanes first sum a chunk of 128 unscaled elements, then add that sum times the scale by one fused
// multiply-add.
//
// One register of AVX-512, two of AVX2 and four of NEON hold the same 16 lanes, so they give the same bits; so do one
// row and many rows, one thread and many, because speed comes from several outputs at once and never from cutting a
// sum. Targets without fused multiply-add (SSE4, plain scalar) round each product before adding: their sums differ from
// the others' by at most one more rounding per element, n * 2^-24 * sum |x_k w_k| for n = 8 + K/16 + 4 roundings a
// lane.
#if defined(FATHOM_OPS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_OPS_SIMD_LANES_INL_H_
#undef FATHOM_OPS_SIMD_LANES_INL_H_
#else
#define FATHOM_OPS_SIMD_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#ifndef FATHOM_UNROLL
#define FATHOM_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
inline constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));  // lanes of one register
inline constexpr int kParts = 16 / kWidth;                          // registers of sixteen lanes

struct Lanes {
  // Written out for NEON: GCC gives a constructor of its own making none of the target's extensions.
  HWY_INLINE Lanes() {}

  V part[kParts];
};

HWY_INLINE Lanes zero_lanes() {
  Lanes r;
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) r.part[p] = hn::Zero(D());
  return r;
}

HWY_INLINE Lanes load_lanes(const float* from) {
  Lanes r;
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) r.part[p] = hn::LoadU(D(), from + p * kWidth);
  return r;
}

HWY_INLINE void store_lanes(const Lanes& a, float* to) {
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) hn::StoreU(a.part[p], D(), to + p * kWidth);
}

HWY_INLINE Lanes broadcast(float x) {
  Lanes r;
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) r.part[p] = hn::Set(D(), x);
  return r;
}

// a * b + c, rounded once where the target can.
HWY_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes r;
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) r.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return r;
}

// The closing tree of dot16.
HWY_INLINE float sum_lanes(const Lanes& a) {
#if HWY_TARGET == HWY_SCALAR
  float s[16];
  store_lanes(a, s);
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) s[j] += s[j + half];
  }
  return s[0];
#else
#if HWY_CAP_GE512
  const hn::CappedTag<float, 4> d4;
  const hn::Half<D> d8;
  const auto eight = hn::Add(hn::LowerHalf(d8, a.part[0]), hn::UpperHalf(d8, a.part[0]));
  auto v = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#elif HWY_CAP_GE256
  const hn::CappedTag<float, 4> d4;
  const auto eight = hn::Add(a.part[0], a.part[1]);
  auto v = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#else
  auto v = hn::Add(hn::Add(a.part[0], a.part[2]), hn::Add(a.part[1], a.part[3]));
#endif
  v = hn::Add(v, hn::Shuffle1032(v));
  return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
#endif
}

// The closing trees of four sums: from is their lanes, [4, 16].
HWY_INLINE void sum_four(const float* from, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) to[i] = sum_lanes(load_lanes(from + 16 * i));
#else
  const hn::CappedTag<float, 4> d4;
  hn::Vec<decltype(d4)> v[4];
  FATHOM_UNROLL for (int i = 0; i < 4; ++i) {
    const float* lanes = from + 16 * i;
    v[i] = hn::Add(hn::Add(hn::LoadU(d4, lanes), hn::LoadU(d4, lanes + 8)),
                   hn::Add(hn::LoadU(d4, lanes + 4), hn::LoadU(d4, lanes + 12)));
  }
  // Lanes 0 + 2 of both sums, then 1 + 3.
  const auto first = hn::Add(hn::InterleaveLower(d4, v[0], v[1]), hn::InterleaveUpper(d4, v[0], v[1]));
  const auto last = hn::Add(hn::InterleaveLower(d4, v[2], v[3]), hn::InterleaveUpper(d4, v[2], v[3]));
  hn::StoreU(hn::Add(hn::ConcatLowerLower(d4, last, first), hn::ConcatUpperUpper(d4, last, first)), d4, to);
#endif
}

// dot16 of n elements without scales. Neither is read past n.
HWY_INLINE float dot16(const float* a, const float* b, std::int64_t n) {
  Lanes acc = zero_lanes();
  std::int64_t k = 0;
  for (; k + 16 <= n; k += 16) acc = fma(load_lanes(a + k), load_lanes(b + k), acc);
  if (k < n) {
    float ta[16] = {};
    float tb[16] = {};
    std::memcpy(ta, a + k, static_cast<std::size_t>(n - k) * sizeof(float));
    std::memcpy(tb, b + k, static_cast<std::size_t>(n - k) * sizeof(float));
    acc = fma(load_lanes(ta), load_lanes(tb), acc);
  }
  return sum_lanes(acc);
}

// Calls body(tag, i) for registers that cover [0, n): whole ones, then single lanes. For elementwise loops.
template <class Body>
HWY_INLINE void for_each_register(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(D(), i);
  for (; i < n; ++i) body(hn::CappedTag<float, 1>(), i);
}

}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
