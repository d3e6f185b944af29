// alone: products of many FP4 matrices with a few tokens each, as the experts of 9 to some hundred tokens are. A warp
// sums whole rows alone, one segment after the other: no warp waits for another but when a block's inputs change.
//
// A unit is 16 rows of one item's matrix, or of w1 and w3. A block has a contiguous range of units, its warps take
// them in turn, and their weights are on their way across the borders of units. The inputs of as many items as fit are
// in shared memory: that is a pass.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace fathom::ops::cuda {

inline constexpr std::size_t kAloneShared = std::size_t{65} << 10;  // for inputs: two blocks leave L1 its half
inline constexpr int kAloneItems = 16;                              // of a pass
inline constexpr int kAloneTokens = 8;                              // of an item

// Numbers from row to row of inputs in shared memory: 16 bytes more than they are, against bank conflicts.
__host__ __device__ constexpr int alone_pitch(int cols) { return cols + 8; }
// Rows of inputs that fit; at least an item's where a matrix is for this kernel.
__host__ __device__ constexpr int alone_rows(int cols) {
  return static_cast<int>(kAloneShared / (2 * static_cast<std::size_t>(alone_pitch(cols))));
}

// The items whose inputs are in shared memory.
struct Pass {
  struct Of {
    WeightView w[2];
    int first;  // list entries
    int count;
    int row;  // of shared memory
  };
  Of items[kAloneItems];
  int n;
  int from;  // the first of them
};

// Where a warp reads the rows of a unit, a lane's share of rows g and g + 8, from its next block on.
template <int kMatrices>
struct AloneLines {
  const std::byte* data[kMatrices];
  const std::byte* scale[kMatrices];
};

// A lane's codes of one block of rows g and g + 8.
struct AloneBlock {
  uint4 v[2];
  std::uint32_t scale[2];
};

