// wgmma: a matrix product for many tokens on Hopper, to the bit like tile and stream. A block has 128 rows of W, or 64
// of two matrices, and up to 128 tokens. Two warpgroups expand W into registers and multiply, 64 rows each; a third
// copies x into a ring in shared memory. Blocks of threads stay and take one tile after another, so that x of the next
// is on its way while the last is written.
#pragma once

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/wgmma.cuh"

namespace fathom::ops::cuda {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kWgmmaThreads = 3 * kGroupThreads;
constexpr int kConsumers = 2 * kGroupThreads;
constexpr int kWgmmaStages = 4;
constexpr int kStageBytes = kWgmmaTokens * kBlock * 2;
constexpr int kTotalBytes = kWgmmaTokens / 2 * kConsumers * 4;
constexpr std::size_t kWgmmaShared = kWgmmaStages * kStageBytes + kTotalBytes + 1024;  // to be aligned to 1,024
constexpr int kTokenStep = 32;  // an item is computed as if it had a multiple of these

// Rows of one matrix that a tile has.
__host__ __device__ constexpr int wgmma_rows(bool gate) { return gate ? 64 : 128; }

#if FATHOM_WGMMA

// The tiles of a job: rows first, so that blocks that run together share x, then items, then groups.
struct Tiles {
  int row_tiles;
  int items;
  int count;

  __device__ Tiles(const Job& job, int rows, int most_items) {
    row_tiles = (job.group_rows + rows - 1) / rows;
    items = job.items != nullptr ? *job.n_items : most_items;
    count = row_tiles * items * job.groups;
  }
  __device__ int row_tile(int i) const { return i % row_tiles; }
  __device__ int item(int i) const { return i / row_tiles % items; }
  __device__ int group(int i) const { return i / row_tiles / items; }
};

__device__ inline int padded_tokens(int count) { return (count + kTokenStep - 1) / kTokenStep * kTokenStep; }

// The ring: x of one block of 128 inputs a stage, as two halves of rows of 128 bytes (wgmma.cuh).
struct Ring {
  std::byte* stages;
  std::uint64_t* full;   // 4 arrivals: a warp's copies have come
  std::uint64_t* empty;  // 8 arrivals: a warp has read it

  __device__ std::byte* stage(int s) const { return stages + s % kWgmmaStages * kStageBytes; }
  __device__ void wait_full(int s) const { barrier_wait(&full[s % kWgmmaStages], s / kWgmmaStages % 2); }
  __device__ void wait_empty(int s) const { barrier_wait(&empty[s % kWgmmaStages], (s / kWgmmaStages + 1) % 2); }
};

// A barrier of some warps of the block.
template <int kWhich>
__device__ inline void meet(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kWhich), "r"(threads) : "memory");
}

// Blocks asked for after one that is announced.
constexpr int kLag = 1;

// The warpgroup that copies x. A thread copies piece `piece` of tokens `first`, first + 8, ...; places: of the tokens'
// rows.
template <bool kGate>
__device__ void copy_tokens(const Job& job, int most_items, const Ring& ring, std::int64_t* places) {
  const int piece = static_cast<int>(threadIdx.x) % 16;
  const int first = static_cast<int>(threadIdx.x) % kGroupThreads / 16;
  const Tiles tiles(job, wgmma_rows(kGate), most_items);
  int asked = 0;
  int announced = 0;
  const auto announce = [&] {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barrier_arrive(&ring.full[announced % kWgmmaStages]);
    ++announced;
  };
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const Work<kGate> work(job, tiles.item(i), kWgmmaTokens);
    const int tokens = padded_tokens(work.count);
    const int group = tiles.group(i);
    const int n = static_cast<int>(threadIdx.x) % kGroupThreads;
    meet<2>(kGroupThreads);
    places[n] = n < work.count ? work.x(job, n, group) - job.x.data : 0;
    meet<2>(kGroupThreads);
    const std::uint16_t* from = job.x.data + piece * 8;
    const std::uint32_t to =
        static_cast<std::uint32_t>(piece / 8 * tokens * 128 + first * 128 + (piece % 8 ^ first) * 16);
    for (int b = 0; b < job.blocks; ++b, from += kBlock) {
      ring.wait_empty(asked);
      const std::uint32_t stage = shared_address(ring.stage(asked)) + to;
#pragma unroll 4
      for (int r = 0; r < tokens / 8; ++r) {
        const std::uint16_t* at = from + places[first + 8 * r];
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(stage + r * 1024), "l"(at),
                     "r"(first + 8 * r < work.count ? 16 : 0)
                     : "memory");
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      ++asked;
      if (asked > kLag) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kLag) : "memory");
        announce();
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  while (announced < asked) announce();
}

