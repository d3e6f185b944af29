// The number formats of quant/ on the device, exact to the bit: the same functions in the same steps.
#pragma once

#include <cstdint>

#include "ops/cuda/reduce.cuh"
#include "ops/numerics.h"
#include "quant/block.h"
#include "quant/entry.h"

namespace fathom::ops::cuda {

// quant/bf16.h.
__device__ inline std::uint32_t bf16_bits(float x) {
  const std::uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return (u >> 16) | 0x40U;
  return (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
}
__device__ inline float bf16_value(std::uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float round_bf16(float x) {  // but for a NaN's payload
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0F));
  return __uint_as_float(bits);
}

__device__ inline float carry_to(float x, Carrier c) { return c == Carrier::kBf16 ? round_bf16(x) : x; }

// quant/ue8m0.h.
__device__ inline float ue8m0(std::uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000U);
  return __uint_as_float(code == 0 ? 0x00400000U : code << 23);
}
__device__ inline std::uint32_t ue8m0_ceil_code(float p) {
  const std::uint32_t u = __float_as_uint(p);
  return ((u >> 23) & 255U) + ((u & 0x7fffffU) != 0 ? 1U : 0U);
}

// quant/e4m3.h. The 7 bits placed under an f32's sign are the value times 2^-120, subnormals included.
__device__ inline float e4m3(std::uint32_t code) {
  if ((code & 0x7fU) == 0x7fU) return __uint_as_float(0x7fc00000U);
  return __uint_as_float((code & 0x80U) << 24 | (code & 0x7fU) << 20) * 0x1p120F;
}
__device__ inline std::uint32_t e4m3_code(float x) {
  const std::uint32_t u = __float_as_uint(x);
  const std::uint32_t sign = (u >> 24) & 0x80U;
  const float a = fabsf(x);
  if (isnan(x)) return 0x7fU;
  if (a >= 448.0F) return sign | 0x7eU;
  if (a < 0x1p-6F) return sign | (__float_as_uint(__fadd_rn(a, 0x1.8p14F)) & 0xfU);
  const std::uint32_t m = u & 0x7fffffffU;
  const std::uint32_t rounded = m + 0x7ffffU + ((m >> 20) & 1U);
  return sign | ((rounded >> 20) - (120U << 3));
}

// quant/e2m1.h. The 3 bits placed under an f32's sign are the value times 2^-126.
__device__ inline float e2m1(std::uint32_t code) {
  return __uint_as_float((code & 8U) << 28 | (code & 7U) << 22) * 0x1p126F;
}
__device__ inline std::uint32_t e2m1_code(float x) {
  const float a = fabsf(x);
  std::uint32_t code = 7;
  if (a <= 0.25F) code = 0;
  else if (a < 0.75F) code = 1;
  else if (a <= 1.25F) code = 2;
  else if (a < 1.75F) code = 3;
  else if (a <= 2.5F) code = 4;
  else if (a < 3.5F) code = 5;
  else if (a <= 5.0F) code = 6;
  return signbit(x) ? code | 8U : code;
}

// quant/block.h, from a block's max |x|.
__device__ inline std::uint32_t fp8_scale_code(float max_abs) {
  return ue8m0_ceil_code(__fmul_rn(fmaxf(max_abs, 1e-4F), 1.0F / 448.0F));
}
__device__ inline std::uint32_t fp4_scale_code(float max_abs, bool has_nan) {
  if (has_nan) return 255;
  return ue8m0_ceil_code(__fmul_rn(fmaxf(max_abs, 6.0F * 0x1p-126F), 1.0F / 6.0F));
}
// e4m3(e4m3_code(x)) without the code: what a number becomes by going through FP8.
__device__ inline float e4m3_round(float x) {
  const float a = fminf(fabsf(x), 448.0F);
  const std::uint32_t m = __float_as_uint(a);
  const float normal = __uint_as_float((m + 0x7ffffU + (m >> 20 & 1U)) & 0xfff00000U);
  const float small = __fsub_rn(__fadd_rn(a, 0x1.8p14F), 0x1.8p14F);  // to multiples of 2^-9
  const float y = copysignf(a < 0x1p-6F ? small : normal, x);
  return isnan(x) ? x : y;
}
// 1 / scale, of a power of two from 2^-126 to 2^126; dividing by it is multiplying by this.
__device__ inline float inverse_of(float scale) { return __uint_as_float((254U << 23) - __float_as_uint(scale)); }

// scale: of fp8_scale_code, or any other that inverse_of takes.
__device__ inline float fp8_round(float x, float scale) {
  return __fmul_rn(e4m3_round(__fmul_rn(x, inverse_of(scale))), scale);
}

// One pair of ops::rotate; s is the sine of the turn wanted.
__device__ inline void rotate_pair(float& a, float& b, float c, float s, Carrier carrier) {
  const float x = carry_to(static_cast<float>(double{a} * c - double{b} * s), carrier);
  const float y = carry_to(static_cast<float>(double{a} * s + double{b} * c), carrier);
  a = x;
  b = y;
}

}  // namespace fathom::ops::cuda
