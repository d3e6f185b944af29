// codes_few: weights stream through a ring of tiles in shared memory that bulk copies fill, for each of a block's two
// warpgroups one; from there a tile is 16 registers a lane and four instructions. As many tiles as the rings hold are under
// way before the inputs are there.
//
// A product of one segment: a warpgroup has whole tiles of rows. Of several segments: two blocks, a cluster, have a tile
// of rows at a time, each of their four warpgroups a run of its segments; half of the rows' sums go to each block, which
// adds the segments up and writes. So a block puts no more of x through FP8 than half, where it has segments.
#pragma once

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/codes.cuh"
#include "ops/cuda/codes_few.h"
#include "ops/cuda/matmul_list.cuh"

namespace fathom::ops::cuda {

inline constexpr int kFewTokens = 8;
inline constexpr int kFewGroups = 2;  // warpgroups of a block
inline constexpr int kFewThreads = kFewGroups * kTileThreads;
inline constexpr int kFewCluster = 2;              // blocks that share the segments of a tile
inline constexpr int kFewWarps = 4 / kFewCluster;  // of a tile, whose rows' segments a block adds up
inline constexpr int kFewSegments = 8;             // no product has more
inline constexpr int kFewSlots = 6;                // of a warpgroup's ring, where a multiprocessor has one block
inline constexpr int kFewSlotsBeside = 1;          // beside a list, whose loads under way live in what L1 is left
inline constexpr int kFewTile = kTileRows * kBlock;  // bytes

struct FewJob {
  const std::byte* data;
  const std::byte* scales;
  float* y;
  std::int64_t ldy;
  Carrier carrier;
  int first_tile;  // of the list's
};

struct FewList {
  FewJob jobs[kFewJobs];
  int n;
  int tiles;  // of all jobs
  int segments;
  int blocks;  // of all inputs
  int tokens;
  bool scales_f32;
  int slots;  // of a ring
  Mat<const float> x;
};

// A block's shared memory, from an address aligned to 1,024 on.
//   rings   [kFewGroups][slots][kFewTile]
//   sums    float4 [2 turns][kFewSegments][kFewWarps][lanes that have tokens], of a tile
//   codes   [blocks][kFewTokens][kCodeRow], of the block's blocks of inputs
//   scales  f32 [blocks][kFewTokens]
__host__ __device__ constexpr int few_lanes(int tokens) { return (tokens + 1) / 2 * 8; }
__host__ __device__ constexpr int few_sums_bytes(int tokens) {  // in whole 1,024
  return 2 * kFewSegments * kFewWarps * few_lanes(tokens) * static_cast<int>(sizeof(float4));
}
constexpr std::size_t few_shared(int slots, int blocks, int tokens) {
  return 1024 + static_cast<std::size_t>(kFewGroups * slots * kFewTile) + static_cast<std::size_t>(few_sums_bytes(tokens)) +
         static_cast<std::size_t>(blocks) * kFewTokens * (kCodeRow + sizeof(float));
}
// Blocks of inputs that a block reads.
constexpr int few_blocks(int blocks, int segments) {
  if (segments == 1) return blocks;
  return blocks * ((segments + kFewCluster - 1) / kFewCluster) / segments + 1;
}

#if FATHOM_WGMMA

// A warpgroup's tiles in the order in which it takes them: of rows first, first + step, ... below last, of each the
// blocks of inputs [begin, begin + count).
struct FewWork {
  const FewList& list;
  int first;
  int last;
  int step;
  int begin;
  int count;

  __device__ int tiles() const { return first < last ? (last - first + step - 1) / step * count : 0; }
  __device__ const FewJob& job_of(int tile) const {
    int j = 0;
    while (j + 1 < list.n && tile >= list.jobs[j + 1].first_tile) ++j;
    return list.jobs[j];
  }
  __device__ const std::byte* data(int tile) const {
    const FewJob& job = job_of(tile);
    const std::int64_t at = static_cast<std::int64_t>(tile - job.first_tile) * list.blocks + begin;
    return job.data + at * kFewTile;
  }
  // The bits of the scale of the i-th tile.
  __device__ std::uint32_t scale(int i) const {
    if (i >= tiles()) return 0;
    const int tile = first + i / count * step;
    const FewJob& job = job_of(tile);
    const std::int64_t at = static_cast<std::int64_t>((tile - job.first_tile) / 2) * list.blocks + begin + i % count;
    if (list.scales_f32) return reinterpret_cast<const std::uint32_t*>(job.scales)[at];
    return static_cast<std::uint32_t>(job.scales[at]);
  }
  __device__ float scale_of(std::uint32_t bits) const {
    return list.scales_f32 ? __uint_as_float(bits) : ue8m0(bits);
  }
};

// Fills a warpgroup's ring; one thread.
struct FewFeeder {
  const FewWork& work;
  std::byte (*ring)[kFewTile];
  Arrivals* full;
  int tile;  // of rows
  int left;  // of its blocks
  const std::byte* from;

