// Attention on tensor units: what its two kernels, rows of one token spread over blocks (attention_spread_cuda.cu) and
// one block a token (attention_whole_cuda.cu), share. Their results are the same to the bit, because every number is
// defined by the token's place alone:
//   A token's visible rows come in parts of kPartRows, cut by their place in the visible set. A logit is the sum, in
//   order, of the tensor units' sums over four quarters of the dims. Logits are powers of two's exponents, rounded to
//   multiples of 2^-13; what a part's probabilities relate to is a power of two as well, its highest logit rounded up.
//   So relating them to another power of two changes no bit, before or after they are rounded to bf16 and summed:
//   whoever computes a part may use any reference. The sums of kSpanParts parts, a span, are added in order, then those
//   of spans.
//
// Queries, window rows and stored entries are bf16 numbers (`official-bf16`), products are exact.
//
// Rows in shared memory have their unrotated dims in another order, as codes unpack: of every 4 the middle two are
// exchanged. Queries are laid out likewise, and results are put right when they are written.
#pragma once

#include "ops/attention/visible.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor.cuh"

namespace fathom::ops::cuda {

constexpr int kMmaDim = 512;
constexpr int kMmaRope = 64;
constexpr int kMmaPlain = kMmaDim - kMmaRope;
constexpr int kMmaPitch = kMmaDim + 8;  // bf16 numbers from row to row, against bank conflicts
constexpr int kPartRows = 64;
constexpr int kSpanParts = 10;  // the window and 512 selected entries
constexpr int kSpanRows = kSpanParts * kPartRows;
constexpr int kMmaThreads = 256;
constexpr int kMmaWarps = kMmaThreads / kWarp;

// Whether an attention is in the form these kernels know.
inline bool on_tensor_units(const SparseAttention& op) {
  const auto stored = [](const quant::EntryCodec& c) {
    return c.format == quant::EntryFormat::kFp8RopeBf16 && c.dim == kMmaDim && c.rope_dim == kMmaRope;
  };
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return op.carrier == Carrier::kBf16 && op.kv.cols == kMmaDim && op.cos.cols * 2 == kMmaRope &&
         stored(op.ring.codec) && (op.entries.ratio == 0 || stored(op.entries.codec)) && aligned(op.q.data) &&
         aligned(op.kv.data) && aligned(op.out.data) && op.q.ld % 4 == 0 && op.kv.ld % 4 == 0 && op.out.ld % 4 == 0 &&
         op.ring.offset % 8 == 0 && op.entries.offset % 8 == 0;
}

// ---- Rows as bf16 numbers.

// 8 codes and their scale, in the order of rows in shared memory, whatever they are ...
__device__ __noinline__ inline uint4 expand_any(uint2 codes, std::uint32_t scale_code) {
  const float scale = ue8m0(scale_code);
  const auto pair = [scale](std::uint32_t word, int i) {
    return pack_exact(bf16_value(bf16_bits(e4m3(word >> 8 * i & 255U) * scale)),
                      bf16_value(bf16_bits(e4m3(word >> (8 * i + 16) & 255U) * scale)));
  };
  return {pair(codes.x, 0), pair(codes.x, 1), pair(codes.y, 0), pair(codes.y, 1)};
}
// ... and fast where they are numbers in bf16's range. The 7 bits of a code placed under a bf16's sign are the value
// times 2^-120.
struct PlacedCodes {
  std::uint32_t bits[4];

