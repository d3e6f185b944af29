// Index scores on tensor units. A warp multiplies 16 entries with the heads of one token, 64 at a time.
//
// Products of FP4 numbers with power-of-two scales are exact. A dot product is summed by the tensor units in a fixed
// order of the dims, rounded to bf16 as the carrier has it, cut at 0, multiplied by the head's weight, rounded again;
// the tensor units add those over the heads, as products with ones.
#include <algorithm>

#include "ops/cuda/entry.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor.cuh"
#include "ops/cuda/tensor_async.cuh"
#include "ops/indexer/index_mma.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = 16;   // entries of a warp
constexpr int kSteps = 8;   // of 16 dims
constexpr int kGroup = 64;  // heads at once
constexpr int kPairs = kGroup / 16;
constexpr int kAlignment = 1024;
constexpr float kKeyRange = 0x1p32F;  // keys are divided by it, to stay in range, and weights multiplied

// Lane (g, t) has dims 32t .. 32t + 31 of entries g and g + 8, 8 to a word, of which a word gives two steps: pairs
// (0, 4) (1, 5), then (2, 6) (3, 7). Queries lie in shared memory likewise.
struct Queries {
  std::byte* data;

  // Where the pair of dims that lane t of step s has as its first (which = 0) or second goes, of head h; the pair of
  // the next step is at the address of s + 1.
#if FATHOM_ASYNC_PRODUCTS
  // Tiles of 64 heads by 4 steps.
  __device__ std::uint32_t* at(int h, int s, int t, int which) const {
    std::byte* tile = data + (h / kGroup * (kSteps / 4) + s / 4) * kTileBytes;
    const int piece = (s % 4 * 2 + which) ^ h % 8;
    return reinterpret_cast<std::uint32_t*>(tile + h % kGroup * 128 + piece * 16) + t;
  }
  // dots += this step's products of 16 heads times kPairs, from head h0 on.
  __device__ void multiply(float (&dots)[32], const std::uint32_t (&k)[4], int h0, int s) const {
    const std::byte* tile = data + (h0 / kGroup * (kSteps / 4) + s / 4) * kTileBytes;
    multiply_registers<0>(dots, k, tile_at(tile) + s % 4 * kAlongStep, s);
  }
#else
  // [heads / 16][kSteps][lane] of 16 bytes: both pairs of head g of the 16, then of head g + 8.
  __device__ std::uint32_t* at(int h, int s, int t, int which) const {
    return reinterpret_cast<std::uint32_t*>(data) + ((h / 16 * kSteps + s) * kWarp + h % 8 * 4 + t) * 4 +
           h / 8 % 2 * 2 + which;
  }
  __device__ void multiply(float (&dots)[32], const std::uint32_t (&k)[4], int h0, int s) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const uint4 v = reinterpret_cast<const uint4*>(data)[((h0 / 16 + j) * kSteps + s) * kWarp + lane];
      multiply_tile(reinterpret_cast<float(&)[4]>(dots[8 * j]), k, v.x, v.y);
      multiply_tile(reinterpret_cast<float(&)[4]>(dots[8 * j + 4]), k, v.z, v.w);
    }
  }
#endif
};

