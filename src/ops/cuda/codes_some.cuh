// codes_some: a block keeps one segment of all tokens' codes in shared memory, and its warpgroups let tiles of W go past.
// Each thread copies what it will multiply into shared memory, some blocks ahead, and waits for nobody else's copies; the
// first are under way before the codes are there.
//
// Where a product has several segments, a cluster has a block for each: the blocks take the same tiles at the same time,
// a turn of a tile for each warpgroup, and send their sums to each other's shared memory, every block those of its share of
// the results, which it adds up a turn later and writes.
#pragma once

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/codes.cuh"
#include "ops/cuda/codes_some.h"
#include "ops/cuda/copies.cuh"

namespace fathom::ops::cuda {

inline constexpr int kSomeGroups = 3;  // warpgroups of a block: with two, their instructions are the limit
inline constexpr int kSomeThreads = kSomeGroups * kTileThreads;
inline constexpr int kSomeBlocks = kWarp;  // of a segment, at most
inline constexpr int kSomeSegments = 8;    // at most
inline constexpr int kSomeTile = kTileRows * kBlock;  // bytes of a block of a tile

// Tokens as the instruction takes them.
constexpr int some_tokens(std::int64_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

struct SomeJob {
  Job job;
  int first_tile;  // of the list's
};

struct SomeList {
  SomeJob jobs[kSomeJobs];
  int n;
  int tiles;  // of all jobs
  int segments;
  int blocks;  // of all inputs
  int rows;    // tokens
  Codes x;
};

// Float4s that a tile's sums take: of 8 tokens of a warp's rows each lane has one.
template <int kN>
constexpr int kSomeSums = kN / 8 * kTileThreads;

// Shared memory, aligned to 1,024: codes of a segment [blocks][kN][128], tiles under way [warpgroup][kAhead], scales of the
// codes [blocks][t][kN / 8][2] of tokens 8 n + 2 t + i, and where a cluster adds up, of two turns and all warpgroups, sums
// [segments][a block's share], and what waits for them.
template <int kN, int kAhead>
struct SomeShared {
  std::size_t under_way;
  std::size_t scales;
  std::size_t sums;
  std::size_t came;
  std::size_t bytes;

  __host__ __device__ constexpr SomeShared(int blocks, int segments)
      : under_way(static_cast<std::size_t>(blocks) * kN * kCodeRow),
        scales(under_way + std::size_t{kSomeGroups} * kAhead * kSomeTile),
        sums(scales + static_cast<std::size_t>(blocks) * kN * sizeof(float)),
        came(sums + (segments > 1 ? std::size_t{2} * kSomeGroups * kSomeSums<kN> * sizeof(float4) : 0)),
        bytes(came + 2 * sizeof(std::uint64_t)) {}
};

#if FATHOM_WGMMA

// Codes of blocks [begin, begin + blocks) into shared memory, by all threads: a group of copies, a warp a row. What is
// behind the last token stays as it is: nobody looks at what comes of it.
template <int kN>
__device__ void stage_codes(const SomeList& list, int begin, int blocks, std::byte* x, float* scales) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 4
  for (int n = static_cast<int>(threadIdx.x) / kWarp; n < list.rows; n += kSomeThreads / kWarp) {
    const std::int64_t first = static_cast<std::int64_t>(n) * list.blocks + begin;
    for (int i = lane; i < blocks * 8; i += kWarp) {
      copy16(shared_address(x + i / 8 * (kN * kCodeRow) + code_piece(n, i % 8)), list.x.data + first * kCodeRow + i * 16);
    }
    if (lane < blocks) {
      copy4(shared_address(scales + lane * kN + n % 8 / 2 * (kN / 4) + n / 8 * 2 + n % 2), list.x.scales + first + lane);
    }
  }
  commit_copies();
}

// Which tile of which job a tile of the list is.
struct SomeTile {
  const Job* job;
  int row_tile;

