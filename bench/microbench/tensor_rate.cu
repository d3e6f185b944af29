// How fast tensor units go: wgmma with W in registers, as it is and expanded from FP8 and FP4 on the way, with partial
// sums promoted every 128 inputs or not; and mma.sync.
#include "microbench.cuh"
#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/wgmma_codes.cuh"
#include "wgmma_more.cuh"

namespace fathom::microbench {
namespace {

using ops::cuda::Format;
using ops::cuda::Loader;

enum class Kind : int { kBf16, kFromFp8, kFromFp4, kFp8 };
constexpr const char* kKinds[] = {"wgmma bf16", "wgmma bf16 from FP8", "wgmma bf16 from FP4", "wgmma e4m3"};

// Blocks of 128 inputs, 64 rows a warpgroup.
template <int kN, Kind kKind, bool kPromote>
__global__ void __launch_bounds__(kN == 128 && kPromote ? 256 : 384) rate(int blocks, float* out) {
#if FATHOM_WGMMA
  using ops::cuda::Wgmma;
  constexpr bool kFp8 = kKind == Kind::kFp8;
  extern __shared__ __align__(1024) std::uint32_t x[];  // two halves of kN rows of 128 bytes
  for (int i = threadIdx.x; i < 2 * kN * 32; i += blockDim.x) x[i] = (hash(i) & 0x807f807fU) | 0x3f003f00U;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  std::uint32_t raw[2][8];
  for (int i = 0; i < 16; ++i) raw[i / 8][i % 8] = hash(threadIdx.x * 16 + i) & 0xbfbfbfbfU;
  std::uint32_t a[2][4][4];
  for (int i = 0; i < 32; ++i) a[i / 16][i / 4 % 4][i % 4] = (hash(threadIdx.x * 32 + i) & 0x807f807fU) | 0x3f003f00U;
  float part[kN / 2] = {};
  float sum[kN / 2] = {};
  const std::uint64_t at[2] = {ops::cuda::tokens_at(x), ops::cuda::tokens_at(x + kN * 32)};
  for (int b = 0; b < blocks; ++b) {
#pragma unroll
    for (int half = 0; half < (kFp8 ? 1 : 2); ++half) {
      if constexpr (kKind == Kind::kFromFp8 || kKind == Kind::kFromFp4) {
        std::uint32_t pairs[2][8];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if constexpr (kKind == Kind::kFromFp8) {
            Loader<Format::kFp8>::Raw w = {};
            w.v[half] = {raw[r][4 * half] + b, raw[r][4 * half + 1] + b, raw[r][4 * half + 2] + b,
                         raw[r][4 * half + 3] + b};
            Loader<Format::kFp8>::expand(w, half, 0, pairs[r]);
          } else {
            const Loader<Format::kFp4>::Raw w = {{raw[r][0] + b, raw[r][1] + b, raw[r][2] + b, raw[r][3] + b},
                                                 120U + b % 4U};
            Loader<Format::kFp4>::expand(w, half, 0, pairs[r]);
          }
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) a[half][i / 4][i % 4] = pairs[i % 2][i / 4 * 2 + i % 4 / 2];
      }
      ops::cuda::wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int add = kPromote && half == 0 && j == 0 ? 0 : 1;
        if constexpr (kFp8) ops::cuda::WgmmaCodes<kN>::run(part, a[half][j], at[0] + 2 * j, add);
        else Wgmma<kN>::run(part, a[half][j], at[half] + 2 * j, add);
      }
      ops::cuda::wgmma_commit();
      ops::cuda::wgmma_wait<1>();
    }
    if constexpr (kPromote) {
      ops::cuda::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sum[i] = fmaf(part[i], 0.75F, sum[i]);
    }
  }
  ops::cuda::wgmma_wait<0>();
  float all = 0;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) all += part[i] + sum[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = all;
#endif
}

// Chains of mma.sync m16n8k16, kChains of them in every warp.
template <int kChains>
__global__ void __launch_bounds__(512) rate_sync(int rounds, float* out) {
  std::uint32_t a[4];
  std::uint32_t b[kChains][2];
  for (int i = 0; i < 4; ++i) a[i] = (hash(threadIdx.x * 4 + i) & 0x807f807fU) | 0x3f003f00U;
  for (int i = 0; i < 2 * kChains; ++i) b[i / 2][i % 2] = (hash(threadIdx.x * 64 + i) & 0x807f807fU) | 0x3f003f00U;
  float sum[kChains][4] = {};
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) ops::cuda::mma(sum[c], a[0], a[1], a[2], a[3], b[c][0], b[c][1]);
  }
  float all = 0;
  for (int i = 0; i < 4 * kChains; ++i) all += sum[i / 4][i % 4];
  out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

template <int kN, Kind kKind, bool kPromote>
void rates(Rows& rows, const Memory& out) {
  for (const unsigned groups : {1U, 2U, 3U}) {
    if (kN == 128 && groups == 3 && kPromote) continue;  // registers
    constexpr int kBlocks = kN == 8 ? 8000 : 2000;
    const auto sms = static_cast<unsigned>(multiprocessors());
    const float ms = best_of(3, [&](cudaStream_t s) {
      launch(s, {.blocks = sms, .threads = 128 * groups, .shared = 256 * kN}, rate<kN, kKind, kPromote>, kBlocks,
             out.as<float>());
    });
    const double weights = 64.0 * 128 * kBlocks * groups * sms;
    const std::string what = std::string(kKinds[static_cast<int>(kKind)]) + ", N=" + std::to_string(kN) +
                             (kPromote ? ", promoted" : "") + ", " + std::to_string(groups) + " warpgroups";
    rows.push_back({"tensor_rate", what, 2 * weights * kN / ms * 1e-9, "TFLOP/s"});
    if (kN == 8) rows.push_back({"tensor_rate", what, weights / ms * 1e-9, "T weights/s"});
  }
}

}  // namespace

Rows tensor_rate() {
  const Memory out(std::size_t{512} * 1024 * 4);
  Rows rows;
  rates<8, Kind::kBf16, false>(rows, out);
  rates<8, Kind::kFromFp8, false>(rows, out);
  rates<8, Kind::kFromFp8, true>(rows, out);
  rates<8, Kind::kFromFp4, true>(rows, out);
  rates<8, Kind::kFp8, true>(rows, out);
  rates<64, Kind::kBf16, false>(rows, out);
  rates<64, Kind::kFromFp8, true>(rows, out);
  rates<64, Kind::kFromFp4, true>(rows, out);
  rates<64, Kind::kFp8, true>(rows, out);
  rates<128, Kind::kBf16, false>(rows, out);
  rates<128, Kind::kBf16, true>(rows, out);
  rates<128, Kind::kFromFp8, true>(rows, out);
  rates<128, Kind::kFromFp4, true>(rows, out);
  rates<128, Kind::kFp8, true>(rows, out);
  constexpr int kRounds = 4000;
  const auto sms = static_cast<unsigned>(multiprocessors());
  for (const unsigned threads : {256U, 512U}) {
    const float ms = best_of(3, [&](cudaStream_t s) {
      launch(s, {.blocks = sms, .threads = threads}, rate_sync<8>, kRounds, out.as<float>());
    });
    rows.push_back({"tensor_rate", "mma.sync m16n8k16 bf16, " + std::to_string(threads / 32) + " warps, 8 chains each",
                    2.0 * 16 * 8 * 16 * 8 * kRounds * (threads / 32) * sms / ms * 1e-9, "TFLOP/s"});
  }
  return rows;
}

}  // namespace fathom::microbench
