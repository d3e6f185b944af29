// The compressor, for one token by one block, as a part of kernels that do more.
#pragma once

#include "ops/compressor/compress.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row.cuh"

namespace fathom::ops::cuda {

inline constexpr int kCompressThreads = 256;
inline constexpr int kMostAngles = 128;  // pairs of an entry that are rotated

struct DeviceCompress {
  Compress op;
  DevicePages pages;
  explicit DeviceCompress(const Compress& c) : op(c), pages(c.entries) {}
};

// Rows whose softmax four channels are under way with.
struct Pool {
  float4 top;  // the highest score
  float4 weights;
  float4 sum;
};

struct CompressShared {
  Pool pools[kCompressThreads];
  alignas(16) float cos[kMostAngles];
  alignas(16) float sin[kMostAngles];
};

__device__ inline float* ring_row(const CompressorRing& r, std::byte* slot, int position) {
  return reinterpret_cast<float*>(slot + r.offset) + static_cast<std::int64_t>(position % r.capacity) * 2 * r.width;
}

// Adds n rows of one channel.
template <int n>
__device__ void add_rows(float& top, float& weights, float& sum, const float (&score)[n], const float (&value)[n],
                         int live) {
  float higher = top;
#pragma unroll
  for (int k = 0; k < n; ++k) higher = k < live ? fmaxf(higher, score[k]) : higher;
  const float base = higher == -INFINITY ? 0.0F : higher;
  const float keep = expf(top - base);
  weights *= keep;
  sum *= keep;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const float w = k < live ? expf(score[k] - base) : 0.0F;
    weights += w;
    sum = k < live ? fmaf(w, value[k], sum) : sum;
  }
  top = higher;
}

// The rows of an entry: positions [from, first + ratio), from the ring where they were before this step. Columns are
// the first of `dim` for positions before `first`, where windows overlap.
struct Window {
  int from;
  int first;
  int rows;
  bool overlap;
};

// Rows group, group + groups, ... of channels [4 quad, 4 quad + 4).
__device__ inline Pool pool(const Compress& op, const Segment& s, const Window& w, int dim, int quad, int group,
                            int groups) {
  constexpr int kAhead = 4;
  Pool p = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, 0, 0, 0}, {0, 0, 0, 0}};
  for (int begin = group; begin < w.rows; begin += groups * kAhead) {
    const int live = min((w.rows - begin + groups - 1) / groups, kAhead);
    float4 score[kAhead];
    float4 bias[kAhead];
    float4 value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      score[k] = bias[k] = value[k] = {0, 0, 0, 0};
      if (k >= live) continue;
      const int position = w.from + begin + k * groups;
      const int column = (w.overlap && position >= w.first ? dim : 0) + 4 * quad;
      if (position < s.start) {
        const float* row = ring_row(op.ring, s.slot, position) + column;
        value[k] = load4(row);
        score[k] = load4(row + op.ring.width);
      } else {
        const std::int64_t t = s.first_row + position - s.start;
        value[k] = load4(op.kv.data + t * op.kv.ld + column);
        score[k] = load4(op.score.data + t * op.score.ld + column);
        bias[k] = load4(op.ape + static_cast<std::int64_t>(position % op.entries.ratio) * op.score.cols + column);
      }
    }
    const auto channel = [&](float float4::*at) {
      float scores[kAhead];
      float values[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        scores[k] = score[k].*at + bias[k].*at;
        values[k] = value[k].*at;
      }
      add_rows(p.top.*at, p.weights.*at, p.sum.*at, scores, values, live);
    };
    channel(&float4::x);
    channel(&float4::y);
    channel(&float4::z);
    channel(&float4::w);
  }
  return p;
}

