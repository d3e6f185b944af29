// list: several matrix products for few tokens in one launch, in the order of stream and tile.
//
// A unit is 8 warps on some rows of one matrix with all their inputs: a warp sums one segment of 16 rows, the block
// adds the segments. A block has a contiguous range of units, cut by the bytes they read, and a warp's weights are on
// their way across the borders of units. Inputs are made into planes in shared memory by the block itself.
#pragma once

#include "ops/cuda/planes.cuh"
#include "ops/cuda/small_plan.cuh"
#include "ops/cuda/steps.cuh"

namespace fathom::ops::cuda {

inline constexpr int kPending = 2;

struct ListJob {
  Job job;
  Mat<const float> x;  // f32 rows that a block makes into planes, or no data: they are planes (Job::x)
  Values values;
  Order order;
  bool second;     // which of the two formats of the launch the weights have
  bool by_token;   // as in Product
  int inputs = 0;  // jobs with the same number have the same inputs
  int tiles = 0;   // units of one group of one item
  int cost = 0;    // of a unit, in KiB of weights
};

struct JobList {
  int n;
  ListJob jobs[kListJobs];
  Choices choices;  // of experts, to be planned by every block
};

// Where a warp is in the block's units: what it reads next, or what it adds next.
struct Place {
  int job = 0;
  int unit = 0;
  int tile = 0;   // rows of a group
  int of = 0;     // item * groups + group
  int block = 0;  // of the inputs, where the round begins
  int end = 0;    // of the warp's segment
};

// Which units a block has, and what they are.
struct Walk {
  const JobList& list;
  const SmallPlan& plan;
  std::uint32_t block;  // of n_blocks
  std::uint32_t n_blocks;

  __device__ int units(int j) const {
    const ListJob& l = list.jobs[j];
    const int items = l.job.table == nullptr ? 1 : plan.n_items;
    return l.tiles * l.job.groups * items;
  }
  // The block's first unit of job j, and the first that is not its own. A unit is the block's in whose share of all
  // bytes it begins.
  __device__ void share(int j, int& first, int& last) const {
    std::uint32_t base = 0;
    std::uint32_t total = 0;
    for (int i = 0; i < list.n; ++i) {
      if (i == j) base = total;
      total += static_cast<std::uint32_t>(units(i) * list.jobs[i].cost);
    }
    const auto n = static_cast<std::uint32_t>(units(j));
    const auto cost = static_cast<std::uint32_t>(list.jobs[j].cost);
    const auto from = [&](std::uint32_t b) {
      const auto at = static_cast<std::uint32_t>(std::uint64_t{total} * b / n_blocks);
      return static_cast<int>(min(n, at <= base ? 0 : (at - base + cost - 1) / cost));
    };
    first = from(block);
    last = from(block + 1);
  }
  __device__ int group(const Place& p) const {
    const int groups = list.jobs[p.job].job.groups;
    return groups == 1 ? 0 : p.of % groups;
  }
  // Entries of the plan's list, or rows.
  __device__ Item item(const Place& p) const {
    const Job& job = list.jobs[p.job].job;
    if (job.table == nullptr) return {0, 0, job.rows};
    return plan.items[p.of];  // experts have one group
  }
  __device__ WeightView matrix(const Place& p, int m) const {
    const Job& job = list.jobs[p.job].job;
    if (job.table == nullptr) return job.w[m];
    return plan.w[p.of][m];
  }
  // To the block's next unit; false at the end.
  __device__ bool next(Place& p, const int* first, const int* last) const {
    ++p.unit;
    ++p.tile;
    if (p.unit < last[p.job]) {
      if (p.tile == list.jobs[p.job].tiles) {
        p.tile = 0;
        ++p.of;
      }
    } else {
      do {
        if (++p.job >= list.n) return false;
      } while (first[p.job] == last[p.job]);
      start(p, first);
    }
    begin(p);
    return true;
  }
  // To the block's first unit; false where it has none.
  __device__ bool first_of(Place& p, const int* first, const int* last) const {
    p.job = 0;
    while (first[p.job] == last[p.job]) {
      if (++p.job >= list.n) return false;
    }
    start(p, first);
    begin(p);
    return true;
  }

