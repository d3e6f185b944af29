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
  __device__ int slab(int i) const { return i % slabs; }
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

// Sums of one warpgroup's tiles, a tile's block after the other. While the tensor unit multiplies 64 tokens, the 64
// before them are added and the next tile's weights are read. stage: of the ring, advanced.
template <Format F, int kTiles, int kHalves, bool kSegments>
__device__ __forceinline__ void sum_many(const Job& job, const ManyRing<ManyStage<F, kTiles>>& ring, int& stage,
                                         float (&out)[kTiles][kHalves][32]) {
  using Stage = ManyStage<F, kTiles>;
  using Shape = ManyShape<F>;
  constexpr int kWeightScales = F == Format::kFp8 ? Stage::kFp8Scales : Stage::kFp4Scales;
  const int first_tile = static_cast<int>(threadIdx.x) / kTileThreads * kTiles;
  float acc[2][32];
  float total[kTiles][kHalves][32];
#pragma unroll
  for (int i = 0; i < kTiles * kHalves * 32; ++i) {
    total[i / 32 / kHalves][i / 32 % kHalves][i % 32] = 0;
    if (kSegments) out[i / 32 / kHalves][i / 32 % kHalves][i % 32] = 0;
  }
  std::uint32_t a[2][kSteps][4];
  const auto read = [&](const std::byte* from, int m, std::uint32_t (&to)[kSteps][4]) {
    const auto* const tile = reinterpret_cast<const uint4*>(from + Stage::kWeights + (first_tile + m) * Shape::kTile);
    uint4 pieces[Tile<F>::kLoads];
#pragma unroll
    for (int i = 0; i < Tile<F>::kLoads; ++i) pieces[i] = tile[i * kTileThreads + threadIdx.x % kTileThreads];
    expand_tile<F>(pieces, scale_in<F>(from + kWeightScales, first_tile + m), to);
  };
  const auto multiply = [&](float (&to)[32], const std::uint32_t (&w)[kSteps][4], const std::byte* from, int half) {
    const std::uint64_t tokens = tokens_at(from + half * kCodeTileBytes);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) WgmmaCodes<kHalfTokens>::run(to, w[j], tokens + 2 * j, j);
    wgmma_commit();
  };
  // Of the block that is multiplied, and of the one before.
  struct At {
    const std::byte* memory;
    int segment;
    bool ends;  // the segment
  };
  const auto add = [&](const float (&block)[32], const At& at, int m, int half) {
    add_block<F>(block, reinterpret_cast<const float*>(at.memory + Stage::kScales) + half * kHalfTokens,
                 scale_in<F>(at.memory + kWeightScales, first_tile + m), total[m][half]);
    if constexpr (kSegments) {
      if (!at.ends) return;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& sum = out[m][half][i];
        sum = at.segment == 0 ? total[m][half][i] : sum + total[m][half][i];
        total[m][half][i] = 0;
      }
    }
  };
  const int units = job.blocks * kTiles;  // tiles' blocks
  int next_block = 1;
  const auto at_block = [&](int b, int segment) {
    const bool ends = kSegments && b + 1 == job.blocks * (segment + 1) / job.segments;
    return At{ring.at(stage), segment, ends};
  };
  At now = at_block(0, 0);
  At before = now;
  ring.wait_full(stage);
  read(now.memory, 0, a[0]);
  for (int u0 = 0; u0 < units; u0 += 2) {
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const int u = u0 + d;
      if (kTiles == 1 && u >= units) break;
      const int m = d % kTiles;
      if (m == 0 && u > 0) {
        before = now;
        ++stage;
        now = at_block(next_block, now.segment + (now.ends ? 1 : 0));
        ++next_block;
      }
      multiply(acc[kHalves == 2 ? 0 : d], a[d], now.memory, 0);
      constexpr int kLast = kHalves - 1;  // of the unit before, still to be added
      const auto& last = acc[kHalves == 2 ? 1 : 1 - d];
      if (m > 0) {
        add(last, now, m - 1, kLast);
      } else if (u > 0) {
        add(last, before, kTiles - 1, kLast);
        ring.release(stage - 1);
      }
      if constexpr (kHalves == 2) multiply(acc[1], a[d], now.memory, 1);
      if (m + 1 < kTiles) {
        read(now.memory, m + 1, a[1 - d]);
      } else if (u + 1 < units) {
        ring.wait_full(stage + 1);
        read(ring.at(stage + 1), 0, a[1 - d]);
      }
      if constexpr (kHalves == 2) {
        wgmma_wait<1>();
        add(acc[0], now, m, 0);
      }
      wgmma_wait<0>();
    }
  }
  if (kHalves == 2 || kTiles == 2 || units % 2 == 0) add(acc[1], now, kTiles - 1, kHalves - 1);
  else add(acc[0], now, kTiles - 1, kHalves - 1);
  ring.release(stage);
  ++stage;
  if constexpr (!kSegments) {
#pragma unroll
    for (int i = 0; i < kTiles * kHalves * 32; ++i) {
      out[i / 32 / kHalves][i / 32 % kHalves][i % 32] = total[i / 32 / kHalves][i / 32 % kHalves][i % 32];
    }
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
template <int kHalves>
__device__ inline void find_tops(const float (&z)[kHalves][32], std::uint32_t* tops) {
  constexpr int kTokens = 16 * kHalves;  // of a lane: 2 t and + 1 of every 8
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float top[kTokens];
#pragma unroll
  for (int q = 0; q < kTokens; ++q) {
    const float* const of = &z[q / 16][q / 2 % 8 * 4 + q % 2];
    top[q] = fmaxf(fmaxf(0.0F, fabsf(of[0])), fabsf(of[2]));  // NaNs do not count
  }
  int first = 0;
  halve_tops<kTokens / 2, 16>(top, first);
  halve_tops<kTokens / 4, 8>(top, first);
  halve_tops<kTokens / 8, 4>(top, first);
#pragma unroll
  for (int r = 0; r < kTokens / 8; ++r) {
    const int q = first + r;
    atomicMax(&tops[q / 2 * 8 + lane % 4 * 2 + q % 2], __float_as_uint(top[r]));
  }
}

// Puts the codes of what SwiGLU left of a tile into memory: a block of 128 inputs of the next product.
template <int kHalves>
__device__ void write_codes(const float (&z)[kHalves][32], std::byte* codes, float* scales, Leaving& leaving,
                            std::int64_t half_stride) {
  const auto thread = static_cast<int>(threadIdx.x);
  find_tops<kHalves>(z, leaving.tops);
  if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  meet_many();
  if (thread < kHalves * kHalfTokens) {
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
  for (int n = 0; n < 8 * kHalves; ++n) {
    const float2 inverse = *reinterpret_cast<const float2*>(leaving.inverses + 8 * n + 2 * t);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const of = &z[n / 8][n % 8 * 4 + i];
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
  for (int half = 0; half < kHalves; ++half) {
    bulk_store(codes + half * half_stride * kCodeTileBytes, leaving.codes + half * kCodeTileBytes, kCodeTileBytes);
    bulk_store(scales + half * half_stride * kHalfTokens, leaving.scales + half * kHalfTokens, kHalfTokens * 4);
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// z = what SwiGLU makes of the sums.
template <int kHalves>
__device__ inline void make_z(const Job& job, const Work<true>& work, float (&z)[kHalves][32],
                              const float (&up)[kHalves][32]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < 8 * kHalves; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * n + 2 * t + i;
      const float weight = job.weights != nullptr && token < work.count ? job.weights[work.first + token] : 1.0F;
#pragma unroll
      for (int r = i; r < 4; r += 2) {
        float& v = z[n / 8][n % 8 * 4 + r];
        const float b = carry_to(up[n / 8][n % 8 * 4 + r], job.carrier);
        v = carry_to(weight * swiglu(carry_to(v, job.carrier), b, job.limit), job.carrier);
      }
    }
  }
}

template <Format F, bool kGate, int kTiles, int kHalves, bool kSegments>
__device__ __forceinline__ void multiply_tile(const Job& job, const CodeTiles& to, const ManyTiles<kGate, kTiles>& tiles,
                                              int i, const Work<kGate>& work,
                                              const ManyRing<ManyStage<F, kTiles>>& ring, Leaving* leaving,
                                              int& stage) {
  const int group = static_cast<int>(threadIdx.x) / kTileThreads;
  const int warp_row = static_cast<int>(threadIdx.x) % kTileThreads / kWarp * 16;
  float sums[kTiles][kHalves][32];
  sum_many<F, kTiles, kHalves, kSegments>(job, ring, stage, sums);
  if constexpr (kGate) {
    make_z<kHalves>(job, work, sums[0], sums[1]);
    const std::int64_t at = 2 * static_cast<std::int64_t>(tiles.item(i)) * to.blocks + tiles.slab(i);
    write_codes<kHalves>(sums[0], const_cast<std::byte*>(to.codes) + at * kCodeTileBytes,
                         const_cast<float*>(to.scales) + at * kHalfTokens, *leaving, to.blocks);
  } else {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const int row0 = tiles.row_tile(i, group, m) * kTileRows + warp_row;
#pragma unroll
      for (int n = 0; n < kHalves * 8; ++n) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          write_result<false>(job, work.first, work.count, row0, 8 * n, 0, v, sums[m][n / 8][n % 8 * 4 + v], 0);
        }
      }
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
    const auto multiply = [&]<int kHalves>() {
      multiply_tile<F, kGate, kTiles, kHalves, kSegments>(job, to, tiles, i, work, ring, leaving, stage);
    };
    if (work.count > kHalfTokens) multiply.template operator()<2>();
    else multiply.template operator()<1>();
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
    multiply_many<F, kGate, kTiles, kSegments>(job, to, most_items, ring, leaving);
  }
#endif
}

}  // namespace fathom::ops::cuda
