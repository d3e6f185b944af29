// A product of packed weights with many tokens (codes.h): a block of threads has 256 or 128 rows of W, or half as many of
// two matrices, and up to 128 tokens. Two warpgroups multiply, each rows of its own; a warp copies weights and codes into
// a ring in shared memory by bulk copies. Blocks of threads stay and take one tile after another, so that the next
// tile's copies are on their way while the last is written.
//
// A warpgroup has one or two tiles of 64 rows. It multiplies a block of 128 inputs of one, then adds the scaled sums to the
// totals, while the other warpgroup may multiply.
#pragma once

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/codes.cuh"
#include "ops/cuda/codes_many.h"

namespace fathom::ops::cuda {

constexpr int kHalfTokens = 64;    // of a tile of codes, and of an instruction where there are no more
constexpr int kFewestTokens = 32;  // of an instruction
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
  static constexpr int kCount = 208 * 1024 / kBytes < 6 ? 208 * 1024 / kBytes : 6;
};

// What SwiGLU leaves of a tile, on its way to memory.
struct Leaving {
  std::byte codes[2 * kCodeTileBytes];  // as in CodeTiles
  float scales[kManyTokens];
  float inverses[kManyTokens];
  std::uint32_t tops[kManyTokens];  // the bits of the largest magnitudes; zeros between tiles
};

template <class Stage, bool kGate>
constexpr std::size_t many_shared() {
  return std::size_t{Stage::kCount} * Stage::kBytes + (kGate ? sizeof(Leaving) : 0) + 1024;  // to be aligned to 1,024
}

#if FATHOM_WGMMA

template <class Stage>
struct ManyRing {
  std::byte* stages;
  std::uint64_t* full;   // an arrival of each lane of the warp that copies, and the bytes
  std::uint64_t* empty;  // an arrival of each thread that multiplies

  __device__ std::byte* at(int s) const { return stages + s % Stage::kCount * Stage::kBytes; }
  __device__ void wait_full(int s) const { barrier_wait(&full[s % Stage::kCount], s / Stage::kCount % 2); }
  __device__ void wait_empty(int s) const { barrier_wait(&empty[s % Stage::kCount], (s / Stage::kCount + 1) % 2); }
  __device__ void release(int s) const {
    barrier_arrive(&empty[s % Stage::kCount]);
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
  __device__ int slab(int i) const { return i % slabs; }
  // The tile of rows that warpgroup `group` has as its m-th.
  __device__ int row_tile(int i, int group, int m) const {
    return i % slabs * kRowTiles + (kGate ? group : group * kTiles + m);
  }
};

// What one lane of the warp that copies brings of every block of a tile: weights, their scales, codes, or scales of those.
struct Piece {
  const std::byte* from = nullptr;    // of block 0; the next block's follow
  const std::byte* scales = nullptr;  // of an FP8 tile of weights
  int bytes = 0;                      // none: the lane has nothing
  int to = 0;                         // place in a stage
};

// Lanes: tiles of weights, the same tiles' FP4 scales, codes of 64 tokens each, their scales.
template <Format F, bool kGate, int kTiles>
__device__ inline Piece piece_of_lane(const Job& job, const CodeTiles& x, const ManyTiles<kGate, kTiles>& tiles, int i,
                                      const Work<kGate>& work) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  constexpr int kWeightTiles = 2 * kTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane < 2 * kWeightTiles) {
    const int w = lane % kWeightTiles;
    const int row_tile = min(tiles.row_tile(i, w / kTiles, w % kTiles), tiles.row_tiles - 1);
    const WeightView& view = work.w[kGate ? w % kTiles : 0];
    const std::int64_t at = static_cast<std::int64_t>(row_tile) * job.blocks;
    if (lane >= kWeightTiles) {
      return {view.scales + at * Shape::kScales, nullptr, Shape::kScales, Stage::kFp4Scales + w * Shape::kScales};
    }
    const std::int64_t scale_at = static_cast<std::int64_t>(row_tile / 2) * job.blocks * (job.scales_f32 ? 4 : 1);
    return {view.data + at * Shape::kTile, view.scales + scale_at, Shape::kTile, Stage::kWeights + w * Shape::kTile};
  }
  const int half = lane % 2;
  if (lane >= 2 * kWeightTiles + 4 || half * kHalfTokens >= work.count) return {};
  const std::int64_t at = (2 * static_cast<std::int64_t>(tiles.item(i)) + half) * job.blocks;
  if (lane < 2 * kWeightTiles + 2) {
    return {x.codes + at * kCodeTileBytes, nullptr, kCodeTileBytes, half * kCodeTileBytes};
  }
  constexpr int kScaleBytes = kHalfTokens * 4;
  return {reinterpret_cast<const std::byte*>(x.scales) + at * kScaleBytes, nullptr, kScaleBytes,
          Stage::kScales + half * kScaleBytes};
}