// Reads two rows of W block by block: pointers that move, and scales that are numbers only when they are used, so that
// nothing waits for a load before it must.
template <Format F>
struct Reader {
  static constexpr int kPieces = F == Format::kBf16 ? 4 : F == Format::kFp8 ? 2 : 1;  // of 16 bytes, of a row and block
  static constexpr int kBytes = F == Format::kBf16 ? 256 : F == Format::kFp8 ? 128 : 64;
  struct Block {
    uint4 v[2][kPieces];
    std::uint32_t scale[2];  // bits of an f32, or a code
  };

  __device__ Reader(const Job& job, const WeightView& w, const std::int64_t (&rows)[2], int t) : job_(job) {
    left_ = job.cols - (F == Format::kFp4 ? 32 : 16) * t;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at_[r] = w.data + rows[r] * job.row_bytes + (F == Format::kBf16 ? 32 : 16) * t;
      if constexpr (F == Format::kFp8) {
        scale_at_[r] = w.scales + rows[r] / quant::kWeightBlock * job.scale_stride * (job.scales_f32 ? 4 : 1);
      } else if constexpr (F == Format::kFp4) {
        scale_at_[r] = w.scales + rows[r] * job.scale_stride + t;
      }
    }
  }

  // The next block. Inputs from cols on are zeros.
  __device__ Block next() {
    Block b;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int half = i / ((kPieces + 1) / 2);
        constexpr int kHalf = kBytes / 2;
        b.v[r][i] = {};
        if (64 * half < left_) b.v[r][i] = read16(at_[r] + half * kHalf + i % ((kPieces + 1) / 2) * 16);
      }
      at_[r] += kBytes;
      b.scale[r] = 0;
      if constexpr (F == Format::kFp8) {
        if (job_.scales_f32) {
          b.scale[r] = *reinterpret_cast<const std::uint32_t*>(scale_at_[r]);
          scale_at_[r] += 4;
        } else {
          b.scale[r] = static_cast<std::uint32_t>(*scale_at_[r]);
          scale_at_[r] += 1;
        }
      } else if constexpr (F == Format::kFp4) {
        if (left_ > 0) b.scale[r] = static_cast<std::uint32_t>(*scale_at_[r]);
        scale_at_[r] += kBlock / quant::kFp4Block;
      }
    }
    left_ -= kBlock;
    return b;
  }
  // What a block's sum of row r is multiplied by.
  __device__ float scale(const Block& b, int r) const {
    if constexpr (F == Format::kFp8) return job_.scales_f32 ? __uint_as_float(b.scale[r]) : ue8m0(b.scale[r]);
    return Loader<F>::block_scale(job_, {}, 0, 0);
  }
  // As in Loader.
  static __device__ void expand(const Block& b, int r, int half, std::uint32_t (&pairs)[8]) {
    typename Loader<F>::Raw raw;
    if constexpr (F == Format::kBf16) {
      raw.v[half][0] = b.v[r][2 * half];
      raw.v[half][1] = b.v[r][2 * half + 1];
    } else if constexpr (F == Format::kFp8) {
      raw.v[half] = b.v[r][half];
    } else {
      raw = {b.v[r][0], b.scale[r]};
    }
    Loader<F>::expand(raw, half, 0, pairs);
  }

 private:
  const Job& job_;
  const std::byte* at_[2];
  const std::byte* scale_at_[2];
  int left_;
};

__device__ inline float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Sums of one tile by one warpgroup, into totals [kN / 8][kConsumers]: of a thread's rows and two tokens. stage: of the
// ring, advanced.
template <Format F, int kN>
__device__ __forceinline__ void sum_tile(const Job& job, const WeightView& w, const std::int64_t (&rows)[2],
                                         const Ring& ring, float4* totals, int& stage) {
  constexpr int kAhead = F == Format::kFp4 ? 3 : F == Format::kFp8 ? 2 : 1;  // blocks of weights under way
  const int t = static_cast<int>(threadIdx.x) % 4;
  float part[kN / 2];
  float sum[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
  Reader<F> reader(job, w, rows, t);
  typename Reader<F>::Block blocks[kAhead];
#pragma unroll
  for (int d = 0; d < kAhead; ++d) {
    if (d < job.blocks) blocks[d] = reader.next();
  }
  std::uint32_t a[2][4][4];
  const auto expand = [&](const typename Reader<F>::Block& from, int half) {
    expand_half<Reader<F>>(from, half, a[half]);
  };
  const auto multiply = [&](std::uint64_t tokens, int half) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) Wgmma<kN>::run(part, a[half][j], tokens + half * (kN * 128 / 16) + 2 * j, half + j);
    wgmma_commit();
  };
  expand(blocks[0], 0);
  int segment = 0;
  int segment_end = job.blocks / job.segments;
  for (int b0 = 0; b0 < job.blocks; b0 += kAhead) {
#pragma unroll
    for (int d = 0; d < kAhead; ++d) {
      const int b = b0 + d;
      if (b >= job.blocks) break;
      ring.wait_full(stage);
      const std::uint64_t tokens = tokens_at(ring.stage(stage));
      multiply(tokens, 0);
      expand(blocks[d], 1);
      const float scale[2] = {reader.scale(blocks[d], 0), reader.scale(blocks[d], 1)};
      multiply(tokens, 1);
      if (b + kAhead < job.blocks) blocks[d] = reader.next();
      wgmma_wait<1>();
      if (b + 1 < job.blocks) expand(blocks[(d + 1) % kAhead], 0);
      wgmma_wait<0>();
      if (threadIdx.x % kWarp == 0) barrier_arrive(&ring.empty[stage % kWgmmaStages]);
      ++stage;
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sum[i] = fmaf(part[i], scale[i / 2 % 2], sum[i]);
      if (b + 1 != segment_end) continue;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
        const float4 s = {sum[4 * n], sum[4 * n + 1], sum[4 * n + 2], sum[4 * n + 3]};
        float4& total = totals[n * kConsumers + threadIdx.x];
        total = segment == 0 ? s : plus(total, s);
      }
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
      ++segment;
      segment_end = job.blocks * (segment + 1) / job.segments;
    }
  }
}

