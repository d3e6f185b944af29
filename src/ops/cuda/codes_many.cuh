// A product of packed weights with many tokens (codes.h): a block of threads has 256 or 128 rows of W, or half as many of
// two matrices, and up to 128 tokens. Two warpgroups multiply, each rows of its own; a warp copies weights and codes into
// a ring in shared memory by bulk copies. Blocks of threads stay and take one tile after another, so that the next
// tile's copies are on their way while the last is written.
//
// A warpgroup has one or two tiles of 64 rows and two accumulators of 64 tokens: while the tensor unit fills one, the
// other is scaled and added to the totals.
#pragma once

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/codes.cuh"
#include "ops/cuda/codes_many.h"

namespace fathom::ops::cuda {

constexpr int kHalfTokens = 64;  // of an instruction
constexpr int kManyThreads = 3 * kTileThreads;
constexpr int kCodeTileBytes = kHalfTokens * kCodeRow;

template <Format F>
struct ManyShape {
  static constexpr int kTile = kTileRows * kBlock / (F == Format::kFp8 ? 1 : 2);
  static constexpr int kScales = F == Format::kFp8 ? 0 : kTileRows * 4;
};

// A stage of the ring: codes of x, weights, FP4 scales, scales of x, FP8 scales.
template <Format F, int kTiles>
struct ManyStage {
  static constexpr int kWeights = 2 * kCodeTileBytes;
  static constexpr int kFp4Scales = kWeights + 2 * kTiles * ManyShape<F>::kTile;
  static constexpr int kScales = kFp4Scales + 2 * kTiles * ManyShape<F>::kScales;
  static constexpr int kFp8Scales = kScales + kManyTokens * 4;
  static constexpr int kBytes = (kFp8Scales + 16 + 1023) / 1024 * 1024;
  static constexpr int kCount = 225 * 1024 / kBytes < 8 ? 225 * 1024 / kBytes : 8;
  static constexpr std::size_t kShared = std::size_t{kCount} * kBytes + 1024;  // to be aligned to 1,024
};

#if FATHOM_WGMMA

template <class Stage>
struct ManyRing {
  std::byte* stages;
  std::uint64_t* full;   // one arrival, and the bytes
  std::uint64_t* empty;  // 8 arrivals: a warp has read it

  __device__ std::byte* at(int s) const { return stages + s % Stage::kCount * Stage::kBytes; }
  __device__ void wait_full(int s) const { barrier_wait(&full[s % Stage::kCount], s / Stage::kCount % 2); }
  __device__ void wait_empty(int s) const { barrier_wait(&empty[s % Stage::kCount], (s / Stage::kCount + 1) % 2); }
  __device__ void release(int s) const {
    if (threadIdx.x % kWarp == 0) barrier_arrive(&empty[s % Stage::kCount]);
  }
};

// The tiles of a job: rows first, so that blocks that run together share codes and an expert's weights.
template <bool kGate, int kTiles>
struct ManyTiles {
  static constexpr int kRowTiles = kGate ? kTiles : 2 * kTiles;  // of 64 rows of one matrix, of a block
  int row_tiles;
  int slabs;
  int count;

  __device__ ManyTiles(const Job& job, int most_items) {
    row_tiles = job.group_rows / 64;
    slabs = (row_tiles + kRowTiles - 1) / kRowTiles;
    count = slabs * (job.items != nullptr ? *job.n_items : most_items);
  }
  __device__ int item(int i) const { return i / slabs; }
  // The tile of rows that warpgroup `group` has as its m-th.
  __device__ int row_tile(int i, int group, int m) const {
    return i % slabs * kRowTiles + (kGate ? group : group * kTiles + m);
  }
};

// The warp that copies. Every lane has one piece of a stage: tiles of weights, their scales, codes, or scales of those.
template <Format F, bool kGate, int kTiles>
__device__ void bring_stages(const Job& job, const CodeTiles& x, int most_items,
                             const ManyRing<ManyStage<F, kTiles>>& ring) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  constexpr int kWeightTiles = 2 * kTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const ManyTiles<kGate, kTiles> tiles(job, most_items);
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const int item = tiles.item(i);
    const Work<kGate> work(job, item, kManyTokens);
    const int halves = work.count > kHalfTokens ? 2 : 1;
    const std::byte* from = nullptr;
    const std::byte* scale_from = nullptr;
    int bytes = 0;
    int to = 0;
    if (lane < 2 * kWeightTiles) {
      const int w = lane % kWeightTiles;
      const int row_tile = min(tiles.row_tile(i, w / kTiles, w % kTiles), tiles.row_tiles - 1);
      const WeightView& view = work.w[kGate ? w % kTiles : 0];
      const std::int64_t at = static_cast<std::int64_t>(row_tile) * job.blocks;
      if (lane < kWeightTiles) {
        from = view.data + at * Shape::kTile;
        bytes = Shape::kTile;
        to = Stage::kWeights + w * Shape::kTile;
        scale_from = view.scales + static_cast<std::int64_t>(row_tile / 2) * job.blocks * (job.scales_f32 ? 4 : 1);
      } else {
        from = view.scales + at * Shape::kScales;
        bytes = Shape::kScales;
        to = Stage::kFp4Scales + w * Shape::kScales;
      }
    } else if (lane < 2 * kWeightTiles + 4 && lane % 2 < halves) {
      const int half = lane % 2;
      const std::int64_t at = (2 * static_cast<std::int64_t>(item) + half) * job.blocks;
      if (lane < 2 * kWeightTiles + 2) {
        from = x.codes + at * kCodeTileBytes;
        bytes = kCodeTileBytes;
        to = half * kCodeTileBytes;
      } else {
        from = reinterpret_cast<const std::byte*>(x.scales + at * kHalfTokens);
        bytes = kHalfTokens * 4;
        to = Stage::kScales + half * kHalfTokens * 4;
      }
    }
    const int all = kWeightTiles * (Shape::kTile + Shape::kScales) + halves * (kCodeTileBytes + kHalfTokens * 4);
    float scale = 0;
    const auto next_scale = [&](int b) {
      if (F != Format::kFp8 || lane >= kWeightTiles || b >= job.blocks) return;
      scale = job.scales_f32 ? reinterpret_cast<const float*>(scale_from)[b]
                             : ue8m0(static_cast<std::uint32_t>(scale_from[b]));
    };
    next_scale(0);
    for (int b = 0; b < job.blocks; ++b, ++stage, from += bytes) {
      ring.wait_empty(stage);
      std::byte* const memory = ring.at(stage);
      std::uint64_t* const full = &ring.full[stage % Stage::kCount];
      if (bytes > 0) bulk_copy(memory + to, from, bytes, full);
      if (F == Format::kFp8 && lane < kWeightTiles) reinterpret_cast<float*>(memory + Stage::kFp8Scales)[lane] = scale;
      __syncwarp();
      if (lane == 0) barrier_expect(full, all);
      next_scale(b + 1);
    }
  }
}

