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