 private:
  __device__ void start(Place& p, const int* first) const {
    p.unit = first[p.job];
    p.of = p.unit / list.jobs[p.job].tiles;
    p.tile = p.unit - p.of * list.jobs[p.job].tiles;
  }
  __device__ void begin(Place& p) const {
    const Job& job = list.jobs[p.job].job;
    const Span span = span_of(job, static_cast<int>(threadIdx.x) / kWarp % job.segments);
    p.block = span.begin;
    p.end = span.end;
  }
};

__device__ inline int unit_rows(const Job& job) { return kMatmulWarps / job.segments * 16; }

// The unit's inputs into shared memory, if they are not there: tokens of `pitch` numbers each.
__device__ inline void stage_inputs(const ListJob& l, const Item& item, int group, const SmallPlan& plan,
                                    std::uint16_t* to, int pitch) {
  const Job& job = l.job;
  const auto row_of = [&](int n) {
    const int entry = item.first + n;
    return l.by_token ? plan.list[entry] : entry;
  };
  if (l.x.data != nullptr) {
    const auto from = [&](int n) {
      return l.x.data + static_cast<std::int64_t>(row_of(n)) * l.x.ld + static_cast<std::int64_t>(group) * job.cols;
    };
    stage_rows(
        item.count, job.cols, l.values, from, [&](int) { return l.order; }, to, pitch);
    return;
  }
  for (int n = 0; n < item.count; ++n) {
    const auto* from = reinterpret_cast<const uint4*>(
        job.x.data + (static_cast<std::int64_t>(row_of(n)) * job.groups + group) * job.x.row_stride);
    auto* out = reinterpret_cast<uint4*>(to + n * pitch);
#pragma unroll 4
    for (int i = threadIdx.x; i < job.cols / 8; i += kMatmulThreads) out[i] = from[i];
  }
}

// Block `block` of n_blocks. A and B: the formats of the matrices, equal where all have the same. pitch: numbers from token
// to token of the inputs. Waits itself for the kernel in front.
template <bool kGate, Format A, Format B>
__device__ inline void run_list_block(const JobList& list, int pitch, unsigned block, unsigned n_blocks,
                                      std::uint16_t* staged) {
  constexpr int kMatrices = kGate ? 2 : 1;
  __shared__ float sums[2][kPending][kMatmulWarps][4 * kMatrices][kWarp];
  __shared__ int first[kListJobs];
  __shared__ int last[kListJobs];
  __shared__ SmallPlan plan;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const Walk walk{list, plan, block, n_blocks};
  const bool weights_known = list.choices.tokens == 0;
  if (!weights_known) await_results();
  if (!weights_known) make_small_plan<kGate ? Part::kGate : Part::kDown>(list.choices, plan);
  if (threadIdx.x < list.n) walk.share(static_cast<int>(threadIdx.x), first[threadIdx.x], last[threadIdx.x]);
  __syncthreads();

  // `ahead` is the round after `now`, of which step by step is read when that of `now` has been added.
  Place now;
  if (!walk.first_of(now, first, last)) return;
  Place ahead = now;
  Lines lines[kMatrices];
  bool more = true;
  bool fresh = true;      // whether `ahead` begins a unit
  const auto aim = [&] {  // the lines of `ahead`, from the beginning
    const ListJob& l = list.jobs[ahead.job];
    const int row = ahead.tile * unit_rows(l.job) + warp / l.job.segments * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const WeightView w = walk.matrix(ahead, m);
      lines[m] = A != B && l.second ? lines_of<B>(l.job, w, walk.group(ahead), row, ahead.block)
                                    : lines_of<A>(l.job, w, walk.group(ahead), row, ahead.block);
    }
  };
  const auto step_on = [&] {  // `ahead` to the next round
    const ListJob& l = list.jobs[ahead.job];
    const bool second = A != B && l.second;
    const int blocks = second ? round_blocks<B, kMatrices>() : round_blocks<A, kMatrices>();
    ahead.block += blocks;
    fresh = ahead.block >= ahead.end;
    if (fresh) {
      more = walk.next(ahead, first, last);
      if (more) aim();
      return;
    }
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      if (second) advance<B>(lines[m], blocks, l.job.scales_f32);
      else advance<A>(lines[m], blocks, l.job.scales_f32);
    }
  };
  Step ring[kRound];
  const auto read = [&](int s) {
    const ListJob& l = list.jobs[ahead.job];
    const int left = ahead.end - ahead.block;
    const int step = s / kMatrices;
    if (A != B && l.second) {
      if (step * Steps<B>::kBlocks < left * Steps<B>::kPerBlock)
        Steps<B>::load(ring[s], lines[s % kMatrices], step, left, l.job.scales_f32);
    } else {
      if (step * Steps<A>::kBlocks < left * Steps<A>::kPerBlock)
        Steps<A>::load(ring[s], lines[s % kMatrices], step, left, l.job.scales_f32);
    }
  };
  aim();
