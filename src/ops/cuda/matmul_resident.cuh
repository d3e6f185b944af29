// resident: some matrices of one format for 9 to 64 tokens on Hopper. A block keeps one segment of the inputs of all
// tokens in shared memory and lets rows of W go past, once: three warpgroups, each expands 64 rows into registers and
// multiplies, none waits for another. Sums of segments go through memory, where a second launch adds them up.
#pragma once

#include <algorithm>

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/wgmma.cuh"

namespace fathom::ops::cuda {

inline constexpr int kResidentGroups = 3;  // warpgroups of a block
inline constexpr int kResidentThreads = kResidentGroups * 128;
inline constexpr int kResidentRows = 64;          // of a tile
inline constexpr int kResidentTokens = 64;        // at most
inline constexpr std::int64_t kResidentUnits = 2048;  // of a launch: the sums that they leave stay in L2
inline constexpr int kResidentJobs = 8;

// Tokens as the instruction takes them.
constexpr int resident_tokens(std::int64_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

// A matrix, or w1 and w3, of a launch. A part is a segment of a group's inputs with one of the matrices, a unit a part
// of one tile.
struct ResidentJob {
  Job job;
  int parts;
  int first_tile;  // tiles [first_tile, first_tile + tiles) of every group
  int tiles;
  int members;      // blocks that share a part's tiles
  int first_block;  // of the launch that multiplies
  int first_adder;  // of the launch that adds up
  float4* sums;     // [parts][tiles][tokens / 8][128], of a thread's two rows and two tokens
};

struct ResidentList {
  int n;
  ResidentJob jobs[kResidentJobs];
};

// Which part of its job's a block has.
struct ResidentPart {
  int segment;
  int group;
  int matrix;

  __device__ ResidentPart(const Job& job, int part)
      : segment(part % job.segments),
        group(part / job.segments % job.groups),
        matrix(part / job.segments / job.groups) {}
};

#if FATHOM_WGMMA

// Reads a lane's share of rows g and g + 8 of a tile.
template <Format F>
struct ResidentReader {
  static constexpr int kPieces = F == Format::kBf16 ? 4 : 2;  // of 16 bytes, of a row and block
  static constexpr int kBytes = F == Format::kBf16 ? 256 : 128;
  struct Block {
    uint4 v[2][kPieces];
    std::uint32_t scale[2];  // bits of an f32, or a code
  };
  const std::byte* data[2];
  const std::byte* scales[2];

  __device__ ResidentReader(const Job& job, const WeightView& w, int group, int row, int block) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at =
          static_cast<std::int64_t>(group) * job.group_rows + min(row + 8 * r, job.group_rows - 1);
      data[r] = w.data + at * job.row_bytes + block * kBytes + kBytes / 8 * t;
      scales[r] = w.scales + (at / quant::kWeightBlock * job.scale_stride + block) * (job.scales_f32 ? 4 : 1);
    }
  }
  __device__ Block load(int block, bool scales_f32) const {
    Block b;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        constexpr int kHalf = kPieces / 2;
        b.v[r][i] = read16(data[r] + block * kBytes + i / kHalf * (kBytes / 2) + i % kHalf * 16);
      }
      b.scale[r] = 0;
      if constexpr (F == Format::kFp8) {
        b.scale[r] = scales_f32 ? reinterpret_cast<const std::uint32_t*>(scales[r])[block]
                                : static_cast<std::uint32_t>(scales[r][block]);
      }
    }
    return b;
  }
  static __device__ float scale(const Block& b, int r, bool scales_f32) {
    if constexpr (F == Format::kBf16) return 1.0F;
    return scales_f32 ? __uint_as_float(b.scale[r]) : ue8m0(b.scale[r]);
  }
  static __device__ void expand(const Block& b, int r, int half, std::uint32_t (&pairs)[8]) {
    typename Loader<F>::Raw raw;
    if constexpr (F == Format::kBf16) {
      raw.v[half][0] = b.v[r][2 * half];
      raw.v[half][1] = b.v[r][2 * half + 1];
    } else {
      raw.v[half] = b.v[r][half];
    }
    Loader<F>::expand(raw, half, 0, pairs);
  }
};