// What a row's sum of a block is multiplied by, and how its FP4 codes expand: `scales` as in a stage, of tile w.
template <Format F>
__device__ inline typename Tile<F>::Scale scale_in(const std::byte* scales, int w) {
  if constexpr (F == Format::kFp8) return reinterpret_cast<const float*>(scales)[w];
  else return reinterpret_cast<const uint2*>(scales + w * ManyShape<F>::kScales)[threadIdx.x % kTileThreads / 4];
}

// total += acc of a block; scales: of the 64 tokens. As promote(), two scales at a time.
template <Format F>
__device__ inline void add_block(const float (&acc)[32], const float* scales, typename Tile<F>::Scale w,
                                 float (&total)[32]) {
  const float lower = Tile<F>::lower(w);
  const float upper = Tile<F>::upper(w);
#pragma unroll
  for (int n = 0; n < kHalfTokens / 8; ++n) {
    const float2 x = *reinterpret_cast<const float2*>(scales + 8 * n + threadIdx.x % 4 * 2);
    total[4 * n] = fmaf(acc[4 * n], x.x * lower, total[4 * n]);
    total[4 * n + 1] = fmaf(acc[4 * n + 1], x.y * lower, total[4 * n + 1]);
    total[4 * n + 2] = fmaf(acc[4 * n + 2], x.x * upper, total[4 * n + 2]);
    total[4 * n + 3] = fmaf(acc[4 * n + 3], x.y * upper, total[4 * n + 3]);
  }
}

// Sums of one warpgroup's tiles. stage: of the ring, advanced.
template <Format F, int kTiles, int kHalves, bool kSegments>
__device__ __forceinline__ void sum_many(const Job& job, const ManyRing<ManyStage<F, kTiles>>& ring, int& stage,
                                         float (&out)[kTiles][kHalves][32]) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  const int group = static_cast<int>(threadIdx.x) / 128;
  float acc[2][32];
  float total[kTiles][kHalves][32];