#pragma unroll
  for (int s = 0; s < kRound; ++s) read(s);
  if (weights_known) await_results();

  // Sums of segments that wait to be added up, of kPending units; the other half is being written meanwhile.
  int turn = 0;
  int pending = 0;
  Place waiting[kPending];
  const auto add_up = [&] {
    __syncthreads();
    const int p = static_cast<int>(threadIdx.x) / (kMatmulThreads / kPending);
    if (p < pending) {
      Place of = waiting[0];
      if (p > 0) of = waiting[kPending - 1];
      const Job& job = list.jobs[of.job].job;
      const Item item = walk.item(of);
      const int rows = unit_rows(job);
      const bool planned = job.table != nullptr;
      for (int o = threadIdx.x % (kMatmulThreads / kPending); o < rows * item.count; o += kMatmulThreads / kPending) {
        const int n = o / rows;
        const int row = o % rows;
        if (of.tile * rows + row >= job.group_rows) continue;
        const int i = (row % 16 >= 8 ? 2 : 0) + n % 2;
        const int at = row % 8 * 4 + n / 2;
        float total[2] = {0, 0};
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          const auto* of_warps = &sums[turn % 2][p][row / 16 * job.segments];
          total[m] = of_warps[0][m * 4 + i][at];
          for (int s = 1; s < job.segments; ++s) total[m] += of_warps[s][m * 4 + i][at];
        }
        write_value<kGate>(job, planned ? plan.weights : job.weights, item.first + n, walk.group(of),
                           of.tile * rows + row, total[0], total[1]);
      }
    }
    ++turn;
    pending = 0;
  };

  int staged_inputs = -1;
  int staged_of = -1;
  int count = 0;
  bool begins = true;  // whether `now` begins a unit
  float acc[kMatrices][4];
  float part[kMatrices][4];
  const std::uint16_t* const x = staged + lane / 4 * pitch + 16 * (lane % 4);
#pragma unroll 1
  for (;;) {
    const ListJob& l = list.jobs[now.job];
    if (begins) {
      if (staged_inputs != l.inputs || staged_of != now.of) {
        if (staged_inputs >= 0) add_up();  // and nobody reads the inputs before these
        const Item item = walk.item(now);
        stage_inputs(l, item, walk.group(now), plan, staged, pitch);
        __syncthreads();
        staged_inputs = l.inputs;
        staged_of = now.of;
        count = item.count;
      }
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][i] = 0;
      }
    }
    step_on();
    const bool there = lane / 4 < count;
    const int left = now.end - now.block;
    const std::uint16_t* const x_round = x + now.block * kBlock;
#pragma unroll
    for (int s = 0; s < kRound; ++s) {
      const int m = s % kMatrices;
      const int step = s / kMatrices;
      if (A != B && l.second) {
        if (step * Steps<B>::kBlocks < left * Steps<B>::kPerBlock)
          Steps<B>::add(acc[m], part[m], ring[s], x_round, there, step, left, l.job.scales_f32);
      } else {
        if (step * Steps<A>::kBlocks < left * Steps<A>::kPerBlock)
          Steps<A>::add(acc[m], part[m], ring[s], x_round, there, step, left, l.job.scales_f32);
      }
      if (more) read(s);
    }
    begins = !more || fresh;
    if (begins) {
      auto& mine = sums[turn % 2][pending][warp];
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[m * 4 + i][lane] = acc[m][i];
      }
      if (pending == 0) waiting[0] = now;
      else waiting[kPending - 1] = now;
      if (++pending == kPending || !more) add_up();
      if (!more) return;
    }
    now = ahead;
  }
}

template <bool kGate, Format A, Format B>
__global__ void __launch_bounds__(kMatmulThreads, 2) list_products(const __grid_constant__ JobList list, int pitch) {
  extern __shared__ uint4 list_shared[];
  allow_next();
  run_list_block<kGate, A, B>(list, pitch, blockIdx.x, gridDim.x, reinterpret_cast<std::uint16_t*>(list_shared));
}

// What a launch of products takes; `second` is `first` where all matrices have one format.
struct ListLaunch {
  JobList list;
  Format first;
  Format second;
  int pitch;
  std::size_t shared;
  std::int64_t units;   // no fewer than there will be
  std::int64_t cost;    // of one matrix's products, in KiB of weights
};
ListLaunch plan_list(std::span<const Product> products, const Choices& choices);

}  // namespace fathom::ops::cuda