// The warp that copies.
template <Format F, bool kGate, int kTiles>
__device__ void bring_stages(const Job& job, const CodeTiles& x, int most_items,
                             const ManyRing<ManyStage<F, kTiles>>& ring) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  constexpr int kWeightTiles = 2 * kTiles;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool has_scale = F == Format::kFp8 && lane < kWeightTiles;
  const ManyTiles<kGate, kTiles> tiles(job, most_items);
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const Work<kGate> work(job, tiles.item(i), kManyTokens);
    const int halves = work.count > kHalfTokens ? 2 : 1;
    const int all = kWeightTiles * (Shape::kTile + Shape::kScales) + halves * (kCodeTileBytes + kHalfTokens * 4);
    const Piece piece = piece_of_lane<F, kGate, kTiles>(job, x, tiles, i, work);
    const auto scale_of = [&](int b) {
      if (!has_scale || b >= job.blocks) return 0.0F;
      return job.scales_f32 ? reinterpret_cast<const float*>(piece.scales)[b]
                            : ue8m0(static_cast<std::uint32_t>(piece.scales[b]));
    };
    float scale = scale_of(0);
    const std::byte* from = piece.from;
    for (int b = 0; b < job.blocks; ++b, ++stage, from += piece.bytes) {
      ring.wait_empty(stage);
      std::byte* const memory = ring.at(stage);
      std::uint64_t* const full = &ring.full[stage % Stage::kCount];
      if (piece.bytes > 0) bulk_copy(memory + piece.to, from, piece.bytes, full);
      if (has_scale) reinterpret_cast<float*>(memory + Stage::kFp8Scales)[lane] = scale;
      if (lane == 0) barrier_expect(full, all);
      else barrier_arrive(full);
      scale = scale_of(b + 1);
    }
  }
}

// What a row's sum of a block is multiplied by, and how its FP4 codes expand: `scales` as in a stage, of tile w.
template <Format F>
__device__ inline typename Tile<F>::Scale scale_in(const std::byte* scales, int w) {
  if constexpr (F == Format::kFp8) return reinterpret_cast<const float*>(scales)[w];
  else return reinterpret_cast<const uint2*>(scales + w * ManyShape<F>::kScales)[threadIdx.x % kTileThreads / 4];
}

// total += acc of a block; scales: of the tokens. As promote(), two scales at a time.
template <Format F, int kTokens>
__device__ inline void add_block(const float (&acc)[kTokens / 2], const float* scales, typename Tile<F>::Scale w,
                                 float (&total)[kTokens / 2]) {
  const float lower = Tile<F>::lower(w);
  const float upper = Tile<F>::upper(w);
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    const float2 x = *reinterpret_cast<const float2*>(scales + 8 * n + threadIdx.x % 4 * 2);
    total[4 * n] = fmaf(acc[4 * n], x.x * lower, total[4 * n]);
    total[4 * n + 1] = fmaf(acc[4 * n + 1], x.y * lower, total[4 * n + 1]);
    total[4 * n + 2] = fmaf(acc[4 * n + 2], x.x * upper, total[4 * n + 2]);
    total[4 * n + 3] = fmaf(acc[4 * n + 3], x.y * upper, total[4 * n + 3]);
  }
}