__device__ inline void prefetch_line(const std::byte* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Takes the items of units [unit, end) that fit into the pass, by one thread; returns the first unit that is not in it.
template <bool kGate>
__device__ int plan_pass(const Job& job, int tiles, int unit, int end, int rows, Pass& pass) {
  pass.n = 0;
  pass.from = unit / tiles;
  for (int row = 0; unit < end && pass.n < kAloneItems; unit = (pass.from + pass.n) * tiles) {
    const Work<kGate> work(job, pass.from + pass.n, kAloneTokens);
    if (row + work.count > rows) break;
    Pass::Of& of = pass.items[pass.n++];
    for (int m = 0; m < (kGate ? 2 : 1); ++m) of.w[m] = work.w[m];
    of.first = work.first;
    of.count = work.count;
    of.row = row;
    row += work.count;
  }
  return min(unit, end);
}

// The inputs of a pass into shared memory, as rows of `pitch` numbers.
__device__ inline void stage_pass(const Job& job, const Pass& pass, std::uint16_t* to, int pitch) {
  const Pass::Of& last = pass.items[pass.n - 1];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  // Entries of items in a row follow one another.
  for (int row = warp; row < last.row + last.count; row += kMatmulWarps) {
    const int entry = pass.items[0].first + row;
    const std::int64_t x = job.list != nullptr ? job.list[entry] : entry;
    const auto* from = reinterpret_cast<const uint4*>(job.x.data + x * job.x.row_stride);
    auto* out = reinterpret_cast<uint4*>(to + row * pitch);
#pragma unroll 4
    for (int i = lane; i < job.cols / 8; i += kWarp) out[i] = from[i];
  }
}

template <bool kGate>
__global__ void __launch_bounds__(kMatmulThreads, 2) alone(const __grid_constant__ Job job) {
  using Codes = Loader<Format::kFp4>;
  constexpr int kMatrices = kGate ? 2 : 1;
  constexpr int kAhead = kGate ? 2 : 4;  // blocks of weights under way, of each matrix
  constexpr int kBytes = kBlock / 2;
  constexpr int kLine = 128;  // bytes that a prefetch brings
  constexpr int kScales = kBlock / quant::kFp4Block;
  extern __shared__ uint4 alone_shared[];
  __shared__ Pass pass;
  __shared__ int pass_end;
  auto* const staged = reinterpret_cast<std::uint16_t*>(alone_shared);
  const int pitch = alone_pitch(job.cols);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const int tiles = (job.group_rows + 15) / 16;
  await_previous();
  const std::int64_t units = std::int64_t{*job.n_items} * tiles;
  const auto begin = static_cast<int>(units * blockIdx.x / gridDim.x);
  const auto end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);

  AloneLines<kMatrices> at;
  std::int64_t eight = 0;  // bytes from row g to row g + 8
  std::int64_t eight_scales = 0;
  const auto aim = [&](int unit) {
    const int item = unit / tiles;
    const int row = (unit - item * tiles) * 16 + g;
    const int lower = min(row, job.group_rows - 1);
    const int down = min(row + 8, job.group_rows - 1) - lower;
    eight = down * job.row_bytes;
    eight_scales = down * job.scale_stride;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const WeightView& w = pass.items[item - pass.from].w[m];
      at.data[m] = w.data + lower * job.row_bytes + 16 * t;
      at.scale[m] = w.scales + lower * job.scale_stride + t;
    }
  };
  // The lane's part of what a round of a unit reads, 32 lines: where the row begins.
  const auto line_of = [&](int unit) {
    const int item = unit / tiles;
    const int row = min((unit - item * tiles) * 16 + lane % 16, job.group_rows - 1);
    const WeightView& w = pass.items[item - pass.from].w[kGate ? lane / 16 : 0];
    return w.data + row * job.row_bytes;
  };
  const int line_part = kGate ? 0 : lane / 16 * kLine;
  AloneBlock ring[kAhead][kMatrices];
  const auto read = [&](int slot) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ring[slot][m].v[r] = read16(at.data[m] + (r == 0 ? 0 : eight) + slot * kBytes);
        ring[slot][m].scale[r] =
            static_cast<std::uint32_t>(at.scale[m][(r == 0 ? 0 : eight_scales) + slot * kScales]);
      }
    }
  };

  for (int from = begin; from < end; from = pass_end) {
    __syncthreads();  // nobody reads the pass before
    if (threadIdx.x == 0) pass_end = plan_pass<kGate>(job, tiles, from, end, alone_rows(job.cols), pass);
    __syncthreads();
    const int to = pass_end;
    const bool any = from + warp < to;
    if (any) {
      aim(from + warp);
#pragma unroll
      for (int d = 0; d < kAhead; ++d) {
        if (d < job.blocks) read(d);
      }
    }
    stage_pass(job, pass, staged, pitch);
    __syncthreads();
#pragma unroll 1
    for (int unit = from + warp; unit < to; unit += kMatmulWarps) {
      const Pass::Of& of = pass.items[unit / tiles - pass.from];
      const bool there = g < of.count;
      const std::uint16_t* x = staged + (of.row + (there ? g : 0)) * pitch + 16 * t;
      float sum[kMatrices][4] = {};
      float total[kMatrices][4] = {};
      int segment = 0;
      int segment_end = job.blocks / job.segments;
      const std::byte* const line = line_of(unit);
      const std::byte* const next_line = line_of(unit + kMatmulWarps < to ? unit + kMatmulWarps : unit);
#pragma unroll 1
      for (int b0 = 0; b0 < job.blocks; b0 += kAhead) {
        // The round after the one that is read now comes into L2.
        const int far = b0 + 2 * kAhead;
        const bool here = far < job.blocks;
        const int offset = (here ? far : far - job.blocks) * kBytes + line_part;
        if (offset + kLine <= job.row_bytes) prefetch_line((here ? line : next_line) + offset);
        // `at` is where the round after this one begins.
        const bool unit_ends = b0 + kAhead >= job.blocks;
        int left = job.blocks - b0 - kAhead;  // of blocks, there
        if (!unit_ends) {
#pragma unroll
          for (int m = 0; m < kMatrices; ++m) {
            at.data[m] += kAhead * kBytes;
            at.scale[m] += kAhead * kScales;
          }
        } else {
          left = 0;
          if (unit + kMatmulWarps < to) {
            aim(unit + kMatmulWarps);
            left = job.blocks;
          }
        }
#pragma unroll
        for (int d = 0; d < kAhead; ++d) {
          const int b = b0 + d;
          if (b < job.blocks) {
            float part[kMatrices][4] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              uint4 x0 = {0, 0, 0, 0};
              uint4 x1 = {0, 0, 0, 0};
              if (there) {
                const auto* in = reinterpret_cast<const uint4*>(x + d * kBlock + 64 * half);
                x0 = in[0];
                x1 = in[1];
              }
#pragma unroll
              for (int m = 0; m < kMatrices; ++m) {
                std::uint32_t lower[8];
                std::uint32_t upper[8];
                Codes::expand({ring[d][m].v[0], ring[d][m].scale[0]}, half, 0, lower);
                Codes::expand({ring[d][m].v[1], ring[d][m].scale[1]}, half, 0, upper);
                mma_chunk(part[m], lower, upper, x0, x1);
              }
            }
            if (d < left) read(d);
            const float scale = Codes::block_scale(job, {}, 0, 0);
#pragma unroll
            for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[m][i] = fmaf(part[m][i], scale, sum[m][i]);
            }
            if (b + 1 == segment_end) {
#pragma unroll
              for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                  total[m][i] = segment == 0 ? sum[m][i] : total[m][i] + sum[m][i];
                  sum[m][i] = 0;
                }
              }
              ++segment;
              segment_end = job.blocks * (segment + 1) / job.segments;
            }
          } else if (d < left) {
            read(d);
          }
        }
        x += kAhead * kBlock;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        write_result<kGate>(job, of.first, of.count, (unit % tiles) * 16, 0, 0, i, total[0][i],
                            total[kMatrices - 1][i]);
      }
    }
  }
}

}  // namespace fathom::ops::cuda
