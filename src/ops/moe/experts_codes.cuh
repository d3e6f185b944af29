// experts_codes: the products of packed experts for up to 64 tokens. A block, one a multiprocessor, has either a part of
// the shared expert or of the routed ones, in proportion to the bytes; four of its warpgroups take units of it in turn,
// each with a ring of tiles in shared memory that bulk copies fill across the borders of units. One more warp puts codes
// of inputs where the warpgroups want them, an item ahead.
//
// A unit is 64 rows of one item's matrix, all inputs; of w1's rows and w3's alike, so that units are small against what
// a block has. Items are up to 8 tokens of an expert (of the shared one up to kN). What SwiGLU makes of a and b is for
// whoever wants it as codes: one token's blocks themselves, else a kernel between.
#pragma once

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/codes.cuh"

namespace fathom::ops::cuda {

inline constexpr int kExpertGroups = 4;  // warpgroups of a block that multiply
inline constexpr int kExpertThreads = kExpertGroups * kTileThreads + kWarp;
inline constexpr int kExpertItems = 64;    // that a block has at most
inline constexpr int kExpertTokens = 8;    // of a routed item
inline constexpr int kExpertBlocks = 64;   // of inputs
inline constexpr int kExpertSlots = 6;     // of a ring, at most

struct ExpertsJob {
  const ExpertWeights* table;
  WeightView shared[2];  // w1 and w3, or w2
  bool shared_scales_f32;
  const Item* items;                // of the plan; one token has none: its choices are the items
  const std::int32_t* n_items;
  const std::int32_t* list;
  const std::int32_t* experts;      // one token's
  int choices;
  int tokens;
  int blocks;  // of inputs
  int tiles;   // of an item: of w1's rows and then w3's, or of w2's
  int shared_bytes;  // dynamic
  Codes x;           // of the tokens, or of the rows of z: choices, then tokens
  const float* values;  // one token's: x, or its rows of a and b
  const float* weights;
  float limit;
  Carrier carrier;
  float* out;  // [choices + tokens, 64 * tiles]: a and b, or results rounded to the carrier
};

// z = SwiGLU of a lane's four values of a and b, as write_value has it.
__device__ inline void gated4(const float* a, const float* b, float weight, float limit, Carrier carrier, float (&z)[4]) {
  const float4 gate = *reinterpret_cast<const float4*>(a);
  const float4 up = *reinterpret_cast<const float4*>(b);
  const auto one = [&](float g, float u) {
    return carry_to(weight * swiglu(carry_to(g, carrier), carry_to(u, carrier), limit), carrier);
  };
  z[0] = one(gate.x, up.x);
  z[1] = one(gate.y, up.y);
  z[2] = one(gate.z, up.z);
  z[3] = one(gate.w, up.w);
}

#if FATHOM_WGMMA

__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Bytes and addresses are whole sixteens.
__device__ inline void copy_bulk(void* to, const std::byte* from, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void copy_piece(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// What a slot of a ring holds: two blocks of FP4 and their scales, or one of FP8, whose scales lanes hold.
template <Format F>
struct Slot;
template <>
struct Slot<Format::kFp4> {
  static constexpr int kBlocks = 2;
  static constexpr int kScales = Tile<Format::kFp4>::kScaleBytes;  // bytes of a block
};
template <>
struct Slot<Format::kFp8> {
  static constexpr int kBlocks = 1;
  static constexpr int kScales = 0;
};
template <Format F>
__host__ __device__ constexpr int slot_bytes() {
  return Slot<F>::kBlocks * (Tile<F>::kBytes + Slot<F>::kScales);
}

struct ExpertItem {
  WeightView w[2];
  int first;  // row of the results; of the inputs too, but for x
  int count;
};

// From L2, for who has not waited for the kernel in front.
__device__ inline Item read_item(const Item* item) {
  return {__ldcg(&item->expert), __ldcg(&item->first), __ldcg(&item->count)};
}

// What a block's warps share beside rings and codes.
struct ExpertsState {
  std::uint64_t full[kExpertGroups][kExpertSlots];
  std::uint64_t codes_full[2];
  std::uint64_t codes_free[2];
  ExpertItem items[kExpertItems];
};

// A block's part: units [begin, end), of items [item0, item0 + n).
struct ExpertsPart {
  int begin;
  int end;
  int item0;
  int n;
};

// Format F: of the shared expert FP8, of the routed ones FP4. kOne: one token. kN: tokens of an item.
template <Format F, bool kGate, bool kOne, int kN>
struct ExpertsBlock {
  static constexpr bool kShared = F == Format::kFp8;
  static constexpr int kBuffers = kN <= 8 ? 2 : 1;  // of codes
  static constexpr int kPerSlot = Slot<F>::kBlocks;

  const ExpertsJob& job;
  ExpertsPart part;
  ExpertsState& state;
  std::byte* codes;  // [kBuffers][blocks][kN][128]
  float* scales;     // [kBuffers][blocks][kN]
  std::byte* rings;
  int slots;

  __device__ ExpertsBlock(const ExpertsJob& job, ExpertsPart part, ExpertsState& state, std::byte* memory)
      : job(job), part(part), state(state), codes(memory) {
    scales = reinterpret_cast<float*>(codes + kBuffers * job.blocks * kN * kCodeRow);
    rings = reinterpret_cast<std::byte*>(scales + kBuffers * job.blocks * kN);
    const int left = job.shared_bytes - 1024 - kBuffers * job.blocks * kN * (kCodeRow + 4);
    slots = min(kExpertSlots, left / (kExpertGroups * slot_bytes<F>()));
  }

  // By all threads, before a barrier.
  __device__ void begin() {
    for (int i = static_cast<int>(threadIdx.x); i < part.n; i += kExpertThreads) {
      const int item = part.item0 + i;
      ExpertItem& to = state.items[i];
      if (kShared) {
        to.w[0] = job.shared[0];
        to.w[1] = job.shared[1];
        to.first = job.choices + item * kN;
        to.count = min(kN, job.tokens - item * kN);
        continue;
      }
      const Item it = kOne ? Item{__ldcg(job.experts + item), item, 1} : read_item(job.items + item);
      const ExpertWeights& e = job.table[it.expert];
      to.first = it.first;
      to.count = it.count;
      to.w[0] = kGate ? WeightView{e.w1.data, e.w1.scales} : WeightView{e.w2.data, e.w2.scales};
      if (kGate) to.w[1] = {e.w3.data, e.w3.scales};
    }
    if (threadIdx.x < kExpertGroups * kExpertSlots) barrier_init(&state.full[0][0] + threadIdx.x, 1);
    if (threadIdx.x < 2) {
      barrier_init(&state.codes_full[threadIdx.x], kWarp);
      barrier_init(&state.codes_free[threadIdx.x], kExpertGroups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  __device__ const ExpertItem& item_of(int unit, int& tile, WeightView& w) const {
    const int item = unit / job.tiles;
    tile = unit - item * job.tiles;
    const ExpertItem& it = state.items[item - part.item0];
    const int half = job.tiles / 2;
    const bool up = kGate && tile >= half;
    w = it.w[up ? 1 : 0];
    tile -= up ? half : 0;
    return it;
  }

  // ---- Weights.

  // One thread of a warpgroup fills its ring, in the order in which tiles are taken.
  struct Feeder {
    int unit;
    int block = 0;
    const std::byte* data = nullptr;
    const std::byte* scale = nullptr;
  };
  __device__ void aim(Feeder& f) const {
    f.block = 0;
    if (f.unit >= part.end) return;
    int tile;
    WeightView w;
    item_of(f.unit, tile, w);
    f.data = w.data + static_cast<std::int64_t>(tile) * job.blocks * Tile<F>::kBytes;
    f.scale = w.scales + static_cast<std::int64_t>(tile) * job.blocks * Slot<F>::kScales;
  }
  __device__ void feed(Feeder& f, int group, int slot) const {
    if (f.unit >= part.end) return;
    const int n = min(kPerSlot, job.blocks - f.block);
    std::byte* const to = rings + (group * slots + slot) * slot_bytes<F>();
    std::uint64_t* const full = &state.full[group][slot];
    barrier_expect(full, static_cast<std::uint32_t>(n * (Tile<F>::kBytes + Slot<F>::kScales)));
    copy_bulk(to, f.data, static_cast<std::uint32_t>(n * Tile<F>::kBytes), full);
    if (Slot<F>::kScales > 0) {
      copy_bulk(to + kPerSlot * Tile<F>::kBytes, f.scale, static_cast<std::uint32_t>(n * Slot<F>::kScales), full);
    }
    f.data += n * Tile<F>::kBytes;
    f.scale += n * Slot<F>::kScales;
    f.block += n;
    if (f.block < job.blocks) return;
    f.unit += kExpertGroups;
    aim(f);
  }

  // ---- Inputs.

  // Those of item i (of the part), by warp `warp` of `warps`; before a fence for the asynchronous proxy.
  __device__ void stage(int i, int warp, int warps) const {
    const ExpertItem& item = state.items[i];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    std::byte* const to = codes + i % kBuffers * job.blocks * kN * kCodeRow;
    float* const to_scales = scales + i % kBuffers * job.blocks * kN;
    if constexpr (kOne) {
      for (int b = warp; b < job.blocks; b += warps) {
        float v[4];
        const int k = b * kBlock + 4 * lane;
        if constexpr (kGate) {
          const float4 x = *reinterpret_cast<const float4*>(job.values + k);
          v[0] = x.x;
          v[1] = x.y;
          v[2] = x.z;
          v[3] = x.w;
        } else {
          const int inner = job.blocks * kBlock;
          const float* const a = job.values + static_cast<std::int64_t>(item.first) * 2 * inner + k;
          gated4(a, a + inner, kShared ? 1.0F : job.weights[item.first], job.limit, job.carrier, v);
        }
        float scale;
        const std::uint32_t word = quantise_to_codes(v, scale);
        std::byte* const block = to + b * kN * kCodeRow;
        *reinterpret_cast<std::uint32_t*>(block + code_piece(0, lane % 8) + lane / 8 * 4) = word;
        if (lane == 0) to_scales[b * kN] = scale;
      }
    } else {
      // A warp has four blocks of a token at a time.
      const int fours = (job.blocks + 3) / 4;
      for (int i4 = warp; i4 < fours * item.count; i4 += warps) {
        const int n = i4 / fours;
        const int b = (i4 - n * fours) * 4 + lane / 8;
        const int row = !kGate ? item.first + n
                        : kShared ? item.first + n - job.choices
                                  : job.list[item.first + n];
        if (b >= job.blocks) continue;
        const std::int64_t at = static_cast<std::int64_t>(row) * job.blocks + b;
        copy_piece(to + b * kN * kCodeRow + code_piece(n, lane % 8), job.x.data + at * kCodeRow + lane % 8 * 16);
        if (lane % 8 == 0) to_scales[b * kN + n] = job.x.scales[at];
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // By the warp that does nothing else.
  __device__ void stage_all() const {
    barrier_arrive(&state.codes_full[0]);
    for (int i = 1; i < part.n; ++i) {
      if (i >= kBuffers) barrier_wait(&state.codes_free[i % kBuffers], (i / kBuffers - 1) & 1);
      stage(i, 0, 1);
      barrier_arrive(&state.codes_full[i % kBuffers]);
    }
  }

  // ---- The products of a warpgroup.

  // FP8: the scale of block lane, and of block 32 + lane, of a unit's row tile.
  struct LaneScales {
    float of[kExpertBlocks / kWarp];
  };
  __device__ LaneScales lane_scales(int unit) const {
    LaneScales s{};
    if constexpr (kShared) {
      if (unit >= part.end) return s;
      int tile;
      WeightView w;
      item_of(unit, tile, w);
#pragma unroll
      for (int i = 0; i < kExpertBlocks / kWarp; ++i) {
        const int b = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
        if (b >= job.blocks) continue;
        const int at = tile / 2 * job.blocks + b;
        s.of[i] = job.shared_scales_f32 ? reinterpret_cast<const float*>(w.scales)[at]
                                        : ue8m0(static_cast<std::uint32_t>(w.scales[at]));
      }
    }
    return s;
  }

  __device__ void multiply(int group, Feeder& feeder) const {
    const int thread = static_cast<int>(threadIdx.x) % kTileThreads;
    std::byte* const ring = rings + group * slots * slot_bytes<F>();
    int slot = 0;
    int round = 0;
    int at_item = 0;
    const auto leave_items = [&](int until) {
      for (; at_item < until; ++at_item) {
        if (thread == 0) barrier_arrive(&state.codes_free[at_item % kBuffers]);
      }
      __syncwarp();
    };
    LaneScales next = lane_scales(part.begin + group);
#pragma unroll 1
    for (int unit = part.begin + group; unit < part.end; unit += kExpertGroups) {
      const LaneScales lane_scale = next;
      next = lane_scales(unit + kExpertGroups);
      leave_items(unit / job.tiles - part.item0);
      barrier_wait(&state.codes_full[at_item % kBuffers], at_item / kBuffers & 1);
      const std::byte* const x = codes + at_item % kBuffers * job.blocks * kN * kCodeRow;
      const float* const x_scales = scales + at_item % kBuffers * job.blocks * kN;
      float total[kN / 2] = {};
#pragma unroll 1
      for (int b0 = 0; b0 < job.blocks; b0 += kPerSlot) {
        uint4 pieces[kPerSlot][Tile<F>::kLoads];
        typename Tile<F>::Scale scale[kPerSlot];
        barrier_wait(&state.full[group][slot], round & 1);
        const std::byte* const from = ring + slot * slot_bytes<F>();
#pragma unroll
        for (int j = 0; j < kPerSlot; ++j) {
#pragma unroll
          for (int i = 0; i < Tile<F>::kLoads; ++i) {
            pieces[j][i] =
                *reinterpret_cast<const uint4*>(from + j * Tile<F>::kBytes + (i * kTileThreads + thread) * sizeof(uint4));
          }
          if constexpr (kShared) {
            scale[j] = __shfl_sync(kAll, b0 < kWarp ? lane_scale.of[0] : lane_scale.of[1], b0 % kWarp);
          } else {
            scale[j] = reinterpret_cast<const uint2*>(from + kPerSlot * Tile<F>::kBytes + j * Slot<F>::kScales)[thread / 4];
          }
        }
        asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kTileThreads) : "memory");
        if (thread == 0) feed(feeder, group, slot);
        __syncwarp();
        if (++slot == slots) {
          slot = 0;
          ++round;
        }
        float acc[kPerSlot][kN / 2];
#pragma unroll
        for (int j = 0; j < kPerSlot; ++j) {
          if (j > 0 && b0 + j >= job.blocks) break;
          std::uint32_t a[kSteps][4];
          expand_tile<F>(pieces[j], scale[j], a);
          wgmma_fence();
          const std::uint64_t tokens = tokens_at(x + (b0 + j) * kN * kCodeRow);
#pragma unroll
          for (int s = 0; s < kSteps; ++s) WgmmaCodes<kN>::run(acc[j], a[s], tokens + 2 * s, s);
          wgmma_commit();
          wgmma_wait<0>();
          promote<F, kN>(acc[j], scale[j], [&](int n) { return x_scales[(b0 + j) * kN + n]; }, total);
        }
      }
      write(unit, total);
    }
    leave_items(part.n);
  }

  __device__ void write(int unit, const float (&total)[kN / 2]) const {
    const int item = unit / job.tiles;
    const ExpertItem& it = state.items[item - part.item0];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) % kTileThreads / kWarp;
    const int row = (unit - item * job.tiles) * kTileRows + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int n = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (n >= it.count) continue;
      job.out[static_cast<std::int64_t>(it.first + n) * job.tiles * kTileRows + row + i % 4 / 2 * 8] =
          kGate ? total[i] : carry_to(total[i], job.carrier);
    }
  }
};

template <Format F, bool kGate, bool kOne, int kN>
__device__ void run_experts_block(const ExpertsJob& job, int units, int block, int blocks, ExpertsState& state,
                                  std::byte* memory, bool awaited) {
  ExpertsPart part{.begin = units * block / blocks, .end = units * (block + 1) / blocks, .item0 = 0, .n = 0};
  part.item0 = part.begin / job.tiles;
  part.n = part.end > part.begin ? (part.end - 1) / job.tiles - part.item0 + 1 : 0;
  ExpertsBlock<F, kGate, kOne, kN> me(job, part, state, memory);
  me.begin();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kTileThreads;
  typename ExpertsBlock<F, kGate, kOne, kN>::Feeder feeder{.unit = part.begin + group};
  if (group < kExpertGroups && threadIdx.x % kTileThreads == 0) {
    me.aim(feeder);
    for (int s = 0; s < me.slots; ++s) me.feed(feeder, group, s);
  }
  __syncwarp();
  if (!awaited) {
    await_results();
    allow_next();
  }
  if (part.n > 0) me.stage(0, static_cast<int>(threadIdx.x) / kWarp, kExpertThreads / kWarp);
  __syncthreads();
  if (part.n == 0) return;
  if (group < kExpertGroups) me.multiply(group, feeder);
  else me.stage_all();
}

#endif  // FATHOM_WGMMA

// Grids of at least 2 blocks. The next kernel is let come only when the results of those before are there: so one that
// follows this reads the plan, or one token's choices, before it waits for this.
template <bool kGate, bool kOne, int kSharedN>
__global__ void __launch_bounds__(kExpertThreads, 1) experts_codes(const __grid_constant__ ExpertsJob job) {
#if FATHOM_WGMMA
  extern __shared__ uint4 experts_memory[];
  __shared__ ExpertsState state;
  const std::uint32_t misaligned = shared_address(experts_memory) % 1024;
  std::byte* const memory = reinterpret_cast<std::byte*>(experts_memory) + (misaligned == 0 ? 0 : 1024 - misaligned);
  bool awaited = kGate && !kOne;
  if (awaited) {
    await_results();
    allow_next();
  }
  const int routed = (kOne ? job.choices : __ldcg(job.n_items)) * job.tiles;
  const int shared = (job.tokens + kSharedN - 1) / kSharedN * job.tiles;
  // The shared expert's blocks are as many as its part of the bytes, rounded up.
  constexpr int kRoutedCost = Tile<Format::kFp4>::kBytes + Tile<Format::kFp4>::kScaleBytes;
  const float of_shared = static_cast<float>(shared) * Tile<Format::kFp8>::kBytes;
  const float of_all = of_shared + static_cast<float>(routed) * kRoutedCost;
  const auto grid = static_cast<int>(gridDim.x);
  const int shared_blocks = max(1, min(grid - 1, static_cast<int>(ceilf(static_cast<float>(grid) * of_shared / of_all))));
  const auto block = static_cast<int>(blockIdx.x);
  if (block < shared_blocks) {
    run_experts_block<Format::kFp8, kGate, kOne, kSharedN>(job, shared, block, shared_blocks, state, memory, awaited);
    return;
  }
  if (kGate && kOne) {
    await_results();
    allow_next();
    awaited = true;
  }
  run_experts_block<Format::kFp4, kGate, kOne, kExpertTokens>(job, routed, block - shared_blocks, grid - shared_blocks,
                                                              state, memory, awaited);
#endif
}

}  // namespace fathom::ops::cuda