  __device__ explicit PlacedCodes(uint2 codes) {
    constexpr std::uint32_t kBits = 0x07f007f0U;
    bits[0] = codes.x << 4 & kBits;
    bits[1] = codes.x >> 4 & kBits;
    bits[2] = codes.y << 4 & kBits;
    bits[3] = codes.y >> 4 & kBits;
  }
  // Bit 11 or 27 where that is not so: a code of all ones, which is no number, carries into it; 2^120 times a scale of
  // 2^8 is no bf16 number.
  __device__ std::uint32_t special(std::uint32_t scale_code) const {
    std::uint32_t carried = 8 * scale_code + 8 * 121;
#pragma unroll
    for (const std::uint32_t b : bits) carried |= b + 0x00100010U;
    return carried;
  }
  static constexpr std::uint32_t kSpecial = 0x08000800U;
  __device__ uint4 expand(uint2 codes, std::uint32_t scale_code) const {
    constexpr std::uint32_t kSigns = 0x80008000U;
    const std::uint32_t scale = scale_code * 0x00800080U + 0x3c003c00U;  // 2^120 times it, twice
    return {multiply_pairs(bits[0] | (codes.x << 8 & kSigns), scale), multiply_pairs(bits[1] | (codes.x & kSigns), scale),
            multiply_pairs(bits[2] | (codes.y << 8 & kSigns), scale),
            multiply_pairs(bits[3] | (codes.y & kSigns), scale)};
  }
};

// A stored entry as a warp reads it, in pieces of 8 bytes: 56 of codes, 16 of rotated dims, one of scales. A lane has
// codes' piece `lane`; codes' piece lane + 32 or rotated dims' piece lane - 24; rotated dims' piece lane + 8 or the scales.
struct StoredRow {
  static constexpr int kRopePieces = 2 * kMmaRope / 8;
  static constexpr int kCodePieces = kMmaPlain / 8;
  static constexpr int kSecond = kCodePieces - kWarp;  // lanes with two pieces of codes
  static constexpr int kThird = kRopePieces - (kWarp - kSecond);
  uint2 v[3];

  // The dims from which on a lane's pieces go.
  static __device__ int second_dim(int lane) {
    return lane < kSecond ? 8 * (lane + kWarp) : kMmaPlain + 4 * (lane - kSecond);
  }
  static __device__ int third_dim(int lane) { return kMmaPlain + 4 * (lane % kThird + kWarp - kSecond); }

  __device__ void load(const std::byte* from, int lane) {
    const auto read = [from](uint2& to, int piece) {
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to.x), "=r"(to.y) : "l"(from + 8 * piece));
    };
    read(v[0], kRopePieces + lane);
    read(v[1], lane < kSecond ? kRopePieces + lane + kWarp : lane - kSecond);
    read(v[2], lane < kThird ? lane + kWarp - kSecond : kRopePieces + kCodePieces);
  }
  // To where the pieces go.
  __device__ void store(int lane, void* first, void* second, void* third) const {
    const std::uint32_t low = __shfl_sync(kAll, v[2].x, kThird);
    const std::uint32_t high = __shfl_sync(kAll, v[2].y, kThird);
    const unsigned byte = 0x4440U | static_cast<unsigned>(lane) / (quant::kEntryBlock / 8);
    const std::uint32_t scales[2] = {__byte_perm(low, 0, byte), __byte_perm(high, 0, byte)};
    const PlacedCodes a(v[0]);
    const PlacedCodes b(v[1]);
    uint4 x[2];
    if (((a.special(scales[0]) | (lane < kSecond ? b.special(scales[1]) : 0U)) & PlacedCodes::kSpecial) != 0) {
      for (int i = 0; i < 2; ++i) x[i] = expand_any(v[i], scales[i]);
    } else {
      x[0] = a.expand(v[0], scales[0]);
      x[1] = b.expand(v[1], scales[1]);
    }
    *static_cast<uint4*>(first) = x[0];
    if (lane < kSecond) *static_cast<uint4*>(second) = x[1];
    else *static_cast<uint2*>(second) = v[1];
    if (lane < kThird) *static_cast<uint2*>(third) = v[2];
  }
};

// 4 floats that are bf16 numbers, in the order of unrotated dims and of the others.
__device__ inline uint2 pack_plain(float4 v) { return {pack_exact(v.x, v.z), pack_exact(v.y, v.w)}; }
__device__ inline uint2 pack_rotated(float4 v) { return {pack_exact(v.x, v.y), pack_exact(v.z, v.w)}; }

// ---- Softmax in powers of two.

// exp(logit) = 2^(exponent(logit) - kGrid), to 2^-14 in the exponent. Numbers between kGrid's neighbouring powers of two
// are multiples of 2^-13.
constexpr float kGrid = 1.5F * (1 << 10);
__device__ inline float exponent(float dot, float scale) { return __fmaf_rn(dot, scale, kGrid); }
__device__ inline float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x of an integer x <= 0, exact, or 0 where it is below the normal numbers. NaN and -infinity give 0.
__device__ inline float whole_power2(float x) {
  return x >= -126.0F ? __uint_as_float(static_cast<std::uint32_t>(static_cast<int>(x) + 127) << 23) : 0.0F;
}