// Sums of one warpgroup's tiles. stage: of the ring, advanced.
template <Format F, int kTiles, int kTokens, bool kSegments>
__device__ __forceinline__ void sum_many(const Job& job, const ManyRing<ManyStage<F, kTiles>>& ring, int& stage,
                                         float (&out)[kTiles][kTokens / 2]) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  constexpr int kWeightScales = F == Format::kFp8 ? Stage::kFp8Scales : Stage::kFp4Scales;
  constexpr int kSums = kTokens / 2;
  const int first = static_cast<int>(threadIdx.x) / kTileThreads * kTiles;  // of the block's tiles
  float acc[kSums];
  float total[kTiles][kSums];
#pragma unroll
  for (int i = 0; i < kTiles * kSums; ++i) {
    total[i / kSums][i % kSums] = 0;
    if (kSegments) out[i / kSums][i % kSums] = 0;
  }
  std::uint32_t a[kSteps][4];
  const auto read = [&](const std::byte* from, int m) {
    const auto* const tile = reinterpret_cast<const uint4*>(from + Stage::kWeights + (first + m) * Shape::kTile);
    uint4 pieces[Tile<F>::kLoads];
#pragma unroll
    for (int i = 0; i < Tile<F>::kLoads; ++i) pieces[i] = tile[i * kTileThreads + threadIdx.x % kTileThreads];
    expand_tile<F>(pieces, scale_in<F>(from + kWeightScales, first + m), a);
  };
  int segment = 0;
  int segment_end = job.blocks / job.segments;
  ring.wait_full(stage);
  read(ring.at(stage), 0);
  for (int b = 0; b < job.blocks; ++b, ++stage) {
    const std::byte* const now = ring.at(stage);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j) WgmmaCodes<kTokens>::run(acc, a[j], tokens_at(now) + 2 * j, j);
      wgmma_commit();
      wgmma_wait<0>();
      if (m + 1 < kTiles) {
        read(now, m + 1);
      } else if (b + 1 < job.blocks) {
        ring.wait_full(stage + 1);
        read(ring.at(stage + 1), 0);
      }
      add_block<F, kTokens>(acc, reinterpret_cast<const float*>(now + Stage::kScales),
                            scale_in<F>(now + kWeightScales, first + m), total[m]);
    }
    ring.release(stage);
    if constexpr (kSegments) {
      if (b + 1 != segment_end) continue;
#pragma unroll
      for (int i = 0; i < kTiles * kSums; ++i) {
        float& sum = out[i / kSums][i % kSums];
        float& added = total[i / kSums][i % kSums];
        sum = segment == 0 ? added : sum + added;
        added = 0;
      }
      ++segment;
      segment_end = job.blocks * (segment + 1) / job.segments;
    }
  }
  if constexpr (!kSegments) {
#pragma unroll
    for (int i = 0; i < kTiles * kSums; ++i) out[i / kSums][i % kSums] = total[i / kSums][i % kSums];
  }
}

// Two numbers as codes, the first in the lower byte.
__device__ inline std::uint32_t e4m3_pair(float low, float high) {
  std::uint16_t both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
}

// A barrier of the threads that multiply.
__device__ inline void meet_many() { asm volatile("bar.sync 1, %0;" ::"n"(2 * kTileThreads) : "memory"); }

// Two lanes share their tokens' largest magnitudes: each keeps kLeft of them, which begin kLeft later in the upper one.
template <int kLeft, int kMask, int kTokens>
__device__ inline void halve_tops(float (&top)[kTokens], int& first) {
  const bool upper = (threadIdx.x & kMask) != 0;
  first += upper ? kLeft : 0;
#pragma unroll
  for (int q = 0; q < kLeft; ++q) {
    const float low = top[q];
    const float high = top[kLeft + q];
    const float got = __shfl_xor_sync(kAll, upper ? low : high, kMask);
    top[q] = fmaxf(upper ? high : low, got);
  }
}

