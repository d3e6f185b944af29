// Sums and maxima over a warp or a block. The order is fixed: the same values give the same bits.
#pragma once

#include <cstdint>

namespace fathom::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAll = 0xffffffffU;

__device__ inline float warp_sum(float v) {
  for (int d = kWarp / 2; d > 0; d /= 2) v += __shfl_xor_sync(kAll, v, d);
  return v;
}

// Sums of n values over a warp at the price of few: lane i gets warp_sum(v[i / (32 / n)]) to the bit. n is a power of
// two up to 32. Leaves v void.
template <int n, int d = kWarp / 2>
__device__ float warp_sums(float (&v)[n]) {
  constexpr int kHalf = n * d / kWarp;  // values that go on, of twice as many
  if constexpr (kHalf > 0) {
    const bool upper = (threadIdx.x & d) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float away = __shfl_xor_sync(kAll, upper ? v[i] : v[i + kHalf], d);
      v[i] = (upper ? v[i + kHalf] : v[i]) + away;
    }
  } else {
    v[0] += __shfl_xor_sync(kAll, v[0], d);
  }
  if constexpr (d > 1) return warp_sums<n, d / 2>(v);
  else return v[0];
}

// A NaN loses against every number, as in std::max(m, x) of the reference.
__device__ inline float warp_max(float v) {
  for (int d = kWarp / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, d));
  return v;
}

// Over all threads of a block of kThreads; every thread gets the sum. Contains two barriers.
template <int kThreads>
__device__ float block_sum(float v) {
  __shared__ float warps[kThreads / kWarp];
  v = warp_sum(v);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) total += warps[w];
  return total;
}

}  // namespace fathom::ops::cuda
