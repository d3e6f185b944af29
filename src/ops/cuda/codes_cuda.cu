#include <algorithm>

#include "ops/cuda/codes.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 8;  // of the plain kernel at once

#if FATHOM_WGMMA

constexpr std::uint32_t kFlushed = 15;

// Whether any of 32 codes of FP4 is not zero.
__device__ bool any_value(const std::byte* codes) {
  const uint4 v = *reinterpret_cast<const uint4*>(codes);
  return ((v.x | v.y | v.z | v.w) & 0x77777777U) != 0;
}

// Eight codes in the checkpoint's order, code i in bits 4 i.., as codes.h has them in a word.
__device__ std::uint32_t packed_codes(std::uint32_t v) {
  std::uint32_t signs = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) signs |= (v >> (4 * i + 3) & 1U) << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
  return (v & 0x77777777U) | signs;
}

#endif

// The word of scales of a row's block, one thread each. scales: [rows][blocks][4] bytes; to: as packed.
__global__ void pack_fp4_scales(const std::byte* codes, const std::uint8_t* scales, std::uint32_t* to, std::int64_t rows,
                                int blocks) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = i / blocks;
  const int b = static_cast<int>(i % blocks);
  if (row >= rows) return;
  int top = -1;
  bool any[4];
  for (int t = 0; t < 4; ++t) {
    any[t] = any_value(codes + (i * 4 + t) * 16);
    if (any[t]) top = max(top, static_cast<int>(scales[i * 4 + t]));
  }
  const int common = max(top - 6, 0);
  std::uint32_t word = static_cast<std::uint32_t>(common) << 24;
  for (int t = 0; t < 4; ++t) {
    const int above = static_cast<int>(scales[i * 4 + t]) - common + 5;
    const std::uint32_t u = !any[t] ? 0U : above < 0 ? kFlushed : static_cast<std::uint32_t>(above);
    word |= u << (4 * t);
  }
  const std::int64_t tile = row / kTileRows * blocks + b;
  const int r = static_cast<int>(row % kTileRows);
  to[tile * kTileRows + r / 16 * 16 + r % 8 * 2 + r % 16 / 8] = word;
#endif
}

// The 16 bytes of a lane's piece, one thread each. words: the packed scales.
__global__ void pack_fp4(const std::byte* codes, const std::uint32_t* words, uint4* to, std::int64_t pieces, int blocks) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pieces) return;
  const int thread = static_cast<int>(i % kTileThreads);
  const int h = static_cast<int>(i / kTileThreads % 2);
  const std::int64_t tile = i / (2 * kTileThreads);
  const int g = thread % kWarp / 4;
  const int t = thread % 4;
  std::uint32_t out[4];
  for (int upper = 0; upper < 2; ++upper) {
    const int r = thread / kWarp * 16 + g;
    const std::int64_t row = tile / blocks * kTileRows + r + 8 * upper;
    const std::uint32_t word = words[tile * kTileRows + r / 16 * 16 + 2 * g + upper];
    const bool flushed = (word >> (4 * t) & 15U) == kFlushed;
    const std::byte* const from = codes + (row * blocks + tile % blocks) * (kBlock / 2) + 16 * t + 8 * h;
    const auto* const eights = reinterpret_cast<const std::uint32_t*>(from);
    for (int k = 0; k < 2; ++k) out[2 * k + upper] = flushed ? 0U : packed_codes(eights[k]);
  }
  to[i] = {out[0], out[1], out[2], out[3]};
#endif
}

__global__ void pack_fp8(const std::byte* codes, uint4* to, std::int64_t pieces, int blocks) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pieces) return;
  const int thread = static_cast<int>(i % kTileThreads);
  const int j = static_cast<int>(i / kTileThreads % kSteps);
  const std::int64_t tile = i / (kSteps * kTileThreads);
  const std::int64_t row = tile / blocks * kTileRows + thread / kWarp * 16 + thread % kWarp / 4;
  const auto word = [&](int upper, int k) {
    const std::byte* const from = codes + ((row + 8 * upper) * blocks + tile % blocks) * kBlock;
    return *reinterpret_cast<const std::uint32_t*>(from + thread % 4 * 32 + 8 * j + k);
  };
  to[i] = {word(0, 0), word(1, 0), word(0, 4), word(1, 4)};
#endif
}

