// The kernels of matmul.h, for one weight format each; matmul_FORMAT_cuda.cu instantiates them.
// Long file: the two ways to multiply share their tiles, orders and decoders, and are read beside each other.
//
// Tensor units multiply 16 rows of W by 16 inputs with 16 inputs by 8 tokens. Lane (g, t) = (lane / 4, lane % 4) holds
// rows g and g + 8 of W and token g of x, for 4 inputs at a time. Which 4 of a block of 128 is ours to say: lane t
// takes 32 of them (matmul.h, Order), so that it reads W and x in long pieces.
//   stream: few tokens. A warp sums one segment of 16 rows; the block adds the segments. W goes past once.
//   tile:   many tokens. A block has 128 rows and 64 tokens; x is shared, a warp sums all segments one after another.
// Both sum in the same order.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/numbers.cuh"

namespace fathom::ops::cuda {

// kWide: anything, as sums of three bf16 numbers. The others want inputs in multiples of 16.
enum class Format : std::uint8_t { kBf16, kFp8, kFp4, kWide };

struct WeightView {
  const std::byte* data;
  const std::byte* scales;
};

// Matmul, for kernels.
struct Job {
  WeightView w[2];
  const ExpertWeights* table;
  Part part;
  DType dtype;
  bool scales_f32;
  int cols;
  int blocks;
  int segments;
  int group_rows;
  int groups;
  std::int64_t row_bytes;
  std::int64_t scale_stride;  // scales from row to row of scales
  Planes x;
  const std::int32_t* list;
  const Item* items;
  const std::int32_t* n_items;
  int rows;
  const float* weights;
  float limit;
  float* y;
  std::int64_t ldy;
  Carrier carrier;
};

// ---- Reading weights: a lane's 32 inputs of a block of one row (Order), and the expansion of each half of them to 8
// pairs of bf16 numbers in the order of the planes: (0, 4) (1, 5) (2, 6) (3, 7) of the first 8 inputs, then of the
// others.

// Weights are read once: they stay out of L1, where x is.
__device__ inline uint4 read16(const std::byte* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}
// Two bf16 products; c = -0 changes nothing.
__device__ inline std::uint32_t multiply2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000U));
  return d;
}
__host__ __device__ constexpr std::uint32_t twice(std::uint32_t half) { return half << 16 | half; }

template <Format F>
struct Loader;

template <>
struct Loader<Format::kBf16> {
  static constexpr int kPlanes = 1;
  struct Raw {
    uint4 v[2][2];
  };
  static __device__ Raw load(const Job& job, const WeightView& w, std::int64_t row, int block, int t) {
    Raw r = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = block * kBlock + 64 * half + 16 * t;
      if (k >= job.cols) continue;
      const std::byte* p = w.data + row * job.row_bytes + 2 * k;
      r.v[half][0] = read16(p);
      r.v[half][1] = read16(p + 16);
    }
    return r;
  }
  static __device__ void pairs4(const uint4& v, std::uint32_t* p) {
    p[0] = __byte_perm(v.x, v.z, 0x5410);
    p[1] = __byte_perm(v.x, v.z, 0x7632);
    p[2] = __byte_perm(v.y, v.w, 0x5410);
    p[3] = __byte_perm(v.y, v.w, 0x7632);
  }
  static __device__ void expand(const Raw& r, int half, int, std::uint32_t (&p)[8]) {
    pairs4(r.v[half][0], p);
    pairs4(r.v[half][1], p + 4);
  }
  static __device__ float block_scale(const Job&, const WeightView&, std::int64_t, int) { return 1.0F; }
};

