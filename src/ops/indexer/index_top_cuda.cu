// Selection by scores of 16 bits: a search for the k-th highest by its two bytes, then one pass in order of the entries
// takes what is above it and the first of its equals. A row is one block's work, or that of a cluster of 8, each with a
// part of the entries.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/indexer/index_mma.cuh"

// Clusters are of sm_90; for older devices the kernel is not launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FATHOM_CLUSTER(blocks)
#else
#define FATHOM_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 256;
constexpr int kVector = 8;  // keys that are read at once
constexpr int kCluster = 8;
constexpr int kMostOfBlock = 16384;  // entries from which on a cluster is faster

__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
// *p of the cluster's block `rank`.
template <class T>
__device__ T of_block(const T* p, int rank) {
#if __CUDA_ARCH__ >= 900
  const T* theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(p), "r"(rank));
  return *const_cast<const volatile T*>(theirs);
#else
  return *p;
#endif
}

struct Room {
  int counts[2][kBins];  // of keys by their high byte, and of those with the border's high byte by the low one
  int totals[kBins];     // of all blocks
  int digit;
  int left;
  unsigned long long warps[kThreads / kWarp];
  unsigned long long block;  // keys above the border, and in the high half its equals
};

template <int kBlocks>
struct Selector {
  Room& room;
  const std::uint16_t* keys;
  int begin;  // this thread's keys
  int end;

  static __device__ void meet() {
    if (kBlocks > 1) cluster_barrier();
    else __syncthreads();
  }

  // f(index, key) of this thread's keys, in order.
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll 2
    for (int at = begin; at < end; at += kVector) {
      const uint4 v = *reinterpret_cast<const uint4*>(keys + at);
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < end) f(at + i, words[i / 2] >> i % 2 * 16 & 0xffffU);
      }
    }
  }

  // The bin of the k-th highest, given counts by bin of the keys that are left; k becomes its rank within the bin.
  __device__ int find_bin(const int* counts, int& k) const {
    if (threadIdx.x < kBins) {
      int total = 0;
      for (int b = 0; b < kBlocks; ++b) total += kBlocks > 1 ? of_block(counts + threadIdx.x, b) : counts[threadIdx.x];
      room.totals[threadIdx.x] = total;
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {  // bins from the highest down, 8 to a lane
      constexpr int kEach = kBins / kWarp;
      const int highest = kBins - 1 - static_cast<int>(threadIdx.x) * kEach;
      int mine = 0;
      for (int i = 0; i < kEach; ++i) mine += room.totals[highest - i];
      int upto = mine;
      for (int d = 1; d < kWarp; d *= 2) {
        const int lower = __shfl_up_sync(kAll, upto, d);
        if (static_cast<int>(threadIdx.x) >= d) upto += lower;
      }
      if (upto - mine < k && k <= upto) {
        int above = upto - mine;
        int bin = highest;
        while (above + room.totals[bin] < k) above += room.totals[bin--];
        room.digit = bin;
        room.left = k - above;
      }
    }
    __syncthreads();
    k = room.left;
    return room.digit;
  }

  // The sum of v over the threads before this one, in this block and the blocks before it.
  __device__ unsigned long long before(unsigned long long v) const {
    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    unsigned long long upto = v;
    for (int d = 1; d < kWarp; d *= 2) {
      const unsigned long long lower = __shfl_up_sync(kAll, upto, d);
      if (lane >= d) upto += lower;
    }
    if (lane == kWarp - 1) room.warps[warp] = upto;
    __syncthreads();
    unsigned long long warps = room.warps[lane];
    for (int d = 1; d < kWarp; d *= 2) {
      const unsigned long long lower = __shfl_up_sync(kAll, warps, d);
      if (lane >= d) warps += lower;
    }
    if (kBlocks > 1 && threadIdx.x == kWarp - 1) room.block = warps;
    unsigned long long sum = upto - v;
    const unsigned long long lower_warps = __shfl_sync(kAll, warps, max(warp - 1, 0));
    if (warp > 0) sum += lower_warps;
    if (kBlocks > 1) {
      cluster_barrier();
      for (int b = 0; b < static_cast<int>(blockIdx.x); ++b) sum += of_block(&room.block, b);
    }
    return sum;
  }

  // The k highest of all keys.
  __device__ void select(int k, std::int32_t* selected) const {
    for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) room.counts[0][i] = 0;
    __syncthreads();
    each([&](int, std::uint32_t key) { atomicAdd(&room.counts[0][key >> 8], 1); });
    meet();
    const auto high = static_cast<std::uint32_t>(find_bin(room.counts[0], k));
    each([&](int, std::uint32_t key) {
      if (key >> 8 == high) atomicAdd(&room.counts[1][key & 255U], 1);
    });
    meet();
    const std::uint32_t border = high << 8 | static_cast<std::uint32_t>(find_bin(room.counts[1], k));
    const int equals = k;  // so many of the border's equals are among the highest

    unsigned long long mine = 0;
    each([&](int, std::uint32_t key) { mine += (key > border ? 1ULL : 0ULL) + (key == border ? 1ULL << 32 : 0ULL); });
    mine = before(mine);
    auto above = static_cast<int>(mine & 0xffffffffULL);
    auto equal = static_cast<int>(mine >> 32);
    each([&](int entry, std::uint32_t key) {
      if (key > border) selected[above++ + min(equal, equals)] = entry;
      if (key == border && equal++ < equals) selected[above + equal - 1] = entry;
    });
    if (kBlocks > 1) cluster_barrier();  // no block leaves while others read its memory
  }
};

template <int kBlocks>
__global__ void FATHOM_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    index_select(IndexSelect op, int ratio, ScoreKeys scores) {
  await_previous();
  __shared__ Room room;
  const std::int64_t t = scores.t0 + static_cast<std::int64_t>(blockIdx.y);
  const int exist = (op.batch.positions[t] + 1) / ratio;
  const auto most = static_cast<int>(op.selected.cols);
  std::int32_t* selected = op.selected.data + t * op.selected.ld;
  if (exist <= most) {
    if (blockIdx.x != 0) return;
    for (int i = threadIdx.x; i < most; i += kThreads) selected[i] = i < exist ? i : -1;
    return;
  }
  constexpr int kEach = kBlocks * kThreads * kVector;
  const int each = (exist + kEach - 1) / kEach * kVector;
  const int begin = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * each;
  const Selector<kBlocks> selector{.room = room,
                                   .keys = scores.data + static_cast<std::int64_t>(blockIdx.y) * scores.ld,
                                   .begin = begin,
                                   .end = min(begin + each, exist)};
  selector.select(most, selected);
}

bool has_clusters() {
  int device = 0;
  int value = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&value, cudaDevAttrClusterLaunch, device) == cudaSuccess && value != 0;
}

}  // namespace

void select_entries(Context& c, const IndexSelect& op, const ScoreKeys& scores) {
  const auto rows = static_cast<unsigned>(scores.tokens);
  if (scores.ld > kMostOfBlock && has_clusters()) {
    launch(c, "index_select", index_select<kCluster>, dim3(kCluster, rows), kThreads, 0, op, op.keys.ratio, scores);
  } else {
    launch(c, "index_select", index_select<1>, dim3(1, rows), kThreads, 0, op, op.keys.ratio, scores);
  }
}

}  // namespace fathom::ops::cuda