// tops = the largest magnitudes of the 64 rows that a warpgroup has of every token. z: in order of the registers.
template <int kTokens>
__device__ inline void find_tops(const float (&z)[kTokens / 2], std::uint32_t* tops) {
  constexpr int kMine = kTokens / 4;  // of a lane: 2 t and + 1 of every 8
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float top[kMine];
#pragma unroll
  for (int q = 0; q < kMine; ++q) {
    const float* const of = &z[q / 2 * 4 + q % 2];
    top[q] = fmaxf(fmaxf(0.0F, fabsf(of[0])), fabsf(of[2]));  // NaNs do not count
  }
  int first = 0;
  halve_tops<kMine / 2, 16>(top, first);
  halve_tops<kMine / 4, 8>(top, first);
  halve_tops<kMine / 8, 4>(top, first);
#pragma unroll
  for (int r = 0; r < kMine / 8; ++r) {
    const int q = first + r;
    atomicMax(&tops[q / 2 * 8 + lane % 4 * 2 + q % 2], __float_as_uint(top[r]));
  }
}

// Puts the codes of what SwiGLU left of a tile into memory: a block of 128 inputs of the next product.
template <int kTokens>
__device__ void write_codes(const float (&z)[kTokens / 2], std::byte* codes, float* scales, Leaving& leaving,
                            std::int64_t half_stride) {
  const auto thread = static_cast<int>(threadIdx.x);
  find_tops<kTokens>(z, leaving.tops);
  if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  meet_many();
  if (thread < kTokens) {
    const float scale = ue8m0(fp8_scale_code(__uint_as_float(leaving.tops[thread])));
    leaving.tops[thread] = 0;
    leaving.scales[thread] = scale;
    leaving.inverses[thread] = inverse_of(scale);
  }
  meet_many();
  const int t = thread % 4;
  const int row = thread / kTileThreads * kTileRows + thread % kTileThreads / kWarp * 16 + thread % kWarp / 4;
  const int place = row % 32 / 8 * 32 + row % 8 / 4 * 16 + row / 32 * 4 + row % 4;  // code_place()
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    const float2 inverse = *reinterpret_cast<const float2*>(leaving.inverses + 8 * n + 2 * t);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const of = &z[4 * n + i];
      const float by = i == 0 ? inverse.x : inverse.y;
      const std::uint32_t both = e4m3_pair(__fmul_rn(of[0], by), __fmul_rn(of[2], by));
      std::byte* const token = leaving.codes + n * 8 * kCodeRow + (2 * t + i) * kCodeRow;
      // Row + 8 is 32 places, two pieces, further.
      token[(place / 16 ^ (2 * t + i)) * 16 + place % 16] = static_cast<std::byte>(both & 255U);
      token[(place / 16 + 2 ^ (2 * t + i)) * 16 + place % 16] = static_cast<std::byte>(both >> 8);
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  meet_many();
  if (thread != 0) return;
#pragma unroll
  for (int half = 0; half < (kTokens + kHalfTokens - 1) / kHalfTokens; ++half) {
    bulk_store(codes + half * half_stride * kCodeTileBytes, leaving.codes + half * kCodeTileBytes, kCodeTileBytes);
    bulk_store(scales + half * half_stride * kHalfTokens, leaving.scales + half * kHalfTokens, kHalfTokens * 4);
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// z = what SwiGLU makes of the sums.
template <int kTokens>
__device__ inline void make_z(const Job& job, const Work<true>& work, float (&z)[kTokens / 2],
                              const float (&up)[kTokens / 2]) {
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + i;
      const float weight = job.weights != nullptr && token < work.count ? job.weights[work.first + token] : 1.0F;
#pragma unroll
      for (int r = 4 * n + i; r < 4 * n + 4; r += 2) {
        const float a = carry_to(z[r], job.carrier);
        z[r] = carry_to(weight * swiglu(a, carry_to(up[r], job.carrier), job.limit), job.carrier);
      }
    }
  }
}