// The power of two that probabilities are related to, from the highest exponent. It is finite.
__device__ inline float reference(float highest) { return fmaxf(ceilf(highest - kGrid), -0x1p20F); }
// The probability of an exponent.
__device__ inline float related(float exponent, float reference) { return power2(exponent - (kGrid + reference)); }

// What a part leaves of one head: its reference and the sum of its probabilities.
struct PartWeight {
  float top;
  float sum;
};

// A sink is one more logit whose value is zero.
__device__ inline PartWeight sink_weight(float sink) {
  const float x = exponent(sink, 0x1.715476p0F);
  const float top = reference(x);
  return {top, related(x, top)};
}

// The factor from dot products to exponents.
inline float exponent_scale() { return static_cast<float>(1.4426950408889634 / 22.627416997969522); }

// ---- Rows that many tokens see, expanded once.

// [tokens + segments * (window + entries)] rows of kMmaDim bf16 numbers in the order of shared memory: the step's own,
// then of every segment those before it in the window, the last one last, and its entries. Those that do not exist are
// void.
struct ExpandedRows {
  std::uint16_t* data = nullptr;
  int tokens = 0;
  int window = 0;
  int entries = 0;  // of a segment, at most

  __device__ const std::uint16_t* own(int row) const { return data + static_cast<std::int64_t>(row) * kMmaDim; }
  __device__ const std::uint16_t* of_segment(int segment, int i) const {
    return data + (tokens + static_cast<std::int64_t>(segment) * (window + entries) + i) * kMmaDim;
  }
  __device__ const std::uint16_t* before(int segment, int start, int position) const {
    return of_segment(segment, position - start + window);
  }
  __device__ const std::uint16_t* entry(int segment, int i) const { return of_segment(segment, window + i); }
};
// How many there are, and whether that is few beside the tokens that read them.
std::int64_t rows_to_expand(const SparseAttention& op);
bool worth_expanding(const SparseAttention& op);
ExpandedRows expand_rows(Context& c, const SparseAttention& op, std::byte* memory);

// What attention does itself of what stands around it (attend.h): queries are as they were projected, results go
// where a product reads them.
struct Around {
  bool raw_queries = false;         // to be divided by their root mean square and rotated; where rows are expanded
  float query_eps = 0;              // for that
  std::uint16_t* planes = nullptr;  // rows of all heads in the order kHalvesShared (matmul.h), instead of op.out
};

// What parts or spans, units, leave for merge(): [tokens, units, heads rounded up] of kMmaDim sums, in the order of
// shared memory, and of weights.
struct Partials {
  float* sums;
  PartWeight* weights;
  int units;  // most of any token
  int heads;
  int rows;  // of a unit: kPartRows or kSpanRows
  int t0;    // the first token

  __device__ std::int64_t at(std::int64_t t, int unit, int h) const { return ((t - t0) * units + unit) * heads + h; }
};
// How many tokens' should lie in memory at once, and where.
class PartialsPlan {
 public:
  PartialsPlan(const SparseAttention& op, int rows, int heads, Pieces& pieces);
  std::int32_t tokens() const { return tokens_; }
  int units() const { return units_; }
  Partials at(std::byte* memory, std::int32_t t0) const;

 private:
  int rows_;
  int heads_;
  int units_;
  std::int32_t tokens_;
  std::size_t sums_ = 0;
  std::size_t weights_ = 0;
};
// Adds up what lies there. Tokens of one span, where units are spans, are none of its business.
void merge(Context& c, const SparseAttention& op, const Partials& partials, std::int32_t tokens,
           std::uint16_t* planes = nullptr);

// In attention_spread_cuda.cu and attention_whole_cuda.cu. The second is Hopper's; without it the first does for any
// number of tokens.
void attend_spread(Context& c, const SparseAttention& op);
void attend_whole(Context& c, const SparseAttention& op, const Around& around = {});
// Whether run() leaves an attention to the second.
bool takes_whole(const Context& c, const SparseAttention& op);

}  // namespace fathom::ops::cuda