// The 7 bits of a code placed under a bf16's sign are the value times 2^-120. There are no NaN codes in weights.
template <>
struct Loader<Format::kFp8> {
  static constexpr int kPlanes = 1;
  struct Raw {
    uint4 v[2];
  };
  static __device__ Raw load(const Job& job, const WeightView& w, std::int64_t row, int block, int t) {
    Raw r = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = block * kBlock + 64 * half + 16 * t;
      if (k < job.cols) r.v[half] = read16(w.data + row * job.row_bytes + k);
    }
    return r;
  }
  static __device__ void pairs4(std::uint32_t first, std::uint32_t second, std::uint32_t* p) {
    constexpr std::uint32_t kPower120 = twice((127U + 120U) << 7);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const std::uint32_t v = __byte_perm(first, second, (4 + j) << 12 | (4 + j) << 8 | j << 4 | j);
      p[j] = multiply2((v & 0x80008000U) | (v >> 4 & 0x07f007f0U), kPower120);
    }
  }
  static __device__ void expand(const Raw& r, int half, int, std::uint32_t (&p)[8]) {
    pairs4(r.v[half].x, r.v[half].y, p);
    pairs4(r.v[half].z, r.v[half].w, p + 4);
  }
  static __device__ float block_scale(const Job& job, const WeightView& w, std::int64_t row, int block) {
    const std::int64_t at = row / quant::kWeightBlock * job.scale_stride + block;
    if (job.scales_f32) return reinterpret_cast<const float*>(w.scales)[at];
    return ue8m0(static_cast<std::uint32_t>(w.scales[at]));
  }
};

// The 3 bits of a code placed under a bf16's sign are the value times 2^-126. The group's scale, a power of two, is
// folded in, times 2^-32 to stay in range: scales up to 2^33 are exact, larger ones give infinities.
template <>
struct Loader<Format::kFp4> {
  static constexpr int kPlanes = 1;
  struct Raw {
    uint4 v;
    std::uint32_t scale;
  };
  // 32 inputs in a row: one scale.
  static __device__ Raw load(const Job& job, const WeightView& w, std::int64_t row, int block, int t) {
    const int k = block * kBlock + 32 * t;
    if (k >= job.cols) return {};
    const auto scale = static_cast<std::uint32_t>(w.scales[row * job.scale_stride + k / quant::kFp4Block]);
    return {read16(w.data + row * job.row_bytes + k / 2), scale};
  }
  static __device__ void pairs4(std::uint32_t v, std::uint32_t scale, std::uint32_t* p) {
    p[0] = multiply2((v << 12 & 0x80008000U) | (v << 6 & 0x01c001c0U), scale);
    p[1] = multiply2((v << 8 & 0x80008000U) | (v << 2 & 0x01c001c0U), scale);
    p[2] = multiply2((v << 4 & 0x80008000U) | (v >> 2 & 0x01c001c0U), scale);
    p[3] = multiply2((v & 0x80008000U) | (v >> 6 & 0x01c001c0U), scale);
  }
  static __device__ void expand(const Raw& r, int half, int, std::uint32_t (&p)[8]) {
    constexpr std::uint32_t kFold = 126 - 32;
    const std::uint32_t scale = min(r.scale, 255U - kFold) * 0x00800080U + kFold * 0x00800080U;
    pairs4(half == 0 ? r.v.x : r.v.z, scale, p);
    pairs4(half == 0 ? r.v.y : r.v.w, scale, p + 4);
  }
  static __device__ float block_scale(const Job&, const WeightView&, std::int64_t, int) { return 0x1p32F; }
};

