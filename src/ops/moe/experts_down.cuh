// down_sum: y of few tokens from what SwiGLU left, their sum over the experts included. A block has 16 columns of y and
// all matrices: the shared expert's, whose weights are on their way before the choices are known, then the chosen
// ones'. A warp sums one segment of the inputs of every few matrices; the block adds segments and experts.
#pragma once

#include "ops/cuda/planes.cuh"
#include "ops/cuda/small_plan.cuh"
#include "ops/cuda/steps.cuh"

namespace fathom::ops::cuda {

struct DownJob {
  Job routed;  // the table's w2
  Job shared;
  Choices choices;
  Mat<const float> z;  // [T*k + T, I]: the plan's list, then the tokens
  Values values;
  Order routed_order;
  Order shared_order;
  int pitch;  // numbers from row to row of z in shared memory
  Mat<float> y;
  Carrier carrier;
};

template <Format R, Format S>
__global__ void __launch_bounds__(kMatmulThreads, 2) down_sum(const __grid_constant__ DownJob d) {
  extern __shared__ uint4 down_shared[];
  __shared__ SmallPlan plan;
  const int segments = d.routed.segments;
  const int parts = kMatmulWarps / segments;  // a warp has every parts-th matrix
  const int choices = d.choices.tokens * d.choices.k;
  auto* const staged = reinterpret_cast<std::uint16_t*>(down_shared);
  auto* const sums = reinterpret_cast<float*>(staged + d.z.rows * d.pitch);  // [matrices][segments][4][kWarp]
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int segment = warp % segments;
  const Span span = span_of(d.routed, segment);
  const int row0 = static_cast<int>(blockIdx.x) * 16;

  // Matrix 0 is the shared one's. `ahead` is the round after `now`.
  struct At {
    int matrix;
    int block;
  };
  const auto round_of = [&](int matrix) { return matrix == 0 ? round_blocks<S, 1>() : round_blocks<R, 1>(); };
  const auto next = [&](At at) {
    at.block += round_of(at.matrix);
    return at.block < span.end ? at : At{at.matrix + parts, span.begin};
  };
  Lines lines;
  const auto aim = [&](At at) {
    if (at.matrix == 0) {
      lines = lines_of<S>(d.shared, d.shared.w[0], 0, row0 + lane / 4, at.block);
    } else {
      lines = lines_of<R>(d.routed, plan.w[at.matrix - 1][0], 0, row0 + lane / 4, at.block);
    }
  };
  Step ring[kRound];
  const auto read = [&](int s, At at) {
    const int left = span.end - at.block;
    if (at.matrix == 0) {
      if (s * Steps<S>::kBlocks < left * Steps<S>::kPerBlock)
        Steps<S>::load(ring[s], lines, s, left, d.shared.scales_f32);
    } else {
      if (s * Steps<R>::kBlocks < left * Steps<R>::kPerBlock)
        Steps<R>::load(ring[s], lines, s, left, d.routed.scales_f32);
    }
  };
  allow_next();
  At now{warp / segments, span.begin};
  const auto start = [&] {
    aim(now);
#pragma unroll
    for (int s = 0; s < kRound; ++s) read(s, now);
  };
  if (now.matrix == 0) start();
  await_results();
  make_small_plan<Part::kDown>(d.choices, plan);
  const int matrices = 1 + plan.n_items;
  if (now.matrix != 0 && now.matrix < matrices) start();
  stage_rows(
      static_cast<int>(d.z.rows), d.routed.cols, d.values, [&](int n) { return d.z.data + n * d.z.ld; },
      [&](int n) { return n < choices ? d.routed_order : d.shared_order; }, staged, d.pitch);
  __syncthreads();

  float acc[4] = {};
  float part[4];
#pragma unroll 1
  while (now.matrix < matrices) {
    const At ahead = next(now);
    const bool more = ahead.matrix < matrices;
    if (more) aim(ahead);
    const Item item = now.matrix == 0 ? Item{0, choices, d.choices.tokens} : plan.items[now.matrix - 1];
    const bool there = lane / 4 < item.count;
    const std::uint16_t* const x =
        staged + (item.first + (there ? lane / 4 : 0)) * d.pitch + 16 * (lane % 4) + now.block * kBlock;
    const int left = span.end - now.block;
#pragma unroll
    for (int s = 0; s < kRound; ++s) {
      if (now.matrix == 0) {
        if (s * Steps<S>::kBlocks < left * Steps<S>::kPerBlock)
          Steps<S>::add(acc, part, ring[s], x, there, s, left, d.shared.scales_f32);
      } else {
        if (s * Steps<R>::kBlocks < left * Steps<R>::kPerBlock)
          Steps<R>::add(acc, part, ring[s], x, there, s, left, d.routed.scales_f32);
      }
      if (more) read(s, ahead);
    }
    if (ahead.matrix != now.matrix) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[((now.matrix * segments + segment) * 4 + i) * kWarp + lane] = acc[i];
        acc[i] = 0;
      }
    }
    now = ahead;
  }
  __syncthreads();
  // Segments first, every matrix's 16 x 8 results rounded; then each token's experts.
  for (int i = threadIdx.x; i < matrices * 4 * kWarp; i += kMatmulThreads) {
    float* const of = sums + i / (4 * kWarp) * segments * 4 * kWarp + i % (4 * kWarp);
    float total = of[0];
    for (int s = 1; s < segments; ++s) total += of[s * 4 * kWarp];
    of[0] = carry_to(total, d.carrier);
  }
  __syncthreads();
  const auto result = [&](int matrix, int row, int n) {
    return sums[(matrix * segments * 4 + (row >= 8 ? 2 : 0) + n % 2) * kWarp + row % 8 * 4 + n / 2];
  };
  for (int i = threadIdx.x; i < 16 * d.choices.tokens; i += kMatmulThreads) {
    const int row = i % 16;
    const int token = i / 16;
    if (row0 + row >= d.shared.group_rows) continue;
    float sum = 0;
    for (int j = 0; j < d.choices.k; ++j) {
      const int entry = plan.place[token * d.choices.k + j];
      int item = 0;
      while (entry >= plan.items[item].first + plan.items[item].count) ++item;
      sum += result(1 + item, row, entry - plan.items[item].first);
    }
    sum += result(0, row, token);
    d.y.data[token * d.y.ld + row0 + row] = carry_to(sum, d.carrier);
  }
}

}  // namespace fathom::ops::cuda
