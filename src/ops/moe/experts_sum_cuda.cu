#include "ops/moe/experts_sum_cuda.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;

// kEach columns a thread.
template <int kEach>
__global__ void sum(const float* results, const std::int32_t* place, int k, Mat<float> y, Carrier carrier) {
  await_previous();
  const std::int64_t i = kEach * (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  const std::int64_t t = blockIdx.y;
  if (i >= y.cols) return;
  float total[kEach] = {};
  const auto add = [&](std::int64_t row) {
    const float* const from = results + row * y.cols + i;
    if constexpr (kEach == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      total[0] += v.x;
      total[1] += v.y;
      total[2] += v.z;
      total[3] += v.w;
    } else {
      total[0] += from[0];
    }
  };
#pragma unroll 6
  for (int j = 0; j < k; ++j) add(place != nullptr ? place[t * k + j] : t * k + j);
  add(y.rows * k + t);
#pragma unroll
  for (int j = 0; j < kEach; ++j) y.data[t * y.ld + i + j] = carry_to(total[j], carrier);
}

}  // namespace

void sum_experts(Context& c, const float* results, const std::int32_t* place, int k, Mat<float> y, Carrier carrier) {
  const bool fours = y.cols % 4 == 0;  // results are rows of as many
  const dim3 grid(static_cast<unsigned>(ceil_div(y.cols, (fours ? 4 : 1) * kThreads)), static_cast<unsigned>(y.rows));
  launch(c, "experts_sum", fours ? sum<4> : sum<1>, grid, kThreads, 0, results, place, k, y, carrier);
}

}  // namespace fathom::ops::cuda