  __device__ FewFeeder(const FewWork& work, std::byte (*ring)[kFewTile], Arrivals* full)
      : work(work), ring(ring), full(full), tile(work.first), left(work.count), from(nullptr) {
    if (more()) from = work.data(tile);
  }
  __device__ bool more() const { return work.count > 0 && tile < work.last; }
  __device__ void feed(int slot) {
    full[slot].expect(kFewTile);
    full[slot].copy(ring[slot], from, kFewTile);
    from += kFewTile;
    if (--left > 0) return;
    tile += work.step;
    left = work.count;
    if (more()) from = work.data(tile);
  }
};

// x through FP8: blocks [begin, begin + blocks) of all tokens, by all warps.
__device__ inline void stage_few(const FewList& list, int begin, int blocks, std::byte* codes, float* scales) {
  constexpr int kAhead = 8;
  constexpr int kWarps = kFewThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const from = list.x.data + begin * kBlock + 4 * lane;
  int n = 0;
  int b = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll 1
  for (;;) {
    float4 v[kAhead];
    int at[kAhead];  // block * kFewTokens + token
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      for (; b >= blocks && n < list.tokens; b -= blocks) ++n;
      at[i] = n < list.tokens ? b * kFewTokens + n : -1;
      if (at[i] >= 0) v[i] = *reinterpret_cast<const float4*>(from + n * list.x.ld + b * kBlock);
      b += kWarps;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at[i] < 0) return;
      float scale;
      const float values[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
      const std::uint32_t word = quantise_to_codes(values, scale);
      // The lane's 4 inputs are bytes [4 (lane / 8), + 4) of piece lane % 8 of the block.
      std::byte* const block = codes + at[i] / kFewTokens * (kFewTokens * kCodeRow);
      *reinterpret_cast<std::uint32_t*>(block + code_piece(at[i] % kFewTokens, lane % 8) + lane / 8 * 4) = word;
      if (lane == 0) scales[at[i]] = scale;
    }
  }
}