// Writes a tile's rows, as write_value() does.
template <int kTokens>
__device__ inline void write_sums(const Job& job, const Work<false>& work, int row_tile, const float (&sums)[kTokens / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kTileThreads;
  const int token = thread % 4 * 2;
  float* y = job.y + (work.first + token) * job.ldy + row_tile * kTileRows + thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n, y += 8 * job.ldy) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (8 * n + token + i >= work.count) continue;
      y[i * job.ldy] = carry_to(sums[4 * n + i], job.carrier);
      y[i * job.ldy + 8] = carry_to(sums[4 * n + 2 + i], job.carrier);
    }
  }
}

// One tile of up to kTokens tokens.
template <Format F, bool kGate, int kTiles, int kTokens, bool kSegments>
__device__ __forceinline__ void multiply_tile(const Job& job, const CodeTiles& to, const ManyTiles<kGate, kTiles>& tiles,
                                              int i, const Work<kGate>& work,
                                              const ManyRing<ManyStage<F, kTiles>>& ring, Leaving* leaving,
                                              int& stage) {
  float sums[kTiles][kTokens / 2];
  sum_many<F, kTiles, kTokens, kSegments>(job, ring, stage, sums);
  if constexpr (kGate) {
    make_z<kTokens>(job, work, sums[0], sums[1]);
    const std::int64_t at = 2 * static_cast<std::int64_t>(tiles.item(i)) * to.blocks + tiles.slab(i);
    write_codes<kTokens>(sums[0], const_cast<std::byte*>(to.codes) + at * kCodeTileBytes,
                         const_cast<float*>(to.scales) + at * kHalfTokens, *leaving, to.blocks);
  } else {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const int row_tile = tiles.row_tile(i, static_cast<int>(threadIdx.x) / kTileThreads, m);
      if (row_tile < tiles.row_tiles) write_sums<kTokens>(job, work, row_tile, sums[m]);
    }
  }
}

// A warpgroup that multiplies.
template <Format F, bool kGate, int kTiles, bool kSegments>
__device__ void multiply_many(const Job& job, const CodeTiles& to, int most_items,
                              const ManyRing<ManyStage<F, kTiles>>& ring, Leaving* leaving) {
  const ManyTiles<kGate, kTiles> tiles(job, most_items);
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const Work<kGate> work(job, tiles.item(i), kManyTokens);
    const auto multiply = [&]<int kTokens>() {
      multiply_tile<F, kGate, kTiles, kTokens, kSegments>(job, to, tiles, i, work, ring, leaving, stage);
    };
    if (work.count > kHalfTokens) multiply.template operator()<kManyTokens>();
    else if (work.count > kFewestTokens) multiply.template operator()<kHalfTokens>();
    else multiply.template operator()<kFewestTokens>();
  }
  if (kGate && threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif  // FATHOM_WGMMA

template <Format F, bool kGate, int kTiles, bool kSegments>
__global__ void __launch_bounds__(kManyThreads, 1)
    codes_many(const __grid_constant__ Job job, CodeTiles x, CodeTiles to, int most_items) {
#if FATHOM_WGMMA
  using Stage = ManyStage<F, kTiles>;
  extern __shared__ uint4 many_shared[];
  __shared__ std::uint64_t full[Stage::kCount];
  __shared__ std::uint64_t empty[Stage::kCount];
  const std::uint32_t misaligned = shared_address(many_shared) % 1024;
  std::byte* const memory = reinterpret_cast<std::byte*>(many_shared) + (misaligned == 0 ? 0 : 1024 - misaligned);
  const ManyRing<Stage> ring{memory, full, empty};
  auto* const leaving = reinterpret_cast<Leaving*>(memory + Stage::kCount * Stage::kBytes);
  if (kGate && threadIdx.x < kManyTokens) leaving->tops[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Stage::kCount; ++s) {
      barrier_init(&full[s], kWarp);
      barrier_init(&empty[s], 2 * kTileThreads);
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
    multiply_many<F, kGate, kTiles, kSegments>(job, to, most_items, ring, leaving);
  }
#endif
}

}  // namespace fathom::ops::cuda
