#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 32;
constexpr int kMostExperts = 1024;
constexpr int kMostActive = 32;

__device__ float sqrt_softplus(float g) { return sqrtf(g > 20.0F ? g : log1pf(expf(g))); }

// A score and whose it is; expert -1: none.
struct Candidate {
  float score;
  int expert;
};

// Whether a ranks before b: NaN last, ties by the lower expert.
__device__ bool before(Candidate a, Candidate b) {
  if (a.expert < 0 || b.expert < 0) return b.expert < 0 && a.expert >= 0;
  if (isnan(a.score) != isnan(b.score)) return isnan(b.score);
  if (!isnan(a.score) && a.score != b.score) return a.score > b.score;
  return a.expert < b.expert;
}

// The best of the lane's experts that is not taken (bit i: expert lane + 32 i).
__device__ Candidate best_of_lane(const float* score, int n_experts, std::uint32_t taken) {
  Candidate best = {0, -1};
  for (int e = threadIdx.x, i = 0; e < n_experts; e += kWarp, ++i) {
    const Candidate c = {score[e], (taken >> i & 1U) == 0 ? e : -1};
    if (before(c, best)) best = c;
  }
  return best;
}

// One warp a token.
__global__ void route(Route op, int n_experts, int k) {
  await_previous();
  __shared__ float sigma[kMostExperts];
  __shared__ float score[kMostExperts];
  __shared__ int chosen[kMostActive];
  __shared__ int sorted[kMostActive];
  const std::int64_t t = blockIdx.x;
  const int lane = threadIdx.x;
#pragma unroll 4
  for (int e = lane; e < n_experts; e += kWarp) {
    sigma[e] = sqrt_softplus(op.logits.data[t * op.logits.ld + e]);
    score[e] = sigma[e] + (op.bias != nullptr ? op.bias[e] : 0.0F);
  }
  __syncwarp();
  if (op.table != nullptr) {
    if (lane < k) chosen[lane] = op.table[static_cast<std::int64_t>(op.ids[t]) * k + lane];
  } else {
    std::uint32_t taken = 0;
    Candidate mine = best_of_lane(score, n_experts, taken);
    for (int round = 0; round < k; ++round) {
      Candidate best = mine;
      for (int d = kWarp / 2; d > 0; d /= 2) {
        const Candidate other = {__shfl_xor_sync(kAll, best.score, d), __shfl_xor_sync(kAll, best.expert, d)};
        if (before(other, best)) best = other;
      }
      if (lane == 0) chosen[round] = best.expert;
      if (best.expert % kWarp == lane) {
        taken |= 1U << (best.expert / kWarp);
        mine = best_of_lane(score, n_experts, taken);
      }
    }
  }
  __syncwarp();
  if (lane < k) {
    int rank = 0;
    for (int i = 0; i < k; ++i) rank += chosen[i] < chosen[lane] || (chosen[i] == chosen[lane] && i < lane) ? 1 : 0;
    sorted[rank] = chosen[lane];
  }
  __syncwarp();
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += sigma[sorted[i]];
  if (lane < k) {
    op.experts.data[t * op.experts.ld + lane] = sorted[lane];
    op.weights.data[t * op.weights.ld + lane] = sigma[sorted[lane]] / sum * op.route_scale;
  }
}

}  // namespace

void run(Context& c, const Route& op) {
  const std::int64_t k = op.experts.cols;
  FATHOM_CHECK(op.weights.cols == k && k <= op.logits.cols, "k of E experts");
  FATHOM_CHECK(k <= kMostActive && op.logits.cols <= kMostExperts, "a router of this size");
  launch(c, "route", route, dim3(static_cast<unsigned>(op.logits.rows)), kThreads, 0, op,
         static_cast<int>(op.logits.cols), static_cast<int>(k));
}

}  // namespace fathom::ops::cuda
