// stream: a matrix product for few tokens. A warp sums one segment of 16 rows; the block adds the segments. W goes past
// once.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace fathom::ops::cuda {

// Blocks of weights that a lane has under way: about 128 bytes.
template <Format F, bool kGate>
__host__ __device__ constexpr int stream_depth() {
  if (F == Format::kFp4) return kGate ? 2 : 4;
  if (F == Format::kFp8) return kGate ? 1 : 2;
  return 1;
}

// Whether two blocks share a multiprocessor: where 128 registers a thread suffice.
template <Format F, bool kGate, int kTokenGroups>
constexpr int stream_blocks() {
  return kTokenGroups == 1 && F != Format::kWide && (F == Format::kFp4 || !kGate) ? 2 : 1;
}

template <Format F, bool kGate, int kTokenGroups>
__global__ void __launch_bounds__(kMatmulThreads, stream_blocks<F, kGate, kTokenGroups>()) stream(Job job) {
  await_previous();
  constexpr int kMatrices = kGate ? 2 : 1;
  constexpr int kDepth = stream_depth<F, kGate>();
  constexpr int kResults = kMatrices * kTokenGroups * 4;
  __shared__ float sums[kMatmulWarps][kResults][kWarp];
  const Work<kGate> work(job, static_cast<int>(blockIdx.y), 8 * kTokenGroups);
  if (work.count <= 0) return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto group = static_cast<int>(blockIdx.z);
  const int segment = warp % job.segments;
  const int row0 = (static_cast<int>(blockIdx.x) * (kMatmulWarps / job.segments) + warp / job.segments) * 16;
  float acc[kMatrices][kTokenGroups][4] = {};
  if (row0 < job.group_rows) {
    const std::int64_t base = static_cast<std::int64_t>(group) * job.group_rows;
    const std::int64_t rows[2] = {base + min(row0 + g, job.group_rows - 1),
                                  base + min(row0 + g + 8, job.group_rows - 1)};
    const std::uint16_t* x[kTokenGroups];
#pragma unroll
    for (int n = 0; n < kTokenGroups; ++n) {
      x[n] = 8 * n + g < work.count ? work.x(job, 8 * n + g, group) + 16 * t : nullptr;
    }
    const int begin = job.blocks * segment / job.segments;
    const int end = job.blocks * (segment + 1) / job.segments;
    BlockOfRows<F> ring[kDepth][kMatrices];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        if (begin + d < end) ring[d][m] = load_block<F>(job, work.w[m], rows, begin + d, t);
      }
    }
    for (int b0 = begin; b0 < end; b0 += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int b = b0 + d;
        if (b >= end) break;
        BlockOfRows<F> now[kMatrices];
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          now[m] = ring[d][m];
          if (b + kDepth < end) ring[d][m] = load_block<F>(job, work.w[m], rows, b + kDepth, t);
        }
        float part[kMatrices][kTokenGroups][4] = {};
        for (int p = 0; p < job.x.planes; ++p) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            uint4 x0[kTokenGroups];
            uint4 x1[kTokenGroups];
#pragma unroll
            for (int n = 0; n < kTokenGroups; ++n) {
              x0[n] = x1[n] = uint4{0, 0, 0, 0};
              if (x[n] != nullptr) {
                const auto* from = reinterpret_cast<const uint4*>(x[n] + p * job.x.plane_stride + b * kBlock + 64 * c);
                x0[n] = from[0];
                x1[n] = from[1];
              }
            }
#pragma unroll
            for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
              for (int plane = 0; plane < Loader<F>::kPlanes; ++plane) {
                std::uint32_t lower[8];
                std::uint32_t upper[8];
                Loader<F>::expand(now[m].raw[0], c, plane, lower);
                Loader<F>::expand(now[m].raw[1], c, plane, upper);
#pragma unroll
                for (int n = 0; n < kTokenGroups; ++n) mma_chunk(part[m][n], lower, upper, x0[n], x1[n]);
              }
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
          for (int n = 0; n < kTokenGroups; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][n][i] = fmaf(part[m][n][i], now[m].scale[i / 2], acc[m][n][i]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
    for (int n = 0; n < kTokenGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][(m * kTokenGroups + n) * 4 + i][lane] = acc[m][n][i];
    }
  }
  __syncthreads();
  if (segment != 0 || row0 >= job.group_rows) return;
#pragma unroll
  for (int n = 0; n < kTokenGroups; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float total[2] = {0, 0};
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        const int at = (m * kTokenGroups + n) * 4 + i;
        total[m] = sums[warp][at][lane];
        for (int s = 1; s < job.segments; ++s) total[m] += sums[warp + s][at][lane];
      }
      write_result<kGate>(job, work.first, work.count, row0, 8 * n, group, i, total[0], total[1]);
    }
  }
}
}  // namespace fathom::ops::cuda