// Whatever the others do not read: F32, odd sizes, FP4 whose scales are not powers of two.
template <>
struct Loader<Format::kWide> {
  static constexpr int kPlanes = 3;
  struct Raw {
    float v[2][16];
  };
  static __device__ float value(const Job& job, const WeightView& w, std::int64_t row, int k) {
    const std::byte* p = w.data + row * job.row_bytes;
    if (job.dtype == DType::kF32) return reinterpret_cast<const float*>(p)[k];
    if (job.dtype == DType::kBf16) return bf16_value(reinterpret_cast<const std::uint16_t*>(p)[k]);
    const bool fp8 = job.dtype == DType::kF8E4M3;
    const std::int64_t at = fp8 ? row / quant::kWeightBlock * job.scale_stride + k / quant::kWeightBlock
                                : row * job.scale_stride + k / quant::kFp4Block;
    const float scale = job.scales_f32 ? reinterpret_cast<const float*>(w.scales)[at] : ue8m0(byte_of(w.scales, at));
    if (fp8) return e4m3(byte_of(p, k)) * scale;
    return e2m1(k % 2 == 0 ? byte_of(p, k / 2) & 15U : byte_of(p, k / 2) >> 4) * scale;
  }
  static __device__ std::uint32_t byte_of(const std::byte* p, std::int64_t i) {
    return static_cast<std::uint32_t>(p[i]);
  }
  static __device__ Raw load(const Job& job, const WeightView& w, std::int64_t row, int block, int t) {
    Raw r;
    for (int half = 0; half < 2; ++half) {
      const int k = block * kBlock + 64 * half + 16 * t;
#pragma unroll 1
      for (int i = 0; i < 16; ++i) r.v[half][i] = k + i < job.cols ? value(job, w, row, k + i) : 0.0F;
    }
    return r;
  }
  static __device__ std::uint32_t piece(float v, int plane) {
    std::uint32_t bits = bf16_bits(v);
    for (int i = 0; i < plane; ++i) {
      v = isfinite(v) ? v - bf16_value(bits) : 0.0F;
      bits = bf16_bits(v);
    }
    return bits;
  }
  static __device__ void expand(const Raw& r, int half, int plane, std::uint32_t (&p)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = j / 4 * 8 + j % 4;
      p[j] = piece(r.v[half][i], plane) | piece(r.v[half][i + 4], plane) << 16;
    }
  }
  static __device__ float block_scale(const Job&, const WeightView&, std::int64_t, int) { return 1.0F; }
};

// A lane's share of a block of rows g and g + 8.
template <Format F>
struct BlockOfRows {
  typename Loader<F>::Raw raw[2];
  float scale[2];
};

template <Format F>
__device__ inline BlockOfRows<F> load_block(const Job& job, const WeightView& w, const std::int64_t (&rows)[2],
                                            int block, int t) {
  BlockOfRows<F> b;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    b.raw[r] = Loader<F>::load(job, w, rows[r], block, t);
    b.scale[r] = Loader<F>::block_scale(job, w, rows[r], block);
  }
  return b;
}

__device__ inline void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                           std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One chunk of 64 inputs of one plane times one group of 8 tokens. lower, upper: the pairs of rows g and g + 8.
__device__ inline void mma_chunk(float (&d)[4], const std::uint32_t (&lower)[8], const std::uint32_t (&upper)[8],
                                 uint4 x0, uint4 x1) {
  mma(d, lower[0], upper[0], lower[1], upper[1], x0.x, x0.y);
  mma(d, lower[2], upper[2], lower[3], upper[3], x0.z, x0.w);
  mma(d, lower[4], upper[4], lower[5], upper[5], x1.x, x1.y);
  mma(d, lower[6], upper[6], lower[7], upper[7], x1.z, x1.w);
}

// ---- What both kernels begin and end with.

// The tokens and the matrices of a block.
template <bool kGate>
struct Work {
  WeightView w[kGate ? 2 : 1];
  int first = 0;  // list entries or rows [first, first + count)
  int count = 0;

  __device__ Work(const Job& job, int item, int tokens) {
    if (job.items == nullptr) {
      first = item * tokens;
      count = min(tokens, job.rows - first);
      for (int i = 0; i < (kGate ? 2 : 1); ++i) w[i] = job.w[i];
      return;
    }
    if (item >= *job.n_items) return;
    const Item it = job.items[item];
    first = it.first;
    count = it.count;
    const ExpertWeights& e = job.table[it.expert];
    if (kGate) {
      w[0] = {e.w1.data, e.w1.scales};
      w[kGate ? 1 : 0] = {e.w3.data, e.w3.scales};
    } else {
      w[0] = {e.w2.data, e.w2.scales};
    }
  }