__device__ void store_queries(const IndexSelect& op, std::int64_t t, int heads, const Queries& queries,
                              std::uint32_t* weights) {
  constexpr int kOctets = kIndexDim / 8;
  constexpr int kAtOnce = 8;
  static_assert(kGroup * kOctets == kThreads * kAtOnce);
  for (int h0 = 0; h0 < heads; h0 += kGroup) {
    const int octet = threadIdx.x % kOctets;
    float4 a[kAtOnce];
    float4 b[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = min(h0 + static_cast<int>(threadIdx.x) / kOctets + i * (kThreads / kOctets), op.heads - 1);
      const auto* from =
          reinterpret_cast<const float4*>(op.q.data + t * op.q.ld + static_cast<std::int64_t>(h) * kIndexDim + 8 * octet);
      a[i] = from[0];
      b[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int h = h0 + static_cast<int>(threadIdx.x) / kOctets + i * (kThreads / kOctets);
      const int lane = octet / 4;
      const int step = octet % 4 * 2;
      *queries.at(h, step, lane, 0) = pack_exact(a[i].x, b[i].x);
      *queries.at(h, step, lane, 1) = pack_exact(a[i].y, b[i].y);
      *queries.at(h, step + 1, lane, 0) = pack_exact(a[i].z, b[i].z);
      *queries.at(h, step + 1, lane, 1) = pack_exact(a[i].w, b[i].w);
    }
  }
  for (int i = threadIdx.x; i < heads / 2; i += kThreads) {  // those of heads that there are not are zero
    float w[2] = {0, 0};
    for (int j = 0; j < 2; ++j) {
      if (2 * i + j < op.heads) w[j] = round_bf16(op.weights.data[t * op.weights.ld + 2 * i + j] * op.scale) * kKeyRange;
    }
    weights[i] = pack_exact(w[0], w[1]);
  }
#if FATHOM_ASYNC_PRODUCTS
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A lane's part of one entry: 32 codes and their scale.
struct KeyPart {
  std::uint32_t codes[4];
  std::uint32_t scale;

  __device__ void load(const std::byte* entry, int t) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(entry) + 4 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = words[i];
    scale = byte_at(entry, kIndexDim / 2 + t);
  }
  // The multiplier of placed codes. Scales above 2^33 are NaN, as code 255 is: their entries count as nothing.
  __device__ std::uint32_t factor() const {
    const std::uint32_t bits = scale <= 160U ? (scale + 94U) << 7 : 0x7fc0U;
    return bits << 16 | bits;
  }
};

// The 3 bits of a code placed under a bf16's sign are the value times 2^-126.
__device__ inline void expand(std::uint32_t word, std::uint32_t factor, std::uint32_t (&pairs)[4]) {
  constexpr std::uint32_t kSigns = 0x80008000U;
  constexpr std::uint32_t kBits = 0x01c001c0U;
  pairs[0] = multiply_pairs((word << 12 & kSigns) | (word << 6 & kBits), factor);
  pairs[1] = multiply_pairs((word << 8 & kSigns) | (word << 2 & kBits), factor);
  pairs[2] = multiply_pairs((word << 4 & kSigns) | (word >> 2 & kBits), factor);
  pairs[3] = multiply_pairs((word & kSigns) | (word >> 6 & kBits), factor);
}

// sums += the scores' shares of 16 heads, of dots c.
__device__ inline void add_heads(float (&sums)[4], const float* c, std::uint32_t w0, std::uint32_t w1) {
  constexpr std::uint32_t kOnes = 0x3f803f80U;
  const std::uint32_t shares[4] = {multiply_pairs(positive_pair(pack_rounded(c[0], c[1])), w0),
                                   multiply_pairs(positive_pair(pack_rounded(c[2], c[3])), w0),
                                   multiply_pairs(positive_pair(pack_rounded(c[4], c[5])), w1),
                                   multiply_pairs(positive_pair(pack_rounded(c[6], c[7])), w1)};
  multiply_tile(sums, shares, kOnes, kOnes);
}

__device__ inline std::uint16_t score_key(float score) {
  if (isnan(score)) return 0;
  const std::uint32_t u = score == 0.0F ? 0U : bf16_bits(score);
  return static_cast<std::uint16_t>(u ^ ((u >> 15) != 0 ? 0xffffU : 0x8000U));
}

__global__ void __launch_bounds__(kThreads, 4)
    index_scores(IndexSelect op, DevicePages pages, int heads, ScoreKeys scores) {
  await_previous();
  extern __shared__ uint4 shared16[];
  const std::uint32_t skip = (kAlignment - shared_address(shared16) % kAlignment) % kAlignment;
  const Queries queries{reinterpret_cast<std::byte*>(shared16) + skip};
  auto* weights = reinterpret_cast<std::uint32_t*>(queries.data + heads * kIndexDim * 2);
  const std::int64_t t = scores.t0 + static_cast<std::int64_t>(blockIdx.y);
  const int exist = (op.batch.positions[t] + 1) / pages.ratio;
  const int lane = threadIdx.x % kWarp;
  const int tiles = (exist + kTile - 1) / kTile;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  int first = static_cast<int>(blockIdx.x) * kWarps;        // the block's tiles begin there
  if (exist <= op.selected.cols || first >= tiles) return;  // all are selected, nothing is scored
  const Segment s = op.batch.segments[op.batch.segment_of[t]];
  const int warp = threadIdx.x / kWarp;
  KeyPart next[2];
  const auto load = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) next[r].load(pages.at(s, min(tile * kTile + lane / 4 + 8 * r, exist - 1)), lane % 4);
  };
  load(first + warp);
  store_queries(op, t, heads, queries, weights);
  __syncthreads();
  std::uint16_t* out = scores.data + static_cast<std::int64_t>(blockIdx.y) * scores.ld;
  for (; first < tiles; first += stride) {
    std::uint32_t k[kSteps][4];
    const std::uint32_t factors[2] = {next[0].factor(), next[1].factor()};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      std::uint32_t a[4];
      std::uint32_t b[4];
      expand(next[0].codes[word], factors[0], a);
      expand(next[1].codes[word], factors[1], b);
#pragma unroll
      for (int i = 0; i < 8; ++i) k[2 * word + i / 4][i % 4] = i % 2 == 0 ? a[i / 2] : b[i / 2];
    }
    if (first + stride < tiles) load(first + stride + warp);
    float sums[4] = {0, 0, 0, 0};
    for (int h0 = 0; h0 < heads; h0 += kGroup) {
      float dots[32] = {};
#if FATHOM_ASYNC_PRODUCTS
      begin_products();
#endif
#pragma unroll
      for (int step = 0; step < kSteps; ++step) queries.multiply(dots, k[step], h0, step);
#if FATHOM_ASYNC_PRODUCTS
      end_products();
      await_products(dots);
#endif
      const std::uint32_t* w = weights + h0 / 2 + lane % 4;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) add_heads(sums, dots + 8 * j, w[8 * j], w[8 * j + 4]);
    }
    const int entry = (first + warp) * kTile + lane / 4;
    if (lane % 4 == 0) {
      if (entry < exist) out[entry] = score_key(sums[0]);
      if (entry + 8 < exist) out[entry + 8] = score_key(sums[2]);
    }
  }
}

}  // namespace

void score_entries(Context& c, const IndexSelect& op, const ScoreKeys& scores) {
  const int heads = ceil_div(op.heads, kGroup) * kGroup;
  const std::size_t shared = static_cast<std::size_t>(heads) * sizeof(std::uint16_t) * (kIndexDim + 1) + kAlignment;
  // Enough blocks to fill the device four times over, each with as much to do as there is then.
  const std::int64_t most = ceil_div(op.batch.longest / op.keys.ratio, kTile * kWarps);
  const std::int64_t wanted = std::max(4 * c.multiprocessors / scores.tokens, 1);
  launch(c, "index_scores", index_scores,
         dim3(static_cast<unsigned>(std::min(most, wanted)), static_cast<unsigned>(scores.tokens)), kThreads, shared,
         op, DevicePages(op.keys), heads, scores);
}

}  // namespace fathom::ops::cuda
