// What several operations do to one row in shared memory, by a block of kThreads. Each function ends with a barrier.
#pragma once

#include "ops/cuda/numbers.cuh"
#include "ops/cuda/reduce.cuh"

namespace fathom::ops::cuda {

// RMSNorm with weights.
template <int kThreads>
__device__ void norm_row(float* x, int dim, const float* w, float eps, Carrier carrier) {
  float squares = 0;
  for (int i = threadIdx.x; i < dim; i += kThreads) squares = fmaf(x[i], x[i], squares);
  const float rho = 1.0F / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(dim) + eps);
  for (int i = threadIdx.x; i < dim; i += kThreads) x[i] = carry_to(w[i] * (x[i] * rho), carrier);
  __syncthreads();
}

// Turns the last 2n values forward.
template <int kThreads>
__device__ void rotate_row(float* x, int dim, const float* cos, const float* sin, int n, Carrier carrier) {
  float* pairs = x + dim - 2 * n;
  for (int j = threadIdx.x; j < n; j += kThreads) rotate_pair(pairs[2 * j], pairs[2 * j + 1], cos[j], sin[j], carrier);
  __syncthreads();
}

}  // namespace fathom::ops::cuda