  __device__ SomeTile(const SomeList& list, int tile) {
    int j = 0;
    while (j + 1 < list.n && tile >= list.jobs[j + 1].first_tile) ++j;
    job = &list.jobs[j].job;
    row_tile = tile - list.jobs[j].first_tile;
  }
};

// The scales of a tile's blocks: lane b has block b's, as it is stored.
__device__ inline std::uint32_t load_scales(const SomeList& list, int tile, int begin, int count) {
  const int b = threadIdx.x % kWarp;
  if (tile >= list.tiles || b >= count) return 0;
  const SomeTile of(list, tile);
  const std::int64_t at = static_cast<std::int64_t>(of.row_tile / 2) * list.blocks + begin + b;
  const std::byte* const scales = of.job->w[0].scales;
  return of.job->scales_f32 ? reinterpret_cast<const std::uint32_t*>(scales)[at] : static_cast<std::uint32_t>(scales[at]);
}

// Brings blocks of a warpgroup's tiles into shared memory, one after the other, a group of copies each: a thread's part is
// the registers of all steps. Tiles are `step` apart.
template <int kAhead>
class SomeReader {
 public:
  // room: of the warpgroup.
  __device__ SomeReader(const SomeList& list, const std::byte* room, int tile, int step, int begin, int count)
      : list_(list),
        first_(shared_address(room) + threadIdx.x % kTileThreads * sizeof(uint4)),
        to_(first_),
        tile_(tile),
        step_(step),
        begin_(begin),
        count_(count) {
    find();
  }
  __device__ void next() {
    if (left_ > 0) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) copy16(to_ + j * kStepBytes, data_ + j * kStepBytes);
      to_ = to_ + kSomeTile == first_ + kAhead * kSomeTile ? first_ : to_ + kSomeTile;
      data_ += kSomeTile;
      if (--left_ == 0) {
        tile_ += step_;
        find();
      }
    }
    commit_copies();
  }

 private:
  static constexpr int kStepBytes = kTileThreads * sizeof(uint4);

  __device__ void find() {
    if (tile_ >= list_.tiles) return;
    const SomeTile of(list_, tile_);
    left_ = count_;
    data_ = of.job->w[0].data + (static_cast<std::int64_t>(of.row_tile) * list_.blocks + begin_) * kSomeTile +
            threadIdx.x % kTileThreads * sizeof(uint4);
  }

  const SomeList& list_;
  const std::uint32_t first_;
  std::uint32_t to_;
  int tile_;
  const int step_;
  const int begin_;
  const int count_;
  int left_ = 0;  // blocks of the tile
  const std::byte* data_ = nullptr;
};

// The products of a block under way, of which w is the thread's part: begins them.
template <int kN>
__device__ inline void begin_block(const uint4* w, std::uint64_t tokens, float (&acc)[kN / 2]) {
  std::uint32_t a[kSteps][4];
#pragma unroll
  for (int j = 0; j < kSteps; ++j) Tile<Format::kFp8>::expand(w[j * kTileThreads], 0, 0, a[j]);
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < kSteps; ++j) WgmmaCodes<kN>::run(acc, a[j], tokens + 2 * j, j);
  wgmma_commit();
}
// total += what they are; scales: of the thread's tokens.
template <int kN>
__device__ inline void add_block(const float (&acc)[kN / 2], const float4* scales, float w, float (&total)[kN / 2]) {
#pragma unroll
  for (int n = 0; n < kN / 8; n += 2) {
    const float4 x = scales[n / 2];
    const float s[4] = {x.x * w, x.y * w, x.z * w, x.w * w};
#pragma unroll
    for (int i = 0; i < 8; ++i) total[4 * n + i] = fmaf(acc[4 * n + i], s[i / 4 * 2 + i % 2], total[4 * n + i]);
  }
}

// Writes what a lane has of 8 tokens of a warp's 16 rows: of rows g and g + 8, tokens 2 t and + 1.
__device__ inline void write_sums(const SomeList& list, const Job& job, int row0, int n0, float4 v) {
  const int lane = threadIdx.x % kWarp;
  const int n = n0 + lane % 4 * 2;
  float* y = job.y + n * job.ldy + row0 + lane / 4;
  if (n < list.rows) {
    y[0] = carry_to(v.x, job.carrier);
    y[8] = carry_to(v.z, job.carrier);
  }
  y += job.ldy;
  if (n + 1 < list.rows) {
    y[0] = carry_to(v.y, job.carrier);
    y[8] = carry_to(v.w, job.carrier);
  }
}

// How a cluster adds up: of every 8 tokens and 16 rows of a tile, a unit, one block has all.
template <int kN>
struct SomeCluster {
  static constexpr int kUnits = kN / 8 * 4;
  float4* sums;  // [2][kSomeGroups][segments][units of a block][lane]
  Arrivals* came;
  int segments;
  int units;  // of a block

  __device__ float4* at(int turn, int group, int segment, int unit) const {
    return sums + (turn % 2 * kSomeGroups + group) * kSomeSums<kN> + (segment * units + unit) * kWarp;
  }
  __device__ void send(int turn, int segment, const float (&total)[kN / 2]) const {
    const int group = static_cast<int>(threadIdx.x) / kTileThreads;
    const int warp = static_cast<int>(threadIdx.x) % kTileThreads / kWarp;
    const int shift = __ffs(units) - 1;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const int unit = 4 * n + warp;
      came[turn % 2].send(at(turn, group, segment, unit & (units - 1)) + threadIdx.x % kWarp,
                          {total[4 * n], total[4 * n + 1], total[4 * n + 2], total[4 * n + 3]}, unit >> shift);
    }
  }
  // Tiles of a turn are first, first + step, ...
  __device__ void add_up(const SomeList& list, int turn, int rank, int first, int step) const {
    came[turn % 2].await(static_cast<std::uint32_t>(turn / 2));
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < kSomeGroups * units; i += kSomeThreads / kWarp) {
      const int group = i / units;
      const int tile = first + group * step;
      if (tile >= list.tiles) continue;
      float4 v[kSomeSegments];
#pragma unroll
      for (int s = 0; s < kSomeSegments; ++s) {
        if (s < segments) v[s] = at(turn, group, s, i % units)[threadIdx.x % kWarp];
      }
      float4 all = v[0];
#pragma unroll
      for (int s = 1; s < kSomeSegments; ++s) {
        if (s < segments) all = {all.x + v[s].x, all.y + v[s].y, all.z + v[s].z, all.w + v[s].w};
      }
      const int unit = rank * units + i % units;
      const SomeTile of(list, tile);
      write_sums(list, *of.job, of.row_tile * kTileRows + unit % 4 * 16, unit / 4 * 8, all);
    }
  }
};

