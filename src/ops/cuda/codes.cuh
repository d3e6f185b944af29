// What the kernels of codes.h share: their job, how a lane reads and expands its part of a tile, how inputs become codes.
#pragma once

#include "ops/cuda/codes.h"
#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/wgmma_codes.cuh"

namespace fathom::ops::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kTileThreads = 128;  // a warpgroup
inline constexpr int kSteps = 4;          // of 32 inputs in a block

// CodesProduct, for kernels. job.x is not used; job.segments are those of codes.
struct CodesJob {
  Job job;
  Codes x;
  bool fp4;
};
CodesJob codes_job_of(const CodesProduct& p);

#if FATHOM_WGMMA

// A lane's part of one tile: kLoads pieces of 16 bytes and, in f32, what a row's sum of the block is to be multiplied by
// beside the scale of x. thread: of the warpgroup.
template <Format F>
struct Tile;

template <>
struct Tile<Format::kFp8> {
  static constexpr int kBytes = kTileRows * kBlock;
  static constexpr int kLoads = 4;
  using Scale = float;  // of both rows

  static __device__ uint4 load(const std::byte* tile, int piece, int thread) {
    return read16(tile + (piece * kTileThreads + thread) * sizeof(uint4));
  }
  // Of tile `row_tile`, block b.
  static __device__ Scale scale(const Job& job, const std::byte* scales, int row_tile, int b, int) {
    const std::int64_t at = static_cast<std::int64_t>(row_tile / 2) * job.blocks + b;
    return job.scales_f32 ? reinterpret_cast<const float*>(scales)[at] : ue8m0(static_cast<std::uint32_t>(scales[at]));
  }
  // The registers of step j, from piece j.
  static __device__ void expand(const uint4& piece, Scale, int, std::uint32_t (&a)[4]) {
    a[0] = piece.x;
    a[1] = piece.y;
    a[2] = piece.z;
    a[3] = piece.w;
  }
  static __device__ float lower(Scale s) { return s; }
  static __device__ float upper(Scale s) { return s; }
};

template <>
struct Tile<Format::kFp4> {
  static constexpr int kBytes = kTileRows * kBlock / 2;
  static constexpr int kLoads = 2;  // each for two steps
  static constexpr int kScaleBytes = kTileRows * 4;
  using Scale = uint2;  // the words of rows g and g + 8

  static __device__ uint4 load(const std::byte* tile, int piece, int thread) {
    return read16(tile + (piece * kTileThreads + thread) * sizeof(uint4));
  }
  static __device__ Scale scale(const Job& job, const std::byte* scales, int row_tile, int b, int thread) {
    const std::byte* const words = scales + (static_cast<std::int64_t>(row_tile) * job.blocks + b) * kScaleBytes;
    return __ldg(reinterpret_cast<const uint2*>(words) + thread / 4);
  }
  // Eight codes as e4m3: 0..3 and 4..7. The bytes of a table of the eight magnitudes times 2^(u - 5) are selected.
  static __device__ void expand8(std::uint32_t codes, std::uint32_t u, std::uint32_t& first, std::uint32_t& second) {
    const std::uint32_t low = 0x14100800U + u * 0x08080800U;   // 0, 0.5, 1, 1.5
    const std::uint32_t high = 0x24201c18U + u * 0x08080808U;  // 2, 3, 4, 6
    const std::uint32_t magnitudes = codes & 0x77777777U;
    first = __byte_perm(low, high, magnitudes) | (codes & 0x80808080U);
    second = __byte_perm(low, high, magnitudes >> 16) | (codes << 4 & 0x80808080U);
  }
  // The registers of step 2 h + `second` from piece h.
  static __device__ void expand(const uint4& piece, Scale s, int second, std::uint32_t (&a)[4]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    expand8(second != 0 ? piece.z : piece.x, s.x >> (4 * t) & 15U, a[0], a[2]);
    expand8(second != 0 ? piece.w : piece.y, s.y >> (4 * t) & 15U, a[1], a[3]);
  }
  static __device__ float lower(Scale s) { return __uint_as_float(s.x >> 24 << 23); }
  static __device__ float upper(Scale s) { return __uint_as_float(s.y >> 24 << 23); }
};

// The registers of all steps of a tile.
template <Format F>
__device__ inline void expand_tile(const uint4 (&pieces)[Tile<F>::kLoads], typename Tile<F>::Scale scale,
                                   std::uint32_t (&a)[kSteps][4]) {
  constexpr int kEach = kSteps / Tile<F>::kLoads;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) Tile<F>::expand(pieces[j / kEach], scale, j % kEach, a[j]);
  // Here, not between the instructions that read them.
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// total += acc of a block; s: what token's results are multiplied by, in order of the registers: tokens 2t, 2t + 1 of each
// eight, x_scale(n) being the scale of token n's block.
template <Format F, int kN, class XScale>
__device__ inline void promote(const float (&acc)[kN / 2], typename Tile<F>::Scale w, const XScale& x_scale,
                               float (&total)[kN / 2]) {
  const float lower = Tile<F>::lower(w);
  const float upper = Tile<F>::upper(w);
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float x = x_scale(8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + i);
      total[4 * n + i] = fmaf(acc[4 * n + i], x * lower, total[4 * n + i]);
      total[4 * n + 2 + i] = fmaf(acc[4 * n + 2 + i], x * upper, total[4 * n + 2 + i]);
    }
  }
}

// A warp's block of 128 inputs, of which lane l has [4 l, 4 l + 4): the lane's word of the codes, for place
// code_word(l), and the block's scale.
__device__ inline std::uint32_t quantise_to_codes(const float (&v)[4], float& scale) {
  float top = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) top = fmaxf(top, fabsf(v[j]));  // NaNs do not count
  top = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(top)));
  scale = ue8m0(fp8_scale_code(top));
  const float inverse = inverse_of(scale);
  std::uint16_t low;
  std::uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(__fmul_rn(v[1], inverse)), "f"(__fmul_rn(v[0], inverse)));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(__fmul_rn(v[3], inverse)), "f"(__fmul_rn(v[2], inverse)));
  return static_cast<std::uint32_t>(high) << 16 | low;
}
// Which word of the block it is.
__device__ inline int code_word(int lane) { return lane % 8 / 2 * 8 + lane % 2 * 4 + lane / 8; }

// Where piece p (16 bytes) of token n's block lies in shared memory, relative to the block: groups of eight tokens of 128
// bytes, as tokens_at() wants them.
__device__ inline int code_piece(int n, int p) { return n * kCodeRow + (p ^ n % 8) * 16; }

#endif  // FATHOM_WGMMA

}  // namespace fathom::ops::cuda
