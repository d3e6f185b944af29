// What several operations do to a row that lies in registers, four neighbouring values a thread: thread i has values
// [4i, 4i + 4), or zeros beyond the row. Where lanes exchange values, all lanes of the warp call.
#pragma once

#include "ops/cuda/entry.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/reduce.cuh"
#include "quant/block.h"

namespace fathom::ops::cuda {

__device__ inline float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ inline void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }

__device__ inline float4 scaled(float a, float4 v) { return {a * v.x, a * v.y, a * v.z, a * v.w}; }
__device__ inline float4 fma4(float a, float4 v, float4 sum) {
  return {fmaf(a, v.x, sum.x), fmaf(a, v.y, sum.y), fmaf(a, v.z, sum.z), fmaf(a, v.w, sum.w)};
}
__device__ inline float4 carry4(float4 v, Carrier c) {
  return {carry_to(v.x, c), carry_to(v.y, c), carry_to(v.z, c), carry_to(v.w, c)};
}
__device__ inline float dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

// 1 / root mean square, of n squares summed.
__device__ inline float rms_scale(float squares, int n, float eps) {
  return rsqrtf(squares * (1.0F / static_cast<float>(n)) + eps);
}
__device__ inline float4 norm4(float4 x, float4 w, float rho, Carrier c) {
  return carry4({w.x * (x.x * rho), w.y * (x.y * rho), w.z * (x.z * rho), w.w * (x.w * rho)}, c);
}

// RMSNorm of a row in memory by a block; n and the addresses are whole fours. A thread reads only what it alone writes,
// so y may be x. Reads w before it waits for the kernel in front.
template <int kThreads>
__device__ void norm_row(const float* x, const float* w, float* y, int n, float eps, Carrier carrier) {
  const int first = static_cast<int>(threadIdx.x) * 4;
  const float4 weight = first < n ? load4(w + first) : float4{0, 0, 0, 0};
  await_results();
  const float4 mine = first < n ? load4(x + first) : float4{0, 0, 0, 0};
  float squares = dot4(mine, mine, 0.0F);
  for (int i = first + kThreads * 4; i < n; i += kThreads * 4) {
    const float4 v = load4(x + i);
    squares = dot4(v, v, squares);
  }
  const float rho = rms_scale(block_sum<kThreads>(squares), n, eps);
  if (first < n) store4(y + first, norm4(mine, weight, rho, carrier));
  for (int i = first + kThreads * 4; i < n; i += kThreads * 4) {
    store4(y + i, norm4(load4(x + i), load4(w + i), rho, carrier));
  }
}

// Two pairs turned forward.
__device__ inline void rotate4(float4& x, float2 cos, float2 sin, Carrier carrier) {
  rotate_pair(x.x, x.y, cos.x, sin.x, carrier);
  rotate_pair(x.z, x.w, cos.y, sin.y, carrier);
}

// Maximum of |x| over `lanes` neighbouring lanes. A NaN loses.
template <int kLanes>
__device__ float max_over(float4 x) {
  float m = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  for (int d = kLanes / 2; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(kAll, m, d));
  return m;
}
inline constexpr int kFp8Lanes = quant::kEntryBlock / 4;
inline constexpr int kFp4Lanes = quant::kFp4Block / 4;

__device__ inline std::uint32_t fp4_scale_code4(float4 x) {
  bool has_nan = isnan(x.x) || isnan(x.y) || isnan(x.z) || isnan(x.w);
  const std::uint32_t nans = __ballot_sync(kAll, has_nan);
  const int first = static_cast<int>(threadIdx.x) % kWarp / kFp4Lanes * kFp4Lanes;
  has_nan = (nans >> first & ((1U << kFp4Lanes) - 1)) != 0;
  return fp4_scale_code(max_over<kFp4Lanes>(x), has_nan);
}

// Values [i, i + 4) where they are among the first n, else nothing.
__device__ inline float4 within(float4 x, int i, int n) { return i < n ? x : float4{0, 0, 0, 0}; }

