// What the kernels of matmul.h share: the job, how weights are read, and how results are written.
//
// Tensor units multiply 16 rows of W by 16 inputs with 16 inputs by 8 tokens. Lane (g, t) = (lane / 4, lane % 4) holds
// rows g and g + 8 of W and token g of x, for 4 inputs at a time. Which 4 of a block of 128 is ours to say: lane t
// takes 32 of them (matmul.h, Order), so that it reads W and x in long pieces.
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
//
// With few tokens the instructions of this expansion are the limit, not the memory, so the 32 bits of 8 codes are stored
// in another order (prepare_fp4): codes j and j + 4 in the two halves, pair 0 as a bf16 has the sign and the 3 bits,
// pair 1 in the same places 4 bits lower, pair 2 turned left by 6, so that the signs are in each other's half, and pair
// 3 in the bits that are left: two of its bits and the sign 6 lower, the highest 2 higher.
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
    constexpr std::uint32_t kCode = 0x81c081c0U;
    p[0] = multiply2(v & kCode, scale);
    p[1] = multiply2(v << 4 & kCode, scale);
    p[2] = multiply2(__funnelshift_r(v, v, 6) & kCode, scale);
    p[3] = multiply2((v << 6 & 0x80c080c0U) | (v >> 2 & 0x01000100U), scale);
  }
  // 8 codes in the checkpoint's order, code i in bits 4 i, in the order that pairs4 takes.
  static __device__ std::uint32_t reordered(std::uint32_t v) {
    constexpr int kPlace[4][4] = {{6, 7, 8, 15}, {2, 3, 4, 11}, {12, 13, 14, 21}, {0, 1, 10, 9}};  // of a pair's bits
    std::uint32_t out = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int bit = 0; bit < 4; ++bit) {
        out |= (v >> (4 * i + bit) & 1U) << (i / 4 * 16 + kPlace[i % 4][bit]) % 32;
      }
    }
    return out;
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

// ---- What all kernels begin and end with.

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

// Writes the result of a row of a group for an entry of the list. weights: of the list's entries, or null. up: of w3.
template <bool kGate>
__device__ inline void write_value(const Job& job, const float* weights, int entry, int group, int row, float v,
                                   float up) {
  float out = carry_to(v, job.carrier);
  if (kGate) {
    const float weight = weights != nullptr ? weights[entry] : 1.0F;
    out = carry_to(weight * swiglu(out, carry_to(up, job.carrier), job.limit), job.carrier);
  }
  job.y[entry * job.ldy + static_cast<std::int64_t>(group) * job.group_rows + row] = out;
}

// Writes result i (0..3) of lane (g, t) for rows row0 + g, row0 + g + 8 and tokens n0 + 2t, n0 + 2t + 1.
template <bool kGate>
__device__ inline void write_result(const Job& job, int first, int count, int row0, int n0, int group, int i, float v,
                                    float up) {
  const int lane = threadIdx.x % kWarp;
  const int row = row0 + lane / 4 + (i >= 2 ? 8 : 0);
  const int n = n0 + 2 * (lane % 4) + i % 2;
  if (row < job.group_rows && n < count) write_value<kGate>(job, job.weights, first + n, group, row, v, up);
}

constexpr int kMatmulThreads = 256;
constexpr int kMatmulWarps = kMatmulThreads / kWarp;
constexpr int kTileTokens = 64;    // of an item where there are many
constexpr int kWgmmaTokens = 128;  // of an item of wgmma

// How the tensor units take w, and the job that m is.
Format format_of(const Weight& w);
Job job_of(const Matmul& m);

// Chooses a kernel and launches it. Defined for every format in matmul_FORMAT_cuda.cu.
template <Format F>
void launch_format(Context& c, const char* name, const Job& job, bool gate, int tokens, std::int64_t items);

}  // namespace fathom::ops::cuda