// Four channels of an entry from the pools of all groups.
__device__ inline float4 pooled(const Pool* pools, int quads, int groups) {
  const auto channel = [&](float float4::*at) {
    float top = -INFINITY;
    for (int g = 0; g < groups; ++g) top = fmaxf(top, pools[g * quads].top.*at);
    const float base = top == -INFINITY ? 0.0F : top;
    float weights = 0;
    float sum = 0;
    for (int g = 0; g < groups; ++g) {
      const Pool& p = pools[g * quads];
      const float keep = expf(p.top.*at - base);
      weights = fmaf(keep, p.weights.*at, weights);
      sum = fmaf(keep, p.sum.*at, sum);
    }
    return sum / weights;
  };
  return {channel(&float4::x), channel(&float4::y), channel(&float4::z), channel(&float4::w)};
}

// If token t ends a window: its entry, by a block of kCompressThreads. Waits for the kernel in front.
__device__ inline void make_entry(const DeviceCompress& c, std::int64_t t, CompressShared& shared) {
  const Compress& op = c.op;
  const int ratio = op.entries.ratio;
  const int position = op.batch.positions[t];
  if ((position + 1) % ratio != 0) return;
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  const int dim = c.pages.codec.dim;
  const int first = position + 1 - ratio;
  std::byte* out = c.pages.at(s, first / ratio);
  const int quads = dim / 4;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int j = kCompressThreads - 1 - thread; j < op.rope_dim / 2; j += kCompressThreads) {
    double sine = 0;
    double cosine = 0;
    ::sincos(double{__fmul_rn(static_cast<float>(first), op.frequencies[j])}, &sine, &cosine);
    shared.cos[j] = static_cast<float>(cosine);
    shared.sin[j] = static_cast<float>(sine);
  }
  const float4 weight = thread < quads ? load4(op.norm_weight + 4 * thread) : float4{0, 0, 0, 0};
  await_results();
  const bool overlap = op.ring.width == 2 * dim;
  const int from = overlap && first > 0 ? first - ratio : first;
  const int groups = min(kCompressThreads / quads, 8);
  if (thread < groups * quads) {
    shared.pools[thread] =
        pool(op, s, {from, first, first + ratio - from, overlap}, dim, thread % quads, thread / quads, groups);
  }
  __syncthreads();
  float4 x = {0, 0, 0, 0};
  if (thread < quads) x = carry4(pooled(shared.pools + thread, quads, groups), op.carrier);
  const float rho = rms_scale(block_sum<kCompressThreads>(dot4(x, x, 0.0F)), dim, op.eps);
  if (thread / kWarp * kWarp >= quads) return;
  x = norm4(x, weight, rho, op.carrier);
  const int i = 4 * thread;
  const int plain = dim - op.rope_dim;
  if (i >= plain && i < dim) {
    const int j = (i - plain) / 2;
    rotate4(x, {shared.cos[j], shared.cos[j + 1]}, {shared.sin[j], shared.sin[j + 1]}, op.carrier);
  }
  if (op.kind == EntryKind::kIndex) {
    x = carry4(hadamard4(x, dim), op.carrier);
    if (op.quantise) x = fp4_round_trip4(x);
  } else if (op.quantise) {
    const float4 rounded = fp8_round_trip4(x, i, plain);
    if (i < plain) x = rounded;
  }
  encode4(c.pages.codec, x, i, out);
}

// Puts four columns of a token's projections into the ring, if later entries need them: the item-th four of all tokens.
__device__ inline void keep_four(const Compress& op, std::int64_t item) {
  const int quads = op.ring.width / 4;
  const std::int64_t t = item / quads;
  if (t >= op.batch.tokens) return;
  const auto i = static_cast<int>(item % quads) * 4;
  const int position = op.batch.positions[t];
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  if (s.tokens - (position - s.start) > op.ring.capacity) return;
  float* row = ring_row(op.ring, s.slot, position) + i;
  const float4 bias = load4(op.ape + static_cast<std::int64_t>(position % op.entries.ratio) * op.score.cols + i);
  await_results();
  const float4 score = load4(op.score.data + t * op.score.ld + i);
  store4(row, load4(op.kv.data + t * op.kv.ld + i));
  store4(row + op.ring.width, {score.x + bias.x, score.y + bias.y, score.z + bias.z, score.w + bias.w});
}

}  // namespace fathom::ops::cuda