// quant::fp8_round_trip of the first n values in blocks of 64; the lane has values [i, i + 4). What it gives for others
// is void.
__device__ inline float4 fp8_round_trip4(float4 x, int i, int n) {
  const float scale = ue8m0(fp8_scale_code(max_over<kFp8Lanes>(within(x, i, n))));
  return {fp8_round(x.x, scale), fp8_round(x.y, scale), fp8_round(x.z, scale), fp8_round(x.w, scale)};
}
// quant::fp4_round_trip.
__device__ inline float4 fp4_round_trip4(float4 x) {
  const float scale = ue8m0(fp4_scale_code4(x));
  const float inverse = inverse_of(scale);
  return {scale * e2m1(e2m1_code(x.x * inverse)), scale * e2m1(e2m1_code(x.y * inverse)),
          scale * e2m1(e2m1_code(x.z * inverse)), scale * e2m1(e2m1_code(x.w * inverse))};
}

// quant::hadamard by one warp; n a power of two, 4 to 128.
__device__ inline float4 hadamard4(float4 x, int n) {
  x = {x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w};
  x = {x.x + x.z, x.y + x.w, x.x - x.z, x.y - x.w};
  const int lane = threadIdx.x % kWarp;
  for (int d = 1; d < n / 4; d *= 2) {
    const float4 other = {__shfl_xor_sync(kAll, x.x, d), __shfl_xor_sync(kAll, x.y, d), __shfl_xor_sync(kAll, x.z, d),
                          __shfl_xor_sync(kAll, x.w, d)};
    if ((lane & d) == 0) x = {x.x + other.x, x.y + other.y, x.z + other.z, x.w + other.w};
    else x = {other.x - x.x, other.y - x.y, other.z - x.z, other.w - x.w};
  }
  return scaled(1.0F / sqrtf(static_cast<float>(n)), x);
}

// EntryCodec::encode: values [i, i + 4) into the entry at `out`.
__device__ inline void encode4(const DeviceCodec& c, float4 x, int i, std::byte* out) {
  using quant::EntryFormat;
  const bool mine = i < c.dim;
  if (c.format == EntryFormat::kF32) {
    if (mine) store4(reinterpret_cast<float*>(out) + i, x);
    return;
  }
  if (c.format == EntryFormat::kFp4) {
    const std::uint32_t code = fp4_scale_code4(x);
    const float inverse = inverse_of(ue8m0(code));
    const std::uint32_t four = e2m1_code(x.x * inverse) | e2m1_code(x.y * inverse) << 4 |
                               e2m1_code(x.z * inverse) << 8 | e2m1_code(x.w * inverse) << 12;
    if (mine) *reinterpret_cast<std::uint16_t*>(out + i / 2) = static_cast<std::uint16_t>(four);
    if (mine && i % quant::kFp4Block == 0) out[c.dim / 2 + i / quant::kFp4Block] = static_cast<std::byte>(code);
    return;
  }
  const int plain = c.dim - c.rope_dim;
  const bool wide = c.format == EntryFormat::kFp8RopeF32;
  const std::uint32_t code = fp8_scale_code(max_over<kFp8Lanes>(within(x, i, plain)));
  if (!mine) return;
  if (i >= plain) {
    if (wide) {
      auto* to = reinterpret_cast<float*>(out) + (i - plain);
      to[0] = x.x;
      to[1] = x.y;
      to[2] = x.z;
      to[3] = x.w;
    } else {
      auto* to = reinterpret_cast<std::uint32_t*>(out) + (i - plain) / 2;
      to[0] = bf16_bits(x.x) | bf16_bits(x.y) << 16;
      to[1] = bf16_bits(x.z) | bf16_bits(x.w) << 16;
    }
    return;
  }
  std::byte* codes = out + (wide ? 4 : 2) * c.rope_dim;
  const float inverse = inverse_of(ue8m0(code));
  *reinterpret_cast<std::uint32_t*>(codes + i) = e4m3_code(x.x * inverse) | e4m3_code(x.y * inverse) << 8 |
                                                 e4m3_code(x.z * inverse) << 16 | e4m3_code(x.w * inverse) << 24;
  if (i % quant::kEntryBlock == 0) codes[plain + i / quant::kEntryBlock] = static_cast<std::byte>(code);
}

}  // namespace fathom::ops::cuda