// A warp a block of 128 inputs of a row.
__global__ void make(Mat<const float> x, int blocks, std::uint8_t* data, float* scales) {
#if FATHOM_WGMMA
  await_previous();
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const std::int64_t row = i / blocks;
  if (row >= x.rows) return;
  const int lane = threadIdx.x % kWarp;
  const float* const from = x.data + row * x.ld + i % blocks * kBlock + 4 * lane;
  float v[4];
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(float4) == 0) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    v[0] = all.x;
    v[1] = all.y;
    v[2] = all.z;
    v[3] = all.w;
  } else {
    for (int j = 0; j < 4; ++j) v[j] = from[j];
  }
  float scale;
  reinterpret_cast<std::uint32_t*>(data + i * kCodeRow)[code_word(lane)] = quantise_to_codes(v, scale);
  if (lane == 0) scales[i] = scale;
#endif
}

#if FATHOM_WGMMA

// One tile's row of W times kTokens tokens: result in order of the registers.
template <Format F>
__device__ void sum_row_tile(const CodesJob& c, const WeightView& w, int row_tile, const std::byte* x, const float* scales,
                             int count, float (&result)[4]) {
  const Job& job = c.job;
  const int thread = static_cast<int>(threadIdx.x);
  for (int segment = 0; segment < job.segments; ++segment) {
    float total[4] = {};
    const int end = job.blocks * (segment + 1) / job.segments;
    for (int b = job.blocks * segment / job.segments; b < end; ++b) {
      const std::byte* const tile = w.data + (static_cast<std::int64_t>(row_tile) * job.blocks + b) * Tile<F>::kBytes;
      uint4 pieces[Tile<F>::kLoads];
#pragma unroll
      for (int i = 0; i < Tile<F>::kLoads; ++i) pieces[i] = Tile<F>::load(tile, i, thread);
      const typename Tile<F>::Scale scale = Tile<F>::scale(job, w.scales, row_tile, b, thread);
      std::uint32_t a[kSteps][4];
      expand_tile<F>(pieces, scale, a);
      float acc[4];
      const std::uint64_t at = tokens_at(x + b * kTokens * kCodeRow);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j) WgmmaCodes<kTokens>::run(acc, a[j], at + 2 * j, j);
      wgmma_commit();
      wgmma_wait<0>();
      promote<F, kTokens>(acc, scale, [&](int n) { return n < count ? scales[n * job.blocks + b] : 0.0F; }, total);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = segment == 0 ? total[i] : result[i] + total[i];
  }
}

// Tokens of a work item, up to kTokens at a time, into shared memory.
template <bool kGate>
__device__ void stage(const CodesJob& c, const Work<kGate>& work, int group, int first, int count, std::byte* x,
                      float* scales) {
  const int pieces = c.job.blocks * kTokens * 8;
  const auto row_of = [&](int n) {
    const int entry = work.first + first + n;
    const std::int64_t row = c.job.list != nullptr ? c.job.list[entry] : entry;
    return (row * c.job.groups + group) * c.job.blocks;
  };
  for (int i = threadIdx.x; i < pieces; i += kTileThreads) {
    const int p = i % 8;
    const int n = i / 8 % kTokens;
    const int b = i / (8 * kTokens);
    uint4 v = {};
    if (n < count) v = *reinterpret_cast<const uint4*>(c.x.data + (row_of(n) + b) * kCodeRow + 16 * p);
    *reinterpret_cast<uint4*>(x + b * kTokens * kCodeRow + code_piece(n, p)) = v;
  }
  for (int i = threadIdx.x; i < c.job.blocks * count; i += kTileThreads) {
    scales[i] = c.x.scales[row_of(i / c.job.blocks) + i % c.job.blocks];
  }
}

#endif

// A warpgroup a tile of rows of an item of tokens.
template <Format F, bool kGate>
__global__ void __launch_bounds__(kTileThreads) plain(const __grid_constant__ CodesJob c, int tokens_an_item) {
#if FATHOM_WGMMA
  extern __shared__ uint4 codes_shared[];
  await_previous();
  const std::uint32_t misaligned = static_cast<std::uint32_t>(__cvta_generic_to_shared(codes_shared)) % 1024;
  std::byte* const x = reinterpret_cast<std::byte*>(codes_shared) + (misaligned == 0 ? 0 : 1024 - misaligned);
  auto* const scales = reinterpret_cast<float*>(x + c.job.blocks * kTokens * kCodeRow);
  const Work<kGate> work(c.job, static_cast<int>(blockIdx.y), tokens_an_item);
  const int tiles = c.job.group_rows / kTileRows;
  const int row_tile = static_cast<int>(blockIdx.x);
  const int group = row_tile / tiles;
  const int row0 = row_tile % tiles * kTileRows + static_cast<int>(threadIdx.x) / kWarp * 16;
  for (int first = 0; first < work.count; first += kTokens) {
    const int count = min(kTokens, work.count - first);
    __syncthreads();
    stage(c, work, group, first, count, x, scales);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    float result[kGate ? 2 : 1][4];
#pragma unroll
    for (int m = 0; m < (kGate ? 2 : 1); ++m) sum_row_tile<F>(c, work.w[m], row_tile, x, scales, count, result[m]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      write_result<kGate>(c.job, work.first + first, count, row0, 0, group, i, result[0][i], result[kGate ? 1 : 0][i]);
    }
  }
#endif
}