#pragma unroll
  for (int i = 0; i < kTiles * kHalves * 32; ++i) {
    total[i / 32 / kHalves][i / 32 % kHalves][i % 32] = 0;
    if (kSegments) out[i / 32 / kHalves][i / 32 % kHalves][i % 32] = 0;
  }
  std::uint32_t a[4][4];
  constexpr int kWeightScales = F == Format::kFp8 ? Stage::kFp8Scales : Stage::kFp4Scales;
  const auto read = [&](const std::byte* from, int m) {
    const int w = group * kTiles + m;
    const auto* const tile = reinterpret_cast<const uint4*>(from + Stage::kWeights + w * Shape::kTile);
    uint4 pieces[Tile<F>::kLoads];
#pragma unroll
    for (int i = 0; i < Tile<F>::kLoads; ++i) pieces[i] = tile[i * kTileThreads + threadIdx.x % kTileThreads];
    expand_tile<F>(pieces, scale_in<F>(from + kWeightScales, w), a);
  };
  const auto multiply = [&](const std::byte* from, int half) {
    const std::uint64_t tokens = tokens_at(from + half * kCodeTileBytes);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) WgmmaCodes<kHalfTokens>::run(acc[half], a[j], tokens + 2 * j, j);
    wgmma_commit();
  };
  const auto add = [&](const std::byte* from, int m, int half, bool ends, bool first) {
    add_block<F>(acc[half], reinterpret_cast<const float*>(from + Stage::kScales) + half * kHalfTokens,
                 scale_in<F>(from + kWeightScales, group * kTiles + m), total[m][half]);
    if constexpr (kSegments) {
      if (!ends) return;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& sum = out[m][half][i];
        sum = first ? total[m][half][i] : sum + total[m][half][i];
        total[m][half][i] = 0;
      }
    }
  };
  int segment = 0;
  int segment_end = job.blocks / job.segments;
  const std::byte* now = ring.at(stage);
  const std::byte* before = now;
  bool ended = false;
  ring.wait_full(stage);
  read(now, 0);
  for (int b = 0; b < job.blocks; ++b) {
    const bool ends = kSegments && b + 1 == segment_end;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply(now, 0);
      if constexpr (kHalves == 2) {
        if (m > 0) {
          add(now, m - 1, 1, ends, segment == 0);
        } else if (b > 0) {
          add(before, kTiles - 1, 1, ended, segment == 1);
          ring.release(stage - 1);
        }
        multiply(now, 1);
        wgmma_wait<1>();
        add(now, m, 0, ends, segment == 0);
      }
      wgmma_wait<0>();
      if (m + 1 < kTiles) {
        read(now, m + 1);
      } else if (b + 1 < job.blocks) {
        ring.wait_full(stage + 1);
        read(ring.at(stage + 1), 0);
      }
      if constexpr (kHalves == 1) add(now, m, 0, ends, segment == 0);
    }
    if (kHalves == 1) ring.release(stage);
    before = now;
    ended = ends;
    ++stage;
    now = ring.at(stage);
    if (ends) {
      ++segment;
      segment_end = job.blocks * (segment + 1) / job.segments;
    }
  }
  if constexpr (kHalves == 2) {
    add(before, kTiles - 1, 1, ended, segment == 1);
    ring.release(stage - 1);
  }
  if constexpr (!kSegments) {
#pragma unroll
    for (int i = 0; i < kTiles * kHalves * 32; ++i) {
      out[i / 32 / kHalves][i / 32 % kHalves][i % 32] = total[i / 32 / kHalves][i / 32 % kHalves][i % 32];
    }
  }
}

template <Format F, bool kGate, int kTiles, int kHalves, bool kSegments>
__device__ __forceinline__ void multiply_tile(const Job& job, const ManyTiles<kGate, kTiles>& tiles, int i,
                                              const Work<kGate>& work, const ManyRing<ManyStage<F, kTiles>>& ring,
                                              int& stage) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int warp_row = static_cast<int>(threadIdx.x) % 128 / kWarp * 16;
  float sums[kTiles][kHalves][32];
  sum_many<F, kTiles, kHalves, kSegments>(job, ring, stage, sums);
#pragma unroll
  for (int m = 0; m < (kGate ? 1 : kTiles); ++m) {
    const int row0 = tiles.row_tile(i, group, m) * 64 + warp_row;
#pragma unroll
    for (int n = 0; n < kHalves * 8; ++n) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        write_result<kGate>(job, work.first, work.count, row0, 8 * n, 0, v, sums[m][n / 8][n % 8 * 4 + v],
                            sums[kGate ? 1 : 0][n / 8][n % 8 * 4 + v]);
      }
    }
  }
}

// A warpgroup that multiplies.
template <Format F, bool kGate, int kTiles, bool kSegments>
__device__ void multiply_many(const Job& job, int most_items, const ManyRing<ManyStage<F, kTiles>>& ring) {
  const ManyTiles<kGate, kTiles> tiles(job, most_items);
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const Work<kGate> work(job, tiles.item(i), kManyTokens);
    if (work.count > kHalfTokens) multiply_tile<F, kGate, kTiles, 2, kSegments>(job, tiles, i, work, ring, stage);
    else multiply_tile<F, kGate, kTiles, 1, kSegments>(job, tiles, i, work, ring, stage);
  }
}

#endif  // FATHOM_WGMMA

template <Format F, bool kGate, int kTiles, bool kSegments>
__global__ void __launch_bounds__(kManyThreads, 1)
    codes_many(const __grid_constant__ Job job, CodeTiles x, int most_items) {
#if FATHOM_WGMMA
  using Stage = ManyStage<F, kTiles>;
  extern __shared__ uint4 many_shared[];
  __shared__ std::uint64_t full[Stage::kCount];
  __shared__ std::uint64_t empty[Stage::kCount];
  const std::uint32_t misaligned = shared_address(many_shared) % 1024;
  std::byte* const memory = reinterpret_cast<std::byte*>(many_shared) + (misaligned == 0 ? 0 : 1024 - misaligned);
  const ManyRing<Stage> ring{memory, full, empty};
  if (threadIdx.x == 0) {
    for (int s = 0; s < Stage::kCount; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  await_previous();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < 256 + kWarp) bring_stages<F, kGate, kTiles>(job, x, most_items, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    multiply_many<F, kGate, kTiles, kSegments>(job, most_items, ring);
  }
#endif
}

}  // namespace fathom::ops::cuda
