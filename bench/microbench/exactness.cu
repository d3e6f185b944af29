// Whether bits depend on which instruction multiplies: chains of wgmma against chains of mma.sync over the same groups
// of 16 inputs, and whether the order of the 16 matters to either.
#include "microbench.cuh"
#include "ops/cuda/matmul_common.cuh"
#include "wgmma_more.cuh"

namespace fathom::microbench {
namespace {

constexpr int kInputs = 128;

// kNear: exponents within 2^+-4; kWide: within 2^+-20; kCancel: every other value nearly undoes the one before;
// kCodes: FP8 and FP4 values as the model has them.
enum class Data : int { kNear, kWide, kCancel, kCodes };
constexpr const char* kNames[] = {"near exponents", "wide exponents", "cancellation", "FP8 and FP4 codes"};

__device__ std::uint32_t value(Data data, std::uint32_t seed, int row, int k) {
  const std::uint32_t h =
      hash(seed ^ hash(static_cast<std::uint32_t>(row * kInputs + (data == Data::kCancel ? k / 2 : k))));
  const std::uint32_t bits = h & 0x807fU;
  if (data == Data::kNear) return bits | (123U + (h >> 16) % 9U) << 7;
  if (data == Data::kWide) return bits | (107U + (h >> 16) % 41U) << 7;
  if (data == Data::kCancel) {
    const std::uint32_t v = bits | (120U + (h >> 16) % 15U) << 7;
    return k % 2 == 0 ? v : v ^ (seed % 2 == 0 ? 0x8000U : 0U) ^ (h >> 24 & 1U);
  }
  return (h & 0x8070U) | (124U + (h >> 16) % 14U) << 7;
}

// Places of the 16 inputs of a group.
__device__ int place(int order, int k) {
  const int i = k % 16;
  const int to = order == 0 ? i : order == 1 ? (i & 8) | (7 - (i & 7)) : order == 2 ? i ^ 8 : (5 * i + 3) % 16;
  return k - i + to;
}

// counts: results; wgmma and mma.sync differ; mma.sync differs from itself in another order; wgmma does.
template <int kN>
__global__ void __launch_bounds__(128) compare(Data data, int trials, int order, unsigned long long* counts) {
#if FATHOM_WGMMA
  using ops::cuda::Wgmma;
  __shared__ __align__(1024) std::uint16_t x[2][2][kN][64];  // order, half
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int row = threadIdx.x / 32 * 16 + g;
  unsigned long long differ[3] = {};
  for (int trial = 0; trial < trials; ++trial) {
    const std::uint32_t seed = hash(static_cast<std::uint32_t>(trial * gridDim.x + blockIdx.x) + 77U);
    __syncthreads();
    for (int i = threadIdx.x; i < kN * kInputs; i += 128) {
      const int n = i / kInputs;
      for (int o = 0; o < 2; ++o) {
        const int k = place(o == 0 ? 0 : order, i % kInputs);
        const int at = (k % 64 / 8 ^ n % 8) * 8 + k % 8;
        // Where inputs cancel, x must not undo it.
        x[o][k / 64][n][at] = data == Data::kCancel ? 0x3f80U : value(data, ~seed, n, i % kInputs);
      }
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    std::uint32_t a[2][8][4];
    for (int o = 0; o < 2; ++o) {
      for (int j = 0; j < 8; ++j) {
        for (int r = 0; r < 4; ++r) {
          std::uint32_t pair = 0;
          for (int e = 0; e < 2; ++e) {
            const int to = 16 * j + 2 * t + 8 * (r / 2) + e;
            int k = to;  // the input whose place this is
            for (int i = 0; i < 16 && o == 1; ++i) {
              if (place(order, to / 16 * 16 + i) == to) k = to / 16 * 16 + i;
            }
            pair |= value(data, seed, row + 8 * (r % 2), k) << (16 * e);
          }
          a[o][j][r] = pair;
        }
      }
    }
    float w[2][kN / 2];
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      ops::cuda::wgmma_fence();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        Wgmma<kN>::run(w[o], a[o][j], ops::cuda::tokens_at(x[o][j / 4]) + 2 * (j % 4), j);
      }
      ops::cuda::wgmma_commit();
      ops::cuda::wgmma_wait<0>();
    }
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      float m[2][4] = {};
#pragma unroll
      for (int o = 0; o < 2; ++o) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          std::uint32_t b[2];
          for (int r = 0; r < 2; ++r) {
            const int k = 16 * (j % 4) + 2 * t + 8 * r;
            b[r] = *reinterpret_cast<const std::uint32_t*>(&x[o][j / 4][8 * n + g][(k / 8 ^ g) * 8 + k % 8]);
          }
          ops::cuda::mma(m[o], a[o][j][0], a[o][j][1], a[o][j][2], a[o][j][3], b[0], b[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        differ[0] += __float_as_uint(w[0][4 * n + i]) != __float_as_uint(m[0][i]) ? 1 : 0;
        differ[1] += __float_as_uint(m[0][i]) != __float_as_uint(m[1][i]) ? 1 : 0;
        differ[2] += __float_as_uint(w[0][4 * n + i]) != __float_as_uint(w[1][4 * n + i]) ? 1 : 0;
      }
    }
  }
  atomicAdd(counts, static_cast<unsigned long long>(trials) * kN / 2);
  for (int i = 0; i < 3; ++i) atomicAdd(counts + 1 + i, differ[i]);
#endif
}

template <int kN>
void compare_all(Rows& rows) {
  const Memory counts(4 * sizeof(unsigned long long));
  for (int data = 0; data < 4; ++data) {
    for (int order = 1; order < 4; ++order) {
      unsigned long long got[4] = {};
      check(cudaMemset(counts.as<void>(), 0, sizeof got), "counts");
      launch(nullptr, {.blocks = 264, .threads = 128}, compare<kN>, static_cast<Data>(data), 40, order,
             counts.as<unsigned long long>());
      check(cudaMemcpy(got, counts.as<void>(), sizeof got, cudaMemcpyDeviceToHost), "counts");
      const std::string of = " of " + std::to_string(got[0]) + " (N=" + std::to_string(kN) + ", " + kNames[data] + ")";
      const auto add = [&](const std::string& what, unsigned long long n) {
        rows.push_back({"exactness", what + of, static_cast<double>(n), "differ"});
      };
      if (order == 1) add("wgmma, mma.sync", got[1]);
      const char* orders[] = {"", "8 turned round", "halves swapped", "16 shuffled"};
      add(std::string("mma.sync, ") + orders[order], got[2]);
      add(std::string("wgmma, ") + orders[order], got[3]);
    }
  }
}

}  // namespace

Rows exactness() {
  Rows rows;
  compare_all<8>(rows);
  compare_all<64>(rows);
  return rows;
}

}  // namespace fathom::microbench