// Blocks [begin, end) of the planes' rows of a group into shared memory as wgmma.cuh wants them: of each half block,
// kN rows of 128 bytes. The pairs 2j and 2j + 1 of the four runs of 16 are the columns of instruction j.
template <int kN>
__device__ void stage_segment(const Job& job, int group, int begin, int end, std::byte* to) {
  const int halves = 2 * (end - begin);
  for (int i = static_cast<int>(threadIdx.x); i < halves * kN; i += kResidentThreads) {
    const int n = i % kN;  // neighbours write to different banks
    const int half = i / kN;
    std::uint32_t pairs[4][8] = {};
    if (n < job.rows) {
      const auto* from = reinterpret_cast<const uint4*>(
          job.x.data + (static_cast<std::int64_t>(n) * job.groups + group) * job.x.row_stride + begin * kBlock + 64 * half);
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const uint4 v = from[p];
        pairs[p / 2][p % 2 * 4] = v.x;
        pairs[p / 2][p % 2 * 4 + 1] = v.y;
        pairs[p / 2][p % 2 * 4 + 2] = v.z;
        pairs[p / 2][p % 2 * 4 + 3] = v.w;
      }
    }
    std::byte* const row = to + (half * kN + n) * 128;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      *reinterpret_cast<uint4*>(row + (p ^ n % 8) * 16) = {pairs[0][p], pairs[1][p], pairs[2][p], pairs[3][p]};
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif  // FATHOM_WGMMA

template <Format F, int kN>
__global__ void __launch_bounds__(kResidentThreads, 1) resident(const __grid_constant__ ResidentList list) {
#if FATHOM_WGMMA
  extern __shared__ uint4 resident_shared[];
  using Reader = ResidentReader<F>;
  constexpr int kAhead = F == Format::kFp8 ? 2 : 1;  // blocks of weights under way
  const std::uint32_t misaligned = shared_address(resident_shared) % 1024;
  std::byte* const staged = reinterpret_cast<std::byte*>(resident_shared) + (misaligned == 0 ? 0 : 1024 - misaligned);
  int which = 0;
  while (which + 1 < list.n && static_cast<int>(blockIdx.x) >= list.jobs[which + 1].first_block) ++which;
  const ResidentJob& of = list.jobs[which];
  const Job& job = of.job;
  const int number = (static_cast<int>(blockIdx.x) - of.first_block) / of.members;
  const int member = (static_cast<int>(blockIdx.x) - of.first_block) % of.members;
  const ResidentPart part_of(job, number);
  const int begin = job.blocks * part_of.segment / job.segments;
  const int end = job.blocks * (part_of.segment + 1) / job.segments;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int row = thread / kWarp * 16 + thread % kWarp / 4;
  const int step = of.members * kResidentGroups;
  int tile = member + static_cast<int>(threadIdx.x) / 128 * of.members;
  const bool scales_f32 = job.scales_f32;
  const auto reader_of = [&](int i) {
    return Reader(job, job.w[part_of.matrix], part_of.group, (of.first_tile + i) * kResidentRows + row, begin);
  };
  allow_next();
  Reader reader = reader_of(tile < of.tiles ? tile : 0);
  typename Reader::Block blocks[kAhead];
#pragma unroll
  for (int d = 0; d < kAhead; ++d) {
    if (d < end - begin) blocks[d] = reader.load(d, scales_f32);
  }
  await_results();
  stage_segment<kN>(job, part_of.group, begin, end, staged);
  __syncthreads();

  float part[kN / 2];
  float sum[kN / 2];
  std::uint32_t a[2][4][4];
  const auto expand = [&](const typename Reader::Block& from, int half) { expand_half<Reader>(from, half, a[half]); };
  const auto multiply = [&](int block, int half) {
    const std::uint64_t tokens = tokens_at(staged + (2 * block + half) * (kN * 128));
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) Wgmma<kN>::run(part, a[half][j], tokens + 2 * j, half + j);
    wgmma_commit();
  };
#pragma unroll 1
  for (; tile < of.tiles; tile += step) {
    const bool more = tile + step < of.tiles;
    const Reader next = reader_of(more ? tile + step : tile);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
    const int count = end - begin;
#pragma unroll 1
    for (int b0 = 0; b0 < count; b0 += kAhead) {
#pragma unroll
      for (int d = 0; d < kAhead; ++d) {
        const int b = b0 + d;
        if (b < count) {
          expand(blocks[d], 0);
          multiply(b, 0);
          expand(blocks[d], 1);
          const float scale[2] = {Reader::scale(blocks[d], 0, scales_f32), Reader::scale(blocks[d], 1, scales_f32)};
          multiply(b, 1);
          if (b + kAhead < count) blocks[d] = reader.load(b + kAhead, scales_f32);
          else if (more) blocks[d] = next.load(d, scales_f32);
          wgmma_wait<0>();
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) sum[i] = fmaf(part[i], scale[i / 2 % 2], sum[i]);
        }
      }
    }
    reader = next;
    float4* const to = of.sums + (static_cast<std::int64_t>(number) * of.tiles + tile) * (kN / 8) * 128 + thread;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) to[n * 128] = {sum[4 * n], sum[4 * n + 1], sum[4 * n + 2], sum[4 * n + 3]};
  }
