#include <algorithm>

#include "ops/cuda/entry.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/indexer/index_mma.cuh"

namespace fathom::ops::cuda {
namespace {

// Scores: a block takes kEntries entries of one token, heads in rounds of kHeads. A thread has 4 x 4 products.
constexpr int kScoreThreads = 256;
constexpr int kEntries = 64;
constexpr int kHeads = 64;
constexpr int kSide = 16;  // threads along heads, and along entries
constexpr int kPad = 4;    // floats between rows of shared memory: 16-byte reads of 8 rows touch every bank once

// Entries that exist for the token at `position`.
__device__ int existing(int position, int ratio) { return (position + 1) / ratio; }

__device__ float dot4(float4 a, float4 b, float sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  return fmaf(a.w, b.w, sum);
}

// scores [tokens of this launch, stride]; t0: its first token.
__global__ void __launch_bounds__(kScoreThreads)
    index_scores(IndexSelect op, DevicePages keys, int dim, int t0, float* scores, std::int64_t stride) {
  await_previous();
  extern __shared__ float4 shared4[];
  auto* q = reinterpret_cast<float*>(shared4);
  const int row = dim + kPad;
  float* k = q + kHeads * row;
  const std::int64_t t = t0 + static_cast<std::int64_t>(blockIdx.y);
  const int exist = existing(op.batch.positions[t], keys.ratio);
  const int first = static_cast<int>(blockIdx.x) * kEntries;
  if (exist <= op.selected.cols || first >= exist) return;  // all are selected, nothing is scored
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
#pragma unroll 4
  for (int e = warp; e < kEntries; e += kScoreThreads / kWarp) {
    for (int at = 4 * lane; at < dim; at += 4 * kWarp) {
      const float4 v = first + e < exist ? decode4(keys.codec, keys.at(s, first + e), at) : float4{0, 0, 0, 0};
      *reinterpret_cast<float4*>(k + e * row + at) = v;
    }
  }
  const int side_h = threadIdx.x % kSide;
  const int side_e = threadIdx.x / kSide;
  float sums[4] = {0, 0, 0, 0};
  for (int h0 = 0; h0 < op.heads; h0 += kHeads) {
    __syncthreads();
#pragma unroll 4
    for (int h = warp; h < kHeads; h += kScoreThreads / kWarp) {
      const float* from = op.q.data + t * op.q.ld + static_cast<std::int64_t>(h0 + h) * dim;
      for (int at = 4 * lane; at < dim; at += 4 * kWarp) {
        const float4 v =
            h0 + h < op.heads ? float4{from[at], from[at + 1], from[at + 2], from[at + 3]} : float4{0, 0, 0, 0};
        *reinterpret_cast<float4*>(q + h * row + at) = v;
      }
    }
    __syncthreads();
    float dots[4][4] = {};
    for (int at = 0; at < dim; at += 4) {
      float4 a[4];
      float4 b[4];
      for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(q + (side_h + kSide * i) * row + at);
      for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const float4*>(k + (side_e + kSide * j) * row + at);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) dots[i][j] = dot4(a[i], b[j], dots[i][j]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      const int h = h0 + side_h + kSide * i;
      if (h >= op.heads) continue;
      const float weight = carry_to(op.weights.data[t * op.weights.ld + h] * op.scale, op.carrier);
      for (int j = 0; j < 4; ++j) {
        const float dot = carry_to(dots[i][j], op.carrier);
        // As std::max(0, dot): a NaN counts as nothing.
        sums[j] += carry_to(weight * (dot > 0.0F ? dot : 0.0F), op.carrier);
      }
    }
  }
  for (int j = 0; j < 4; ++j) {
    for (int d = kSide / 2; d > 0; d /= 2) sums[j] += __shfl_xor_sync(kAll, sums[j], d);
    const int e = first + side_e + kSide * j;
    if (side_h == 0 && e < exist)
      scores[static_cast<std::int64_t>(blockIdx.y) * stride + e] = carry_to(sums[j], op.carrier);
  }
}

// Selection: one block a token. A radix search finds the k-th highest score, then one pass in order of the entries
// takes what is above it and the first of its equals.
constexpr int kSelectThreads = 1024;
constexpr int kDigit = 256;

// Rises with the score; NaN lowest; both zeros alike.
__device__ std::uint32_t ordered(float score) {
  if (isnan(score)) return 0;
  const std::uint32_t u = __float_as_uint(score == 0.0F ? 0.0F : score);
  return u ^ ((u >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}

// The k-th highest key, and how many of its equals are among the k highest.
struct Border {
  std::uint32_t key;
  int equals;
};

__device__ Border find_border(const float* scores, int n, int k) {
  __shared__ int counts[kDigit];
  __shared__ std::uint32_t digit;
  __shared__ int left;
  std::uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigit; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const std::uint32_t key = ordered(scores[i]);
      if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&counts[key >> shift & 255U], 1);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {  // digits from the highest down, 8 to a lane
      constexpr int kEach = kDigit / kWarp;
      const int highest = kDigit - 1 - static_cast<int>(threadIdx.x) * kEach;
      int mine = 0;
      for (int i = 0; i < kEach; ++i) mine += counts[highest - i];
      int upto = mine;
      for (int d = 1; d < kWarp; d *= 2) {
        const int lower = __shfl_up_sync(kAll, upto, d);
        if (static_cast<int>(threadIdx.x) >= d) upto += lower;
      }
      if (upto - mine < k && k <= upto) {
        int above = upto - mine;
        int d = highest;
        while (above + counts[d] < k) above += counts[d--];
        digit = static_cast<std::uint32_t>(d);
        left = k - above;
      }
    }
    __syncthreads();
    prefix = prefix << 8 | digit;
    k = left;
    __syncthreads();
  }
  return {prefix, k};
}

__global__ void __launch_bounds__(kSelectThreads)
    index_select(IndexSelect op, int ratio, int t0, const float* scores, std::int64_t stride) {
  await_previous();
  const std::int64_t t = t0 + static_cast<std::int64_t>(blockIdx.x);
  const int exist = existing(op.batch.positions[t], ratio);
  const auto most = static_cast<int>(op.selected.cols);
  const int k = min(exist, most);
  std::int32_t* selected = op.selected.data + t * op.selected.ld;
  for (int i = k + static_cast<int>(threadIdx.x); i < most; i += kSelectThreads) selected[i] = -1;
  if (exist <= most) {
    for (int i = threadIdx.x; i < k; i += kSelectThreads) selected[i] = i;
    return;
  }
  const float* mine = scores + static_cast<std::int64_t>(blockIdx.x) * stride;
  const Border border = find_border(mine, exist, k);

  // Counts of entries above the border (low half) and equal to it (high half), before this thread's.
  __shared__ int warps[kSelectThreads / kWarp];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  int above = 0;
  int equal = 0;
  for (int begin = 0; begin < exist; begin += kSelectThreads) {
    const int e = begin + static_cast<int>(threadIdx.x);
    const std::uint32_t key = e < exist ? ordered(mine[e]) : 0;
    const bool is_above = e < exist && key > border.key;
    const bool is_equal = e < exist && key == border.key;
    const unsigned above_mask = __ballot_sync(kAll, is_above);
    const unsigned equal_mask = __ballot_sync(kAll, is_equal);
    if (lane == 0) warps[warp] = __popc(above_mask) | __popc(equal_mask) << 16;
    __syncthreads();
    int before = 0;
    int all = 0;
    for (int w = 0; w < kSelectThreads / kWarp; ++w) {
      if (w < warp) before += warps[w];
      all += warps[w];
    }
    const unsigned lower = (1U << lane) - 1U;
    const int above_before = above + (before & 0xffff) + __popc(above_mask & lower);
    const int equal_before = equal + (before >> 16) + __popc(equal_mask & lower);
    if (is_above || (is_equal && equal_before < border.equals))
      selected[above_before + min(equal_before, border.equals)] = e;
    above += all & 0xffff;
    equal += all >> 16;
    __syncthreads();
  }
}

}  // namespace

void run(Context& c, const IndexSelect& op) {
  FATHOM_CHECK(op.weights.cols == op.heads && op.keys.ratio > 0, "one weight per head, entries that exist");
  const auto dim = static_cast<int>(op.q.cols / op.heads);
  FATHOM_CHECK(dim % 4 == 0 && op.keys.codec.dim == dim, "keys of the queries' width");
  const std::int64_t stride = std::max(op.batch.longest / op.keys.ratio, 1);
  // Scores of a long prompt's tokens would fill the device: a few tokens at a time.
  constexpr std::int64_t kMostScores = std::int64_t{64} << 20;
  if (c.kernels.uses(Leaf::kIndexSelectMma) && on_tensor_units(op)) {
    ScoreKeys scores{.data = nullptr, .ld = (stride + 7) / 8 * 8, .t0 = 0, .tokens = 0};
    const auto at_once = static_cast<std::int32_t>(std::clamp<std::int64_t>(kMostScores / scores.ld, 1, 32768));
    for (; scores.t0 < op.batch.tokens; scores.t0 += at_once) {
      scores.tokens = std::min(at_once, op.batch.tokens - scores.t0);
      if (stride > op.selected.cols) {
        scores.data = reinterpret_cast<std::uint16_t*>(c.scratch->take(
            sizeof(std::uint16_t) * static_cast<std::size_t>(scores.ld) * static_cast<std::size_t>(scores.tokens),
            c.fault));
        score_entries(c, op, scores);
      }
      select_entries(c, op, scores);
    }
    return;
  }
  const auto tokens = static_cast<std::int32_t>(std::clamp<std::int64_t>(kMostScores / stride, 1, 32768));
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>((kHeads + kEntries) * (dim + kPad));
  for (std::int32_t t0 = 0; t0 < op.batch.tokens; t0 += tokens) {
    const auto n = static_cast<unsigned>(std::min(tokens, op.batch.tokens - t0));
    float* scores = nullptr;
    if (stride > op.selected.cols) {
      scores = reinterpret_cast<float*>(c.scratch->take(sizeof(float) * static_cast<std::size_t>(stride) * n, c.fault));
      launch(c, "index_scores", index_scores, dim3(static_cast<unsigned>(ceil_div(stride, kEntries)), n), kScoreThreads,
             shared, op, DevicePages(op.keys), dim, t0, scores, stride);
    }
    launch(c, "index_select", index_select, dim3(n), kSelectThreads, 0, op, op.keys.ratio, t0, scores, stride);
  }
}

}  // namespace fathom::ops::cuda
