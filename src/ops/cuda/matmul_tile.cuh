// tile: a matrix product for many tokens, on any GPU. A block has 128 rows and 64 tokens; x is shared, a warp sums all
// segments one after another, in the order of stream.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace fathom::ops::cuda {

constexpr int kRowWarps = 4;
constexpr int kTokenWarps = kMatmulWarps / kRowWarps;
constexpr int kWarpTokenGroups = kTileTokens / kTokenWarps / 8;
constexpr int kTilePitch = kBlock + 8;  // bf16 numbers from token to token in shared memory, against bank conflicts
constexpr int kTileStage = kTileTokens * kTilePitch;
constexpr int kTileResults = 2 * kWarpTokenGroups * 4;
constexpr std::size_t kTileShared =
    sizeof(std::uint16_t) * 2 * kTileStage + sizeof(float) * kTileResults * kMatmulThreads;

// Rows of one matrix that a block of tile computes.
__host__ __device__ constexpr int tile_rows(bool gate) { return kRowWarps * 16 * (gate ? 1 : 2); }

__device__ inline void copy_async16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0));
}

template <Format F, bool kGate>
__global__ void __launch_bounds__(kMatmulThreads) tile(Job job) {
  await_previous();
  extern __shared__ uint4 tile_shared[];
  auto* staged = reinterpret_cast<std::uint16_t*>(tile_shared);
  auto* totals = reinterpret_cast<float*>(staged + 2 * kTileStage);  // [kTileResults][kMatmulThreads]
  const Work<kGate> work(job, static_cast<int>(blockIdx.y), kTileTokens);
  if (work.count <= 0) return;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto group = static_cast<int>(blockIdx.z);
  const int row0 = static_cast<int>(blockIdx.x) * tile_rows(kGate) + warp % kRowWarps * (kGate ? 16 : 32);
  const int n0 = warp / kRowWarps * (kTileTokens / kTokenWarps);

  // This thread's share of the staging: 4 pieces of 16 bytes, of 4 tokens.
  constexpr int kPieces = kTileTokens * kBlock / 8 / kMatmulThreads;
  const std::uint16_t* from[kPieces];
  for (int i = 0; i < kPieces; ++i) {
    const int n = (static_cast<int>(threadIdx.x) + i * kMatmulThreads) / (kBlock / 8);
    from[i] = n < work.count ? work.x(job, n, group) + threadIdx.x % (kBlock / 8) * 8 : nullptr;
  }
  const int stages = job.blocks * job.x.planes;
  const auto stage = [&](int s) {
    if (s < stages) {
      const std::int64_t at = s % job.x.planes * job.x.plane_stride + s / job.x.planes * kBlock;
      for (int i = 0; i < kPieces; ++i) {
        const int n = (static_cast<int>(threadIdx.x) + i * kMatmulThreads) / (kBlock / 8);
        std::uint16_t* to = staged + s % 2 * kTileStage + n * kTilePitch + threadIdx.x % (kBlock / 8) * 8;
        copy_async16(to, from[i] != nullptr ? from[i] + at : job.x.data, from[i] != nullptr);
      }
    }
    asm volatile("cp.async.commit_group;");
  };

  const std::int64_t base = static_cast<std::int64_t>(group) * job.group_rows;
  std::int64_t rows[2][2];
  for (int m = 0; m < 2; ++m) {
    for (int r = 0; r < 2; ++r) {
      rows[m][r] = base + min(row0 + (kGate ? 0 : 16 * m) + g + 8 * r, job.group_rows - 1);
    }
  }
  float part[2][kWarpTokenGroups][4];
  float sum[2][kWarpTokenGroups][4] = {};
  int segment = 0;
  stage(0);
  // BF16 blocks are too large to have two of them in registers.
  constexpr bool kAhead = F != Format::kBf16;
  BlockOfRows<F> next[2];
  if (kAhead) {
#pragma unroll
    for (int m = 0; m < 2; ++m) next[m] = load_block<F>(job, work.w[kGate ? m : 0], rows[m], 0, t);
  }
  for (int b = 0; b < job.blocks; ++b) {
    BlockOfRows<F> now[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (kAhead) {
        now[m] = next[m];
        if (b + 1 < job.blocks) next[m] = load_block<F>(job, work.w[kGate ? m : 0], rows[m], b + 1, t);
      } else {
        now[m] = load_block<F>(job, work.w[kGate ? m : 0], rows[m], b, t);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kWarpTokenGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) part[m][n][i] = 0;
      }
    }
    for (int p = 0; p < job.x.planes; ++p) {
      const int s = b * job.x.planes + p;
      stage(s + 1);
      asm volatile("cp.async.wait_group 1;");
      __syncthreads();
      const std::uint16_t* x = staged + s % 2 * kTileStage + (n0 + g) * kTilePitch + 16 * t;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int plane = 0; plane < Loader<F>::kPlanes; ++plane) {
          std::uint32_t lower[2][8];
          std::uint32_t upper[2][8];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            Loader<F>::expand(now[m].raw[0], c, plane, lower[m]);
            Loader<F>::expand(now[m].raw[1], c, plane, upper[m]);
          }
#pragma unroll
          for (int n = 0; n < kWarpTokenGroups; ++n) {
            const auto* at = reinterpret_cast<const uint4*>(x + 8 * n * kTilePitch + 64 * c);
            const uint4 x0 = at[0];
            const uint4 x1 = at[1];
#pragma unroll
            for (int m = 0; m < 2; ++m) mma_chunk(part[m][n], lower[m], upper[m], x0, x1);
          }
        }
      }
      __syncthreads();
    }
    const bool last = b + 1 == job.blocks * (segment + 1) / job.segments;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kWarpTokenGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& v = sum[m][n][i];
          v = fmaf(part[m][n][i], now[m].scale[i / 2], v);
          if (!last) continue;
          float& total = totals[((m * kWarpTokenGroups + n) * 4 + i) * kMatmulThreads + threadIdx.x];
          total = segment == 0 ? v : total + v;
          v = 0;
        }
      }
    }
    if (last) ++segment;
  }
#pragma unroll
  for (int n = 0; n < kWarpTokenGroups; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto total = [&](int m) {
        return totals[((m * kWarpTokenGroups + n) * 4 + i) * kMatmulThreads + threadIdx.x];
      };
      if (kGate) {
        write_result<true>(job, work.first, work.count, row0, n0 + 8 * n, group, i, total(0), total(1));
      } else {
        for (int m = 0; m < 2; ++m) {
          write_result<false>(job, work.first, work.count, row0 + 16 * m, n0 + 8 * n, group, i, total(m), 0);
        }
      }
    }
  }
}

}  // namespace fathom::ops::cuda