// The tile in a slot of the ring into a lane's registers.
__device__ inline void take_tile(const std::byte* slot, int thread, std::uint32_t (&a)[kSteps][4]) {
  const auto* const pieces = reinterpret_cast<const uint4*>(slot);
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const uint4 v = pieces[j * kTileThreads + thread];
    a[j][0] = v.x;
    a[j][1] = v.y;
    a[j][2] = v.z;
    a[j][3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

__device__ inline void warpgroup_barrier(int group) {
  if (group == 0) asm volatile("bar.sync 1, %0;" ::"n"(kTileThreads) : "memory");
  else asm volatile("bar.sync 2, %0;" ::"n"(kTileThreads) : "memory");
}

// Where the sums of a lane of a warp are, tokens 2t and 2t + 1 of rows g and g + 8.
__device__ inline float4* sums_of(float4* sums, int tokens, int turn, int segment, int warp, int lane) {
  const int at = (turn % 2 * kFewSegments + segment) * kFewWarps + warp;
  return sums + at * few_lanes(tokens) + lane % 4 * 8 + lane / 4;
}
// A segment's sums of a lane to the block of the cluster that adds up its rows. Lanes without tokens send nothing.
__device__ inline void send_sums(float4* sums, Arrivals& came, int turn, int segment, int tokens, const float (&total)[4]) {
  const int warp = static_cast<int>(threadIdx.x) % kTileThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane % 4 * 2 >= tokens) return;
  came.send(sums_of(sums, tokens, turn, segment, warp % kFewWarps, lane), {total[0], total[1], total[2], total[3]},
            warp / kFewWarps);
}

// Result i of a lane of a tile: of row 16 * warp + ..., in order of the registers.
__device__ inline void write_few(const FewWork& work, int tile, int warp, int lane, int i, float v) {
  const FewJob& job = work.job_of(tile);
  const int n = lane % 4 * 2 + i % 2;
  if (n >= work.list.tokens) return;
  const int row = (tile - job.first_tile) * kTileRows + 16 * warp + lane / 4 + i / 2 * 8;
  job.y[n * job.ldy + row] = carry_to(v, job.carrier);
}

// Adds the segments of the block's share of a tile's rows, one result a thread.
__device__ inline void add_segments(float4* sums, const FewWork& work, int turn, int tile, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % kTileThreads / 4;
  const int i = static_cast<int>(threadIdx.x) % 4;
  const int warp = static_cast<int>(threadIdx.x) / kTileThreads;
  if (warp >= kFewWarps) return;
  if (lane % 4 * 2 >= work.list.tokens) return;
  const auto sum = [&](int s) {
    return reinterpret_cast<const float*>(sums_of(sums, work.list.tokens, turn, s, warp, lane))[i];
  };
  float v = sum(0);
#pragma unroll 1
  for (int s = 1; s < work.list.segments; ++s) v += sum(s);
  write_few(work, tile, kFewWarps * rank + warp, lane, i, v);
}

// Block `block` of n_blocks, in clusters where kSplit. Waits itself for the kernel in front.
template <bool kSplit>
__device__ inline void run_few(const FewList& list, int block, int n_blocks, void* few_memory) {
  __shared__ Arrivals full[kFewGroups][kFewSlots];
  __shared__ Arrivals came[2];  // sums, a turn each
  const std::uint32_t misaligned = shared_address(few_memory) % 1024;
  std::byte* const base = reinterpret_cast<std::byte*>(few_memory) + (misaligned == 0 ? 0 : 1024 - misaligned);
  const int group = static_cast<int>(threadIdx.x) / kTileThreads;
  const int thread = static_cast<int>(threadIdx.x) % kTileThreads;
  const int lane = thread % kWarp;

  // What the block has of the tiles of rows and of the inputs, and what of these the warpgroup has.
  constexpr int kBlocks = kSplit ? kFewCluster : 1;
  const int rank = block % kBlocks;
  const int number = block / kBlocks;
  const int n = n_blocks / kBlocks;
  const int first = static_cast<int>(static_cast<std::int64_t>(list.tiles) * number / n);
  const int last = static_cast<int>(static_cast<std::int64_t>(list.tiles) * (number + 1) / n);
  const auto begin_of = [&](int segment) { return list.blocks * segment / list.segments; };
  const auto run_of = [&](int i) { return kSplit ? list.segments * i / (kBlocks * kFewGroups) : i; };  // of segments
  const int segment = kSplit ? run_of(rank * kFewGroups + group) : 0;
  const int end_segment = kSplit ? run_of(rank * kFewGroups + group + 1) : 1;
  const int block_begin = kSplit ? begin_of(run_of(rank * kFewGroups)) : 0;
  const int block_end = kSplit ? begin_of(run_of((rank + 1) * kFewGroups)) : list.blocks;
  const FewWork work{.list = list,
                     .first = kSplit ? first : first + group,
                     .last = last,
                     .step = kSplit ? 1 : kFewGroups,
                     .begin = kSplit ? begin_of(segment) : 0,
                     .count = kSplit ? begin_of(end_segment) - begin_of(segment) : list.blocks};
  auto* const rings = reinterpret_cast<std::byte(*)[kFewTile]>(base);
  auto* const ring = rings + group * list.slots;
  std::byte* const behind = rings[kFewGroups * list.slots];
  auto* const sums = reinterpret_cast<float4*>(behind);
  std::byte* const codes = behind + few_sums_bytes(list.tokens);
  auto* const x_scales = reinterpret_cast<float*>(codes + (block_end - block_begin) * kFewTokens * kCodeRow);

  FewFeeder feeder(work, ring, full[group]);
  if (thread == 0) {
#pragma unroll 1
    for (int s = 0; s < list.slots; ++s) full[group][s].make();
#pragma unroll 1
    for (int s = 0; s < list.slots && feeder.more(); ++s) feeder.feed(s);
  }
  std::uint32_t scales = work.scale(lane);  // of the next 32 tiles, a lane one, and of those behind them
  std::uint32_t next_scales = work.scale(kWarp + lane);
  if (kSplit) {
    if (threadIdx.x == 0) {
      came[0].make();
      came[1].make();
    }
    __syncthreads();
    arrive_at_cluster_early();
  }
  await_results();
  stage_few(list, block_begin, block_end - block_begin, codes, x_scales);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (kSplit) await_cluster();

  int slot = 0;
  int round = 0;
  int i = 0;  // of the warpgroup's tiles
  const auto add_run = [&](int begin, int end, float (&total)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) total[k] = 0;
#pragma unroll 1
    for (int b = begin; b < end; ++b) {
      std::uint32_t a[kSteps][4];
      full[group][slot].await(static_cast<std::uint32_t>(round));
      take_tile(ring[slot], thread, a);
      warpgroup_barrier(group);
      if (thread == 0 && feeder.more()) feeder.feed(slot);
      if (++slot == list.slots) {
        slot = 0;
        ++round;
      }
      float acc[4];
      const std::uint64_t tokens = tokens_at(codes + (b - block_begin) * kFewTokens * kCodeRow);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j) WgmmaCodes<kFewTokens>::run(acc, a[j], tokens + 2 * j, j);
      wgmma_commit();
      const float w = work.scale_of(__shfl_sync(kAll, scales, i % kWarp));
      const float2 x = reinterpret_cast<const float2*>(x_scales + (b - block_begin) * kFewTokens)[lane % 4];
      if (++i % kWarp == 0) {
        scales = next_scales;
        next_scales = work.scale(i + kWarp + lane);
      }
      wgmma_wait<0>();
      const float s[2] = {x.x * w, x.y * w};
#pragma unroll
      for (int k = 0; k < 4; ++k) total[k] = fmaf(acc[k], s[k % 2], total[k]);
    }
  };
  float total[4];
  if constexpr (!kSplit) {
    for (int tile = work.first; tile < last; tile += work.step) {
      add_run(0, list.blocks, total);
#pragma unroll
      for (int k = 0; k < 4; ++k) write_few(work, tile, thread / kWarp, lane, k, total[k]);
    }
  } else {
    for (int tile = first; tile < last; ++tile) {
      const int turn = tile - first;
      Arrivals& all = came[turn % 2];
      if (threadIdx.x == 0) all.expect(static_cast<std::uint32_t>(few_sums_bytes(list.tokens) / (2 * kFewSegments) * list.segments));
      for (int s = segment; s < end_segment; ++s) {
        add_run(begin_of(s), begin_of(s + 1), total);
        send_sums(sums, all, turn, s, list.tokens, total);
      }
      all.await(static_cast<std::uint32_t>(turn / 2));
      add_segments(sums, work, turn, tile, rank);
      __syncthreads();  // who sends the next turn's has read the last one's
    }
  }
}

#endif  // FATHOM_WGMMA

template <bool kSplit>
__global__ void __launch_bounds__(kFewThreads) codes_few(const __grid_constant__ FewList list) {
#if FATHOM_WGMMA
  extern __shared__ uint4 few_memory[];
  allow_next();
  run_few<kSplit>(list, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), few_memory);
#endif
}

// The first few_blocks blocks have the products of codes, the others those of a list.
template <bool kSplit>
__global__ void __launch_bounds__(kFewThreads, 2)
    codes_few_and_list(const __grid_constant__ FewList few, const __grid_constant__ JobList list, int pitch, int few_blocks) {
#if FATHOM_WGMMA
  extern __shared__ uint4 few_memory[];
  allow_next();
  const auto block = static_cast<int>(blockIdx.x);
  if (block < few_blocks) {
    run_few<kSplit>(few, block, few_blocks, few_memory);
    return;
  }
  run_list_block<false, Format::kBf16, Format::kBf16>(list, pitch, static_cast<unsigned>(block - few_blocks),
                                                      gridDim.x - static_cast<unsigned>(few_blocks),
                                                      reinterpret_cast<std::uint16_t*>(few_memory));
#endif
}

}  // namespace fathom::ops::cuda