unsigned blocks_of(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kThreads)); }

}  // namespace

bool takes_codes(const Context& c, const Weight& w) {
  const Format format = format_of(w);
  return w.quantised_inputs && c.kernels.uses(Leaf::kCodes) && (format == Format::kFp8 || format == Format::kFp4) &&
         w.rows % kBlock == 0 && w.cols % kBlock == 0;
}

int code_segments(const Weight& w, bool expert) {
  constexpr std::int64_t kManyRows = 8192;
  return expert || w.rows >= kManyRows ? 1 : segments_of(w.cols);
}

void pack_weight(Context& c, const Weight& w) {
  if (w.data == nullptr) return;
  const int blocks = static_cast<int>(w.cols / kBlock);
  const std::int64_t bytes = w.rows * w.row_bytes();
  const bool fp4 = w.dtype == DType::kFp4x2;
  const std::int64_t scale_bytes = fp4 ? w.rows * blocks * 4 : 0;
  std::byte* const copy = c.scratch->take(static_cast<std::size_t>(bytes + scale_bytes), c.fault);
  if (c.fault.set()) return;
  const auto keep = [&](std::byte* to, const std::byte* from, std::int64_t n) {
    c.fault.note(cudaMemcpyAsync(to, from, static_cast<std::size_t>(n), cudaMemcpyDeviceToDevice, c.stream), "pack_weight");
    c.follows_kernel = false;
  };
  keep(copy, w.data, bytes);
  auto* const to = reinterpret_cast<uint4*>(const_cast<std::byte*>(w.data));
  const std::int64_t pieces = bytes / static_cast<std::int64_t>(sizeof(uint4));
  const auto* const codes = static_cast<const std::byte*>(copy);
  if (!fp4) {
    launch(c, "pack_fp8", pack_fp8, dim3(blocks_of(pieces)), kThreads, 0, codes, to, pieces, blocks);
    return;
  }
  keep(copy + bytes, w.scales, scale_bytes);
  auto* const words = reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(w.scales));
  launch(c, "pack_fp4_scales", pack_fp4_scales, dim3(blocks_of(w.rows * blocks)), kThreads, 0, codes,
         reinterpret_cast<const std::uint8_t*>(copy + bytes), words, w.rows, blocks);
  launch(c, "pack_fp4", pack_fp4, dim3(blocks_of(pieces)), kThreads, 0, codes, static_cast<const std::uint32_t*>(words), to,
         pieces, blocks);
}

std::size_t codes_bytes(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows * cols + rows * (cols / kBlock) * static_cast<std::int64_t>(sizeof(float)));
}

Codes make_codes(Context& c, Mat<const float> x, std::byte* memory) {
  const int blocks = static_cast<int>(x.cols / kBlock);
  auto* const data = reinterpret_cast<std::uint8_t*>(memory);
  auto* const scales = reinterpret_cast<float*>(memory + x.rows * x.cols);
  launch(c, "make_codes", make, dim3(static_cast<unsigned>(ceil_div(x.rows * blocks * kWarp, kThreads))), kThreads, 0, x,
         blocks, data, scales);
  return {.data = data, .scales = scales, .blocks = blocks};
}

CodesJob codes_job_of(const CodesProduct& p) {
  CodesJob c{.job = job_of(p.m), .x = p.x, .fp4 = p.m.w.dtype == DType::kFp4x2};
  c.job.segments = code_segments(p.m.w, p.expert);
  return c;
}

void run_codes_plain(Context& c, const char* name, const CodesProduct& p) {
  const CodesJob job = codes_job_of(p);
  FATHOM_CHECK(job.job.group_rows % kTileRows == 0, "groups in whole tiles");
  const bool one = p.m.items == nullptr;
  const std::int64_t items = one ? ceil_div(p.m.rows, kTokens) : p.m.most_items;
  const dim3 grid(static_cast<unsigned>(p.m.w.rows / kTileRows), static_cast<unsigned>(items));
  const auto shared = static_cast<std::size_t>(1024 + job.job.blocks * kTokens * (kCodeRow + 4));
  const auto go = [&](auto kernel) { launch(c, name, kernel, grid, kTileThreads, shared, job, kTokens); };
  const bool gate = p.m.part == Part::kGate;
  if (job.fp4) go(gate ? plain<Format::kFp4, true> : plain<Format::kFp4, false>);
  else go(gate ? plain<Format::kFp8, true> : plain<Format::kFp8, false>);
}

}  // namespace fathom::ops::cuda
