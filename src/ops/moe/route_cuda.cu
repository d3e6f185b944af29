#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostActive = kWarp;

__device__ float sqrt_softplus(float g) { return sqrtf(g > 20.0F ? g : log1pf(expf(g))); }

// Scores as integers in the same order, NaN below all numbers and above nothing, which is 0.
constexpr std::uint32_t kNanRank = 1;
__device__ std::uint32_t rank_of(float score) {
  if (isnan(score)) return kNanRank;
  const std::uint32_t bits = __float_as_uint(score + 0.0F);  // -0 is 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// The k highest scores of a token by one warp; lane i gets the i-th expert. Expert e is lane e % 32's, and its sigma
// goes to sigma[e].
template <int kEach>
__device__ int choose(const Route& op, std::int64_t t, int n_experts, int k, float* sigma) {
  const int lane = threadIdx.x % kWarp;
  float bias[kEach];
  float logit[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + i * kWarp;
    bias[i] = op.bias != nullptr && e < n_experts ? op.bias[e] : 0.0F;
  }
  await_results();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + i * kWarp;
    logit[i] = e < n_experts ? op.logits.data[t * op.logits.ld + e] : 0.0F;
  }
  std::uint32_t rank[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + i * kWarp;
    const float s = sqrt_softplus(logit[i]);
    rank[i] = e < n_experts ? rank_of(s + bias[i]) : 0U;
    if (e < n_experts) sigma[e] = s;
  }
  int mine = 0;
  for (int round = 0; round < k; ++round) {
    std::uint32_t best = 0;
    int expert = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (rank[i] > best) {
        best = rank[i];
        expert = lane + i * kWarp;
      }
    }
    const std::uint32_t top = __reduce_max_sync(kAll, best);
    const auto chosen =
        static_cast<int>(__reduce_min_sync(kAll, best == top ? static_cast<std::uint32_t>(expert) : ~0U));
    if (lane == round) mine = chosen;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + i * kWarp == chosen) rank[i] = 0;
    }
  }
  __syncwarp();
  return mine;
}

// One warp a token. kEach: experts of a lane.
template <int kEach>
__global__ void __launch_bounds__(kThreads) route(Route op, int n_experts, int k) {
  __shared__ float sigmas[kWarps][kEach * kWarp];
  __shared__ int experts[kWarps][kMostActive];
  __shared__ float ordered[kWarps][kMostActive];
  allow_next();
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (t >= op.logits.rows) return await_results();
  int mine = 0;
  float sigma = 0;
  if (op.table != nullptr) {
    await_results();
    if (lane < k) {
      mine = op.table[static_cast<std::int64_t>(op.ids[t]) * k + lane];
      sigma = sqrt_softplus(op.logits.data[t * op.logits.ld + mine]);
    }
  } else {
    mine = choose<kEach>(op, t, n_experts, k, sigmas[warp]);
    if (lane < k) sigma = sigmas[warp][mine];
  }
  int place = 0;
  for (int i = 0; i < k; ++i) {
    const int other = __shfl_sync(kAll, mine, i);
    place += other < mine || (other == mine && i < lane) ? 1 : 0;
  }
  if (lane < k) {
    experts[warp][place] = mine;
    ordered[warp][place] = sigma;
  }
  __syncwarp();
  if (lane >= k) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += ordered[warp][i];
  op.experts.data[t * op.experts.ld + lane] = experts[warp][lane];
  op.weights.data[t * op.weights.ld + lane] = ordered[warp][lane] / sum * op.route_scale;
}

}  // namespace

void run(Context& c, const Route& op) {
  const std::int64_t k = op.experts.cols;
  const auto n = static_cast<int>(op.logits.cols);
  FATHOM_CHECK(op.weights.cols == k && k <= n, "k of E experts");
  FATHOM_CHECK(k <= kMostActive && n <= 32 * kWarp, "a router of this size");
  launch(c, "route",
         n <= 8 * kWarp    ? route<8>
         : n <= 16 * kWarp ? route<16>
                           : route<32>,
         dim3(static_cast<unsigned>(ceil_div(op.logits.rows, kWarps))), kThreads, 0, op, n, static_cast<int>(k));
}

}  // namespace fathom::ops::cuda