// A warpgroup that multiplies: the first has the upper 64 rows of a tile or w1, the other the lower or w3.
template <Format F, bool kGate>
__device__ void multiply_tiles(const Job& job, int most_items, const Ring& ring, float4* totals) {
  const int half = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int warp_row = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp * 16;
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  const Tiles tiles(job, wgmma_rows(kGate), most_items);
  int stage = 0;
  for (int i = static_cast<int>(blockIdx.x); i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const Work<kGate> work(job, tiles.item(i), kWgmmaTokens);
    const int group = tiles.group(i);
    const int row0 = tiles.row_tile(i) * wgmma_rows(kGate) + (kGate ? 0 : 64 * half) + warp_row;
    const std::int64_t base = static_cast<std::int64_t>(group) * job.group_rows;
    const std::int64_t rows[2] = {base + min(row0 + g, job.group_rows - 1),
                                  base + min(row0 + g + 8, job.group_rows - 1)};
    const WeightView w = kGate && half == 1 ? work.w[kGate ? 1 : 0] : work.w[0];
    const int tokens = padded_tokens(work.count);
    switch (tokens) {
      case 32: sum_tile<F, 32>(job, w, rows, ring, totals, stage); break;
      case 64: sum_tile<F, 64>(job, w, rows, ring, totals, stage); break;
      case 96: sum_tile<F, 96>(job, w, rows, ring, totals, stage); break;
      default: sum_tile<F, 128>(job, w, rows, ring, totals, stage); break;
    }
    const auto write = [&](int n, float4 v, float4 up) {
      write_result<kGate>(job, work.first, work.count, row0, 8 * n, group, 0, v.x, up.x);
      write_result<kGate>(job, work.first, work.count, row0, 8 * n, group, 1, v.y, up.y);
      write_result<kGate>(job, work.first, work.count, row0, 8 * n, group, 2, v.z, up.z);
      write_result<kGate>(job, work.first, work.count, row0, 8 * n, group, 3, v.w, up.w);
    };
    if (kGate) {
      meet<1>(kConsumers);
      const float4* total = totals + threadIdx.x % kGroupThreads;
      for (int n = half * tokens / 16; n < (half + 1) * tokens / 16; ++n) {
        write(n, total[n * kConsumers], total[n * kConsumers + kGroupThreads]);
      }
      meet<1>(kConsumers);
    } else {
      for (int n = 0; n < tokens / 8; ++n) write(n, totals[n * kConsumers + threadIdx.x], {});
    }
  }
}

#endif  // FATHOM_WGMMA

template <Format F, bool kGate>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma(const __grid_constant__ Job job, int most_items) {
#if FATHOM_WGMMA
  extern __shared__ uint4 wgmma_shared[];
  __shared__ std::uint64_t full[kWgmmaStages];
  __shared__ std::uint64_t empty[kWgmmaStages];
  __shared__ std::int64_t places[kWgmmaTokens];
  const std::uint32_t misaligned = shared_address(wgmma_shared) % 1024;
  std::byte* const memory = reinterpret_cast<std::byte*>(wgmma_shared) + (misaligned == 0 ? 0 : 1024 - misaligned);
  const Ring ring{memory, full, empty};
  auto* totals = reinterpret_cast<float4*>(memory + kWgmmaStages * kStageBytes);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kWgmmaStages; ++s) {
      barrier_init(&full[s], kGroupThreads / kWarp);
      barrier_init(&empty[s], kConsumers / kWarp);
    }
  }
  __syncthreads();
  await_previous();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    copy_tokens<kGate>(job, most_items, ring, places);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_tiles<F, kGate>(job, most_items, ring, totals);
  }
#endif
}

}  // namespace fathom::ops::cuda