#endif
}

// Adds the segments up, and writes. A block has 8 tokens of a tile of a group.
template <bool kGate>
__global__ void __launch_bounds__(128) add_segments(const __grid_constant__ ResidentList list, int token_groups) {
  await_previous();
  int which = 0;
  while (which + 1 < list.n && static_cast<int>(blockIdx.x) >= list.jobs[which + 1].first_adder) ++which;
  const ResidentJob& of = list.jobs[which];
  const Job& job = of.job;
  const int i = static_cast<int>(blockIdx.x) - of.first_adder;
  const int n = i % token_groups;
  const int tile = i / token_groups % of.tiles;
  const int group = i / token_groups / of.tiles;
  const auto thread = static_cast<int>(threadIdx.x);
  float4 total[kGate ? 2 : 1];
#pragma unroll
  for (int m = 0; m < (kGate ? 2 : 1); ++m) {
    const auto at = [&](int s) {
      const std::int64_t part = (static_cast<std::int64_t>(m) * job.groups + group) * job.segments + s;
      return of.sums[((part * of.tiles + tile) * token_groups + n) * 128 + thread];
    };
    constexpr int kMost = 8;  // segments_of
    float4 v[kMost];
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s < job.segments) v[s] = at(s);
    }
    total[m] = v[0];
#pragma unroll
    for (int s = 1; s < kMost; ++s) {
      if (s < job.segments)
        total[m] = {total[m].x + v[s].x, total[m].y + v[s].y, total[m].z + v[s].z, total[m].w + v[s].w};
    }
  }
  const int row0 = (of.first_tile + tile) * kResidentRows + thread / kWarp * 16;
  const float4 a = total[0];
  const float4 b = total[kGate ? 1 : 0];
  write_result<kGate>(job, 0, job.rows, row0, 8 * n, group, 0, a.x, b.x);
  write_result<kGate>(job, 0, job.rows, row0, 8 * n, group, 1, a.y, b.y);
  write_result<kGate>(job, 0, job.rows, row0, 8 * n, group, 2, a.z, b.z);
  write_result<kGate>(job, 0, job.rows, row0, 8 * n, group, 3, a.w, b.w);
}

}  // namespace fathom::ops::cuda
