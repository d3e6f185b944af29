// A row is cut into parts, a block each: first every part's largest logit, then every part's race, then the best of the
// parts. Cuts change no result: the best is the best in any order.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"
#include "ops/sampling/choose.h"
#include "ops/sampling/noise.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostParts = kWarp;          // of a row: a warp looks at all of them
constexpr std::int64_t kLeastPart = 1024;  // ids

struct Likeliest {
  float logit;
  std::int32_t id;  // -1: nothing above -inf
  bool bad;         // NaN or +inf was seen

  __device__ void join(float other_logit, std::int32_t other_id, bool other_bad) {
    bad = bad || other_bad;
    if (other_logit > logit || (other_logit == logit && other_id < id)) {
      logit = other_logit;
      id = other_id;
    }
  }
};

__device__ Likeliest nothing() { return {-INFINITY, -1, false}; }

__device__ Likeliest warp_likeliest(Likeliest v) {
  for (int d = kWarp / 2; d > 0; d /= 2) {
    v.join(__shfl_xor_sync(kAll, v.logit, d), __shfl_xor_sync(kAll, v.id, d),
           __shfl_xor_sync(kAll, v.bad ? 1 : 0, d) != 0);
  }
  return v;
}

__device__ Leader warp_leader(Leader v) {
  for (int d = kWarp / 2; d > 0; d /= 2) {
    const double worth = __shfl_xor_sync(kAll, v.worth, d);
    const std::int32_t id = __shfl_xor_sync(kAll, v.id, d);
    if (v.beaten_by(worth, id)) v = {worth, id};
  }
  return v;
}

struct Cut {
  std::int64_t length;  // ids of a part
  int parts;            // of a row
};

// Block (part, row).
__global__ void find_likeliest(Choose op, Cut cut, Likeliest* found) {
  await_previous();
  const std::int64_t row = blockIdx.y;
  if (op.rules[row].temperature < 0) return;
  const float* x = op.logits.data + row * op.logits.ld;
  const std::int64_t begin = blockIdx.x * cut.length;
  const std::int64_t end = min(begin + cut.length, op.logits.cols);
  Likeliest mine = nothing();
#pragma unroll 4
  for (std::int64_t id = begin + threadIdx.x; id < end; id += kThreads) {
    const float v = x[id];
    mine.bad = mine.bad || !(v < INFINITY);
    if (v > mine.logit) {
      mine.logit = v;
      mine.id = static_cast<std::int32_t>(id);
    }
  }
  __shared__ Likeliest warps[kWarps];
  mine = warp_likeliest(mine);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  mine = warp_likeliest(threadIdx.x < kWarps ? warps[threadIdx.x] : nothing());
  if (threadIdx.x == 0) found[row * cut.parts + blockIdx.x] = mine;
}

// The row's, from its parts'.
__device__ Likeliest likeliest_of(const Likeliest* found, const Cut& cut, std::int64_t row) {
  const int lane = threadIdx.x % kWarp;
  return warp_likeliest(lane < cut.parts ? found[row * cut.parts + lane] : nothing());
}

// Block (part, row). Every lane looks at its tokens' bounds first and at the whole worth of its most promising one; the
// best of the warp's is then in front, and nearly no other token needs more than its hash.
__global__ void race(Choose op, Cut cut, const Likeliest* found, Leader* leaders) {
  await_previous();
  const std::int64_t row = blockIdx.y;
  const ChoiceRule rule = op.rules[row];
  if (!(rule.temperature > 0)) return;
  const Likeliest first = likeliest_of(found, cut, row);
  if (first.bad || first.id < 0) return;
  const float* x = op.logits.data + row * op.logits.ld;
  const std::int64_t begin = blockIdx.x * cut.length;
  const std::int64_t end = min(begin + cut.length, op.logits.cols);
  // A little less than the rate, so that what is spared is spared rightly: the products are at most 0.
  const double rate = 1.0 / double{rule.temperature} * (1.0 - 0x1p-50);
  const auto bound = [&](std::int64_t id) {
    const std::uint64_t bits = noise::bits(rule.key, static_cast<std::int32_t>(id));
    return (double{x[id]} - double{first.logit}) * rate + noise::bound(bits);
  };
  const auto leader = [&](std::int64_t id) {
    const std::uint64_t bits = noise::bits(rule.key, static_cast<std::int32_t>(id));
    return Leader{tempered(x[id], first.logit, rule.temperature) + noise::value(bits), static_cast<std::int32_t>(id)};
  };
  std::int64_t promising = first.id;
  double most = -INFINITY;
  for (std::int64_t id = begin + threadIdx.x; id < end; id += kThreads) {
    const double b = bound(id);
    if (b > most) {
      most = b;
      promising = id;
    }
  }
  Leader mine = warp_leader(leader(promising));
  for (std::int64_t turn = begin; turn < end; turn += kThreads) {
    const std::int64_t id = turn + threadIdx.x;
    const bool contends = id < end && id != promising && bound(id) >= mine.worth;
    if (__any_sync(kAll, contends) == 0) continue;
    if (contends) {
      const Leader l = leader(id);
      if (mine.beaten_by(l.worth, l.id)) mine = l;
    }
    mine = warp_leader(mine);
  }
  __shared__ Leader warps[kWarps];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  mine = warp_leader(warps[threadIdx.x % kWarps]);
  if (threadIdx.x == 0) leaders[row * cut.parts + blockIdx.x] = mine;
}

// A warp a row.
__global__ void conclude(Choose op, Cut cut, const Likeliest* found, const Leader* leaders) {
  await_previous();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= op.logits.rows) return;
  const int lane = threadIdx.x % kWarp;
  const float temperature = op.rules[row].temperature;
  std::int32_t chosen = kNoChoice;
  if (temperature >= 0) {
    const Likeliest first = likeliest_of(found, cut, row);
    if (!first.bad) chosen = first.id;
    if (chosen >= 0 && temperature > 0) chosen = warp_leader(leaders[row * cut.parts + min(lane, cut.parts - 1)]).id;
  }
  if (lane == 0) op.chosen[row] = chosen;
}

}  // namespace

void run(Context& c, const Choose& op) {
  const std::int64_t rows = op.logits.rows;
  if (rows == 0) return;
  const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(2 * c.multiprocessors, rows), 1, kMostParts);
  const std::int64_t length = std::max<std::int64_t>(ceil_div(op.logits.cols, wanted), kLeastPart);
  const Cut cut{.length = length, .parts = std::max(1, ceil_div(op.logits.cols, length))};
  Pieces pieces;
  const std::size_t found_at = pieces.add<Likeliest>(rows * cut.parts);
  const std::size_t leaders_at = pieces.add<Leader>(rows * cut.parts);
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  auto* found = reinterpret_cast<Likeliest*>(base + found_at);
  auto* leaders = reinterpret_cast<Leader*>(base + leaders_at);
  const dim3 grid(static_cast<unsigned>(cut.parts), static_cast<unsigned>(rows));
  launch(c, "choose_likeliest", find_likeliest, grid, kThreads, 0, op, cut, found);
  launch(c, "choose_race", race, grid, kThreads, 0, op, cut, found, leaders);
  launch(c, "choose", conclude, dim3(static_cast<unsigned>(ceil_div(rows, kWarps))), kThreads, 0, op, cut, found,
         leaders);
}

}  // namespace fathom::ops::cuda
