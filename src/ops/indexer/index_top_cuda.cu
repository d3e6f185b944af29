// Selection by scores of 16 bits: a search for the k-th highest by its two bytes, then one pass in order of the entries
// takes what is above it and the first of its equals. A row is one block's work, or that of a cluster of 8, each with a
// part of the entries.
#include <algorithm>

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/indexer/index_mma.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 256;
constexpr int kCluster = 8;
// Keys that a thread may keep in registers; where there are more they are read again for every pass.
constexpr int kFew = 8;
constexpr int kMany = 32;
constexpr int kVector = 8;  // keys that are read at once

// Keys above the border, and its equals.
struct Counts {
  int above;
  int equal;
};

// For all threads of the cluster: what was written before can be read behind it.
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  arrive_at_cluster();
  await_cluster();
#endif
}
// Where the cluster's block `rank` has what this one has at p, in shared memory.
template <class T>
__device__ const T* in_block(const T* p, int rank) {
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %0, %1;" : "+l"(p) : "r"(rank));
#endif
  return p;
}

struct Room {
  int bins[2][kBins];  // keys by their high byte, and those with the border's high byte by the low one
  int bin_warps[kBins / kWarp];
  int bin;
  int left;
  Counts warps[kThreads / kWarp];
  Counts block;
};

__device__ inline int scan_warp(int v) {
  for (int d = 1; d < kWarp; d *= 2) {
    const int lower = __shfl_up_sync(kAll, v, d);
    if (static_cast<int>(threadIdx.x) % kWarp >= d) v += lower;
  }
  return v;
}

// kKept: kFew, kMany, or 0 where keys are not kept.
template <int kBlocks, int kKept>
struct Selector {
  Room& room;
  const std::uint16_t* keys;
  int begin;  // this thread's keys
  int end;
  std::uint32_t kept[kKept == kMany ? kMany / 2 : kFew];  // kMany: in pairs

  static __device__ void meet() {
    if (kBlocks > 1) cluster_barrier();
    else __syncthreads();
  }

  __device__ void load() {
    if constexpr (kKept == kFew) {
#pragma unroll
      for (int i = 0; i < kFew; ++i) kept[i] = begin + i < end ? keys[begin + i] : 0;
    } else if constexpr (kKept == kMany) {
#pragma unroll
      for (int i = 0; i < kMany; i += kVector) {
        const uint4 v = begin + i < end ? *reinterpret_cast<const uint4*>(keys + begin + i) : uint4{0, 0, 0, 0};
        kept[i / 2] = v.x;
        kept[i / 2 + 1] = v.y;
        kept[i / 2 + 2] = v.z;
        kept[i / 2 + 3] = v.w;
      }
    }
  }