  // Row of the planes that token n (below count) reads.
  __device__ const std::uint16_t* x(const Job& job, int n, int group) const {
    const std::int64_t row = job.list != nullptr ? job.list[first + n] : first + n;
    return job.x.data + (row * job.groups + group) * job.x.row_stride;
  }
};

__device__ inline float swiglu(float a, float b, float limit) {
  if (limit > 0) {
    b = b < -limit ? -limit : b > limit ? limit : b;
    a = a > limit ? limit : a;
  }
  return a / (1.0F + expf(-a)) * b;
}

// Writes result i (0..3) of lane (g, t) for rows row0 + g, row0 + g + 8 and tokens n0 + 2t, n0 + 2t + 1. up: of w3.
template <bool kGate>
__device__ inline void write_result(const Job& job, int first, int count, int row0, int n0, int group, int i, float v,
                                    float up) {
  const int lane = threadIdx.x % kWarp;
  const int row = row0 + lane / 4 + (i >= 2 ? 8 : 0);
  const int n = n0 + 2 * (lane % 4) + i % 2;
  if (row >= job.group_rows || n >= count) return;
  float out = carry_to(v, job.carrier);
  if (kGate) {
    const float weight = job.weights != nullptr ? job.weights[first + n] : 1.0F;
    out = carry_to(weight * swiglu(out, carry_to(up, job.carrier), job.limit), job.carrier);
  }
  job.y[(first + n) * job.ldy + static_cast<std::int64_t>(group) * job.group_rows + row] = out;
}

// ---- stream.

constexpr int kMatmulThreads = 256;
constexpr int kMatmulWarps = kMatmulThreads / kWarp;

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
                x0[n] = __ldg(from);
                x1[n] = __ldg(from + 1);
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

// ---- tile.

constexpr int kTileTokens = 64;
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

// Chooses and launches. Defined for every format in matmul_FORMAT_cuda.cu.
template <Format F>
void launch_format(Context& c, const char* name, const Job& job, bool gate, int tokens, std::int64_t items);

template <Format F, bool kGate>
void launch_matmul(Context& c, const char* name, const Job& job, int tokens, std::int64_t items) {
  const auto y = static_cast<unsigned>(items);
  const auto z = static_cast<unsigned>(job.groups);
  const auto streams = static_cast<unsigned>(ceil_div(ceil_div(job.group_rows, 16), kMatmulWarps / job.segments));
  if (tokens <= 8) {
    launch(c, name, stream<F, kGate, 1>, dim3(streams, y, z), kMatmulThreads, 0, job);
  } else if constexpr (F == Format::kWide) {
    FATHOM_CHECK(false, "wide weights come in items of up to 8 tokens");
  } else if (tokens <= 32) {
    launch(c, name, stream<F, kGate, 4>, dim3(streams, y, z), kMatmulThreads, 0, job);
  } else {
    launch(c, name, tile<F, kGate>, dim3(static_cast<unsigned>(ceil_div(job.group_rows, tile_rows(kGate))), y, z),
           kMatmulThreads, kTileShared, job);
  }
}

#define FATHOM_MATMUL_FORMAT(F)                                                                                     \
  template <>                                                                                                       \
  void launch_format<F>(Context & c, const char* name, const Job& job, bool gate, int tokens, std::int64_t items) { \
    if (gate) {                                                                                                     \
      launch_matmul<F, true>(c, name, job, tokens, items);                                                          \
    } else {                                                                                                        \
      launch_matmul<F, false>(c, name, job, tokens, items);                                                         \
    }                                                                                                               \
  }

}  // namespace fathom::ops::cuda