#endif  // FATHOM_WGMMA

template <int kN, int kAhead>
__global__ void __launch_bounds__(kSomeThreads, 1) codes_some(const __grid_constant__ SomeList list) {
#if FATHOM_WGMMA
  extern __shared__ __align__(1024) std::byte some_memory[];
  const int segments = list.segments;
  const int segment = static_cast<int>(blockIdx.x) % segments;
  const int begin = list.blocks * segment / segments;
  const int count = list.blocks * (segment + 1) / segments - begin;
  // Of any segment, so that sums are at the same place in all blocks.
  const SomeShared<kN, kAhead> room((list.blocks + segments - 1) / segments, segments);
  auto* const scales = reinterpret_cast<float*>(some_memory + room.scales);
  auto* const came = reinterpret_cast<Arrivals*>(some_memory + room.came);
  const SomeCluster<kN> cluster{.sums = reinterpret_cast<float4*>(some_memory + room.sums),
                                .came = came,
                                .segments = segments,
                                .units = SomeCluster<kN>::kUnits / segments};
  // A turn's tiles: first(turn) + group * step.
  const int number = static_cast<int>(blockIdx.x) / segments;
  const int step = static_cast<int>(gridDim.x) / segments;
  const int group = static_cast<int>(threadIdx.x) / kTileThreads;
  const auto first = [&](int turn) { return number + turn * kSomeGroups * step; };
  const int turns = (list.tiles - number + kSomeGroups * step - 1) / (kSomeGroups * step);

  allow_next();
  int tile = number + group * step;
  const std::byte* const under_way = some_memory + room.under_way + group * kAhead * kSomeTile;
  SomeReader<kAhead> reader(list, under_way, tile, kSomeGroups * step, begin, count);
#pragma unroll
  for (int d = 0; d < kAhead; ++d) reader.next();
  std::uint32_t raw_scales = load_scales(list, tile, begin, count);
  if (segments > 1) {
    if (threadIdx.x == 0) {
      came[0].make();
      came[1].make();
    }
    __syncthreads();
    arrive_at_cluster();
  }
  await_results();
  stage_codes<kN>(list, begin, count, some_memory, scales);
  await_copies<0>();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (segments > 1) await_cluster();

  const auto* const mine = reinterpret_cast<const uint4*>(under_way) + threadIdx.x % kTileThreads;
  const auto* const scales_of_lane = reinterpret_cast<const float4*>(scales + threadIdx.x % 4 * (kN / 4));
  int slot = 0;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn, tile += kSomeGroups * step) {
    if (segments > 1 && threadIdx.x == 0) {
      const int n = min(kSomeGroups, (list.tiles - first(turn) + step - 1) / step);
      came[turn % 2].expect(static_cast<std::uint32_t>(n * kSomeSums<kN> * static_cast<int>(sizeof(float4))));
    }
    const bool has = tile < list.tiles;
    float total[kN / 2] = {};
    if (has) {
      const float tile_scales = SomeTile(list, tile).job->scales_f32 ? __uint_as_float(raw_scales) : ue8m0(raw_scales);
      raw_scales = load_scales(list, tile + kSomeGroups * step, begin, count);
      std::uint64_t tokens = tokens_at(some_memory);
      const float4* x_scales = scales_of_lane;
#pragma unroll 1
      for (int b = 0; b < count; ++b) {
        float acc[kN / 2];
        await_copies<kAhead - 1>();
        begin_block<kN>(mine + slot * (kSteps * kTileThreads), tokens, acc);
        const float scale = __shfl_sync(kAll, tile_scales, b);
        wgmma_wait<0>();
        reader.next();
        add_block<kN>(acc, x_scales, scale, total);
        slot = slot + 1 < kAhead ? slot + 1 : 0;
        tokens += kN * kCodeRow / 16;
        x_scales += kN / 4;
      }
    }
    if (segments == 1) {
      if (!has) break;
      const SomeTile of(list, tile);
      const int row0 = of.row_tile * kTileRows + static_cast<int>(threadIdx.x) % kTileThreads / kWarp * 16;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
        write_sums(list, *of.job, row0, 8 * n, {total[4 * n], total[4 * n + 1], total[4 * n + 2], total[4 * n + 3]});
      }
      continue;
    }
    if (turn >= 2) await_cluster();  // the sums of two turns ago have been read
    if (has) cluster.send(turn, segment, total);
    if (turn >= 1) {
      cluster.add_up(list, turn - 1, segment, first(turn - 1), step);
      __syncwarp();
      if (turn + 1 < turns) arrive_at_cluster();
    }
  }
  if (segments > 1) cluster.add_up(list, turns - 1, segment, first(turns - 1), step);
#endif
}

}  // namespace fathom::ops::cuda