  // f(index, key) of this thread's keys, in order.
  template <class F>
  __device__ void each(const F& f) const {
    if constexpr (kKept != 0) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const std::uint32_t key = kKept == kMany ? kept[i / 2] >> i % 2 * 16 & 0xffffU : kept[i % kFew];
        if (begin + i < end) f(begin + i, key);
      }
    } else {
      for (int at = begin; at < end; ++at) f(at, std::uint32_t{keys[at]});
    }
  }

  // The bin of the k-th highest, given counts by bin of the keys that are left; k becomes its rank within the bin.
  __device__ int find_bin(const int* bins, int& k) const {
    const int bin = kBins - 1 - static_cast<int>(threadIdx.x);  // from the highest down
    int mine = 0;
    int upto = 0;
    if (bin >= 0) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) mine += (kBlocks > 1 ? in_block(bins, b) : bins)[bin];
      upto = scan_warp(mine);
      if (threadIdx.x % kWarp == kWarp - 1) room.bin_warps[threadIdx.x / kWarp] = upto;
    }
    __syncthreads();
    if (bin >= 0) {
      for (int w = 0; w < static_cast<int>(threadIdx.x) / kWarp; ++w) upto += room.bin_warps[w];
      if (upto - mine < k && k <= upto) {
        room.bin = bin;
        room.left = k - (upto - mine);
      }
    }
    __syncthreads();
    k = room.left;
    return room.bin;
  }

  // The sum of v over the threads before this one, in this block and the blocks before it.
  __device__ Counts before(Counts v) const {
    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    const Counts upto = {scan_warp(v.above), scan_warp(v.equal)};
    if (lane == kWarp - 1) room.warps[warp] = upto;
    __syncthreads();
    const Counts warps = {scan_warp(room.warps[lane].above), scan_warp(room.warps[lane].equal)};
    if (kBlocks > 1 && threadIdx.x == kWarp - 1) room.block = warps;
    const Counts lower = {__shfl_sync(kAll, warps.above, max(warp - 1, 0)),
                          __shfl_sync(kAll, warps.equal, max(warp - 1, 0))};
    Counts sum = {upto.above - v.above, upto.equal - v.equal};
    if (warp > 0) sum = {sum.above + lower.above, sum.equal + lower.equal};
    if (kBlocks > 1) {
      cluster_barrier();
#pragma unroll
      for (int b = 0; b < kBlocks - 1; ++b) {
        if (b >= static_cast<int>(blockIdx.x)) break;
        const Counts other = *in_block(&room.block, b);
        sum = {sum.above + other.above, sum.equal + other.equal};
      }
    }
    return sum;
  }

  // The k highest of all keys.
  __device__ void select(int k, std::int32_t* selected) {
    load();
    for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) room.bins[0][i] = 0;
    __syncthreads();
    each([&](int, std::uint32_t key) { atomicAdd(&room.bins[0][key >> 8], 1); });
    meet();
    const auto high = static_cast<std::uint32_t>(find_bin(room.bins[0], k));
    each([&](int, std::uint32_t key) {
      if (key >> 8 == high) atomicAdd(&room.bins[1][key & 255U], 1);
    });
    meet();
    const std::uint32_t border = high << 8 | static_cast<std::uint32_t>(find_bin(room.bins[1], k));
    const int equals = k;  // so many of the border's equals are among the highest

    Counts mine = {0, 0};
    each([&](int, std::uint32_t key) {
      mine.above += key > border ? 1 : 0;
      mine.equal += key == border ? 1 : 0;
    });
    mine = before(mine);
    each([&](int entry, std::uint32_t key) {
      if (key > border) selected[mine.above++ + min(mine.equal, equals)] = entry;
      if (key == border && mine.equal++ < equals) selected[mine.above + mine.equal - 1] = entry;
    });
    if (kBlocks > 1) cluster_barrier();  // no block leaves while others read its memory
  }
};

template <int kBlocks, int kKept>
__global__ void __launch_bounds__(kThreads) index_select(IndexSelect op, int ratio, ScoreKeys scores) {
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
  constexpr int kOfAll = kBlocks * kThreads;
  int each = (exist + kOfAll - 1) / kOfAll;
  if (kKept == kMany) each = (each + kVector - 1) / kVector * kVector;
  const int begin = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * each;
  Selector<kBlocks, kKept> selector{.room = room,
                                    .keys = scores.data + static_cast<std::int64_t>(blockIdx.y) * scores.ld,
                                    .begin = begin,
                                    .end = min(begin + each, exist),
                                    .kept = {}};
  selector.select(most, selected);
}

template <int kBlocks>
auto kernel_for(const ScoreKeys& scores) {
  const std::int64_t each = ceil_div(scores.ld, std::int64_t{kBlocks} * kThreads);
  return each <= kFew    ? index_select<kBlocks, kFew>
         : each <= kMany ? index_select<kBlocks, kMany>
                         : index_select<kBlocks, 0>;
}

}  // namespace

void select_entries(Context& c, const IndexSelect& op, const ScoreKeys& scores) {
  const auto rows = static_cast<unsigned>(scores.tokens);
  if (scores.ld > kThreads * kFew) {
    const auto kernel = kernel_for<kCluster>(scores);
    if (clusters_that_fit(c, kernel, kCluster, kThreads, 0) > 0) {
      launch_clusters(c, "index_select", kernel, dim3(kCluster, rows), kCluster, kThreads, 0, op, op.keys.ratio, scores);
      return;
    }
  }
  launch(c, "index_select", kernel_for<1>(scores), dim3(1, rows), kThreads, 0, op, op.keys.ratio, scores);
}

}  // namespace fathom::ops::cuda
