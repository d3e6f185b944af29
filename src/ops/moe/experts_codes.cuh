// experts_codes: the products of packed experts for up to 64 tokens. A block, one a multiprocessor, has either a part
// of the shared expert or of the routed ones, in proportion to the bytes; its four warpgroups take units of it in turn,
// each with a ring of tiles in shared memory. One more warp fills the rings by bulk copies, across the borders of
// units; another puts codes of inputs where the warpgroups want them, an item ahead.
//
// A unit is 64 rows of one item's matrix, all inputs; of w1's rows and w3's alike, so that units are small against what
// a block has. Items are up to 8 tokens of an expert (of the shared one up to kN). What SwiGLU makes of a and b is for
// whoever wants it as codes: one token's blocks themselves, else a kernel between.
#pragma once

#include "ops/cuda/barrier.cuh"
#include "ops/cuda/codes.cuh"

namespace fathom::ops::cuda {

inline constexpr int kExpertGroups = 4;  // warpgroups of a block that multiply
inline constexpr int kExpertThreads = kExpertGroups * kTileThreads + 2 * kWarp;
inline constexpr int kExpertItems = 64;   // that a block has at most
inline constexpr int kExpertTokens = 8;   // of a routed item
inline constexpr int kExpertBlocks = 64;  // of inputs
inline constexpr int kExpertSlots = 8;    // of a ring, at most

struct ExpertsJob {
  const ExpertWeights* table;
  WeightView shared[2];  // w1 and w3, or w2
  bool shared_scales_f32;
  const Item* items;  // of the plan; one token has none: its choices are the items
  const std::int32_t* n_items;
  const std::int32_t* list;
  const std::int32_t* experts;  // one token's
  int choices;
  int tokens;
  int blocks;           // of inputs
  int tiles;            // of an item: of w1's rows and then w3's, or of w2's
  int shared_bytes;     // dynamic
  Codes x;              // of the tokens, or of the rows of z: choices, then tokens
  const float* values;  // one token's: x, or its rows of a and b
  const float* weights;
  float limit;
  Carrier carrier;
  float* out;  // [choices + tokens, 64 * tiles]: a and b, or results rounded to the carrier
};

// z = SwiGLU of a lane's four values of a and b, as write_value has it.
__device__ inline void gated4(const float* a, const float* b, float weight, float limit, Carrier carrier,
                              float (&z)[4]) {
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

// Whether the phase of this parity has ended.
__device__ inline bool barrier_passed(std::uint64_t* barrier, int parity) {
  std::uint32_t passed;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(passed)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return passed != 0;
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
  std::uint64_t free[kExpertGroups][kExpertSlots];
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
  static constexpr int kBuffers = kN <= 8 && !(kOne && kShared) ? 2 : 1;  // of codes
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
    // A block of fewer units has longer rings: what it has under way decides what it gets of the memory's bandwidth.
    const int rings_used = max(1, min(kExpertGroups, part.end - part.begin));
    slots = min(kExpertSlots, left / (rings_used * slot_bytes<F>()));
  }

  struct Place {
    int matrix;
    int tile;  // of its rows
  };
  __device__ Place place_of(int tile) const {
    const int half = job.tiles / 2;
    return kGate && tile >= half ? Place{1, tile - half} : Place{0, tile};
  }

  // Item i of the part, from the plan.
  __device__ ExpertItem item_at(int i) const {
    const int item = part.item0 + i;
    if (kShared) return {{job.shared[0], job.shared[1]}, job.choices + item * kN, min(kN, job.tokens - item * kN)};
    const Item it = kOne ? Item{__ldcg(job.experts + item), item, 1} : read_item(job.items + item);
    const ExpertWeights& e = job.table[it.expert];
    ExpertItem to{{}, it.first, it.count};
    to.w[0] = kGate ? WeightView{e.w1.data, e.w1.scales} : WeightView{e.w2.data, e.w2.scales};
    if (kGate) to.w[1] = {e.w3.data, e.w3.scales};
    return to;
  }
  // By one warp.
  __device__ void list_items() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int i = lane; i < part.n; i += kWarp) state.items[i] = item_at(i);
    if (lane < 2) {
      barrier_init(&state.codes_full[lane], kWarp);
      barrier_init(&state.codes_free[lane], kExpertGroups * kTileThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  // ---- Weights.

  // A lane of one warp fills a warpgroup's ring, in the order in which tiles are taken.
  struct Feeder {
    int unit;
    int slot = 0;
    int round = 0;
    int block = 0;
    const std::byte* data = nullptr;
    const std::byte* scale = nullptr;
  };
  __device__ void aim(Feeder& f, bool listed) const {
    f.block = 0;
    if (f.unit >= part.end) return;
    const int item = f.unit / job.tiles;
    const Place at = place_of(f.unit - item * job.tiles);
    WeightView w = job.shared[0];
    if (listed) {
      w = state.items[item - part.item0].w[at.matrix];
    } else {
      const ExpertItem it = item_at(item - part.item0);
      w = at.matrix == 0 ? it.w[0] : it.w[1];
    }
    f.data = w.data + static_cast<std::int64_t>(at.tile) * job.blocks * Tile<F>::kBytes;
    f.scale = w.scales + static_cast<std::int64_t>(at.tile) * job.blocks * Slot<F>::kScales;
  }
  __device__ void feed(Feeder& f, int group, bool listed) const {
    const int n = min(kPerSlot, job.blocks - f.block);
    std::byte* const to = rings + (group * slots + f.slot) * slot_bytes<F>();
    std::uint64_t* const full = &state.full[group][f.slot];
    barrier_expect(full, n * (Tile<F>::kBytes + Slot<F>::kScales));
    bulk_copy(to, f.data, n * Tile<F>::kBytes, full);
    if (Slot<F>::kScales > 0) {
      bulk_copy(to + kPerSlot * Tile<F>::kBytes, f.scale, n * Slot<F>::kScales, full);
    }
    if (++f.slot == slots) {
      f.slot = 0;
      ++f.round;
    }
    f.data += n * Tile<F>::kBytes;
    f.scale += n * Slot<F>::kScales;
    f.block += n;
    if (f.block < job.blocks) return;
    f.unit += kExpertGroups;
    aim(f, listed);
  }
  // All rings for the first time, while others list the items.
  __device__ Feeder fill(int group) const {
    Feeder f{.unit = group < kExpertGroups ? part.begin + group : part.end};
    if (f.unit >= part.end) return f;
    for (int s = 0; s < slots; ++s) {
      barrier_init(&state.full[group][s], 1);
      barrier_init(&state.free[group][s], kTileThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    aim(f, /*listed=*/false);
    while (f.round == 0 && f.unit < part.end) feed(f, group, /*listed=*/false);
    return f;
  }
  __device__ void feed_all(Feeder& f, int group) const {
    while (__any_sync(kAll, f.unit < part.end)) {
      if (f.unit < part.end && barrier_passed(&state.free[group][f.slot], (f.round - 1) & 1)) {
        feed(f, group, /*listed=*/true);
      }
      __syncwarp();
    }
  }

  // ---- Inputs.

  // Those of item i (of the part), by warp `warp` of `warps`; before a fence for the asynchronous proxy.
  __device__ void stage(int i, int warp, int warps) const {
    // One token's items need not be listed yet.
    const int first = kOne ? (kShared ? job.choices : part.item0 + i) : state.items[i].first;
    const int count = kOne ? 1 : state.items[i].count;
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
          const float* const a = job.values + static_cast<std::int64_t>(first) * 2 * inner + k;
          gated4(a, a + inner, kShared ? 1.0F : job.weights[first], job.limit, job.carrier, v);
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
      for (int i4 = warp; i4 < fours * count; i4 += warps) {
        const int n = i4 / fours;
        const int b = (i4 - n * fours) * 4 + lane / 8;
        const int row = !kGate ? first + n : kShared ? first + n - job.choices : job.list[first + n];
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

  __device__ void await_codes(int i) const { barrier_wait(&state.codes_full[i % kBuffers], i / kBuffers & 1); }

  // ---- The products of a warpgroup.

  // FP8: the scale of block lane, and of block 32 + lane, of a unit's row tile.
  struct LaneScales {
    float of[kExpertBlocks / kWarp];
  };
  __device__ LaneScales lane_scales(int unit) const {
    LaneScales s{};
    if constexpr (kShared) {
      if (unit >= part.end) return s;
      const Place place = place_of(unit % job.tiles);
      const WeightView& w = job.shared[place.matrix];
#pragma unroll
      for (int i = 0; i < kExpertBlocks / kWarp; ++i) {
        const int b = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
        if (b >= job.blocks) continue;
        const int at = place.tile / 2 * job.blocks + b;
        s.of[i] = job.shared_scales_f32 ? reinterpret_cast<const float*>(w.scales)[at]
                                        : ue8m0(static_cast<std::uint32_t>(w.scales[at]));
      }
    }
    return s;
  }

  // A lane's part of a slot.
  struct Taken {
    uint4 pieces[kPerSlot][Tile<F>::kLoads];
    typename Tile<F>::Scale scale[kPerSlot];  // FP4
  };

  __device__ void multiply(int group) const {
    const int thread = static_cast<int>(threadIdx.x) % kTileThreads;
    std::byte* const ring = rings + group * slots * slot_bytes<F>();
    int slot = 0;
    int round = 0;
    Taken taken;
    const auto take = [&] {
      barrier_wait(&state.full[group][slot], round & 1);
      const std::byte* const from = ring + slot * slot_bytes<F>();
#pragma unroll
      for (int j = 0; j < kPerSlot; ++j) {
#pragma unroll
        for (int i = 0; i < Tile<F>::kLoads; ++i) {
          const std::byte* const piece = from + j * Tile<F>::kBytes + (i * kTileThreads + thread) * sizeof(uint4);
          taken.pieces[j][i] = *reinterpret_cast<const uint4*>(piece);
        }
        if constexpr (!kShared) {
          const std::byte* const words = from + kPerSlot * Tile<F>::kBytes + j * Slot<F>::kScales;
          taken.scale[j] = reinterpret_cast<const uint2*>(words)[thread / 4];
        }
      }
      __syncwarp();
      if (thread % kWarp == 0) barrier_arrive(&state.free[group][slot]);
      if (++slot == slots) {
        slot = 0;
        ++round;
      }
    };
    int at_item = 0;
    // An item that the warpgroup has nothing of is waited for too: barriers tell a turn from the next, not from others.
    const auto leave_items = [&](int until) {
      __syncwarp();
      for (; at_item < until; ++at_item) {
        await_codes(at_item);
        if (thread % kWarp == 0) barrier_arrive(&state.codes_free[at_item % kBuffers]);
      }
    };
    LaneScales next = lane_scales(part.begin + group);
#pragma unroll 1
    for (int unit = part.begin + group; unit < part.end; unit += kExpertGroups) {
      const LaneScales lane_scale = next;
      next = lane_scales(unit + kExpertGroups);
      leave_items(unit / job.tiles - part.item0);
      await_codes(at_item);
      const std::byte* const x = codes + at_item % kBuffers * job.blocks * kN * kCodeRow;
      const float* const x_scales = scales + at_item % kBuffers * job.blocks * kN;
      float total[kN / 2] = {};
#pragma unroll 1
      for (int b0 = 0; b0 < job.blocks; b0 += kPerSlot) {
        take();
        float acc[kPerSlot][kN / 2];
        std::uint32_t a[kPerSlot][kSteps][4];
#pragma unroll
        for (int j = 0; j < kPerSlot; ++j) {
          if constexpr (kShared) {
            taken.scale[j] = __shfl_sync(kAll, b0 < kWarp ? lane_scale.of[0] : lane_scale.of[1], b0 % kWarp);
          }
          // The last slot's second tile may not be there: then what is left of another is multiplied, and not added.
          expand_tile<F>(taken.pieces[j], taken.scale[j], a[j]);
          const std::uint64_t tokens = tokens_at(x + min(b0 + j, job.blocks - 1) * kN * kCodeRow);
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < kSteps; ++s) WgmmaCodes<kN>::run(acc[j], a[j][s], tokens + 2 * s, s);
          wgmma_commit();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < kPerSlot; ++j) {
          if (j > 0 && b0 + j >= job.blocks) break;
          promote<F, kN>(
              acc[j], taken.scale[j], [&](int n) { return x_scales[(b0 + j) * kN + n]; }, total);
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
  // One warp fills the rings, one lists the items, and the others, where that does not wait for the list, put the first
  // item's inputs in place meanwhile.
  using Block = ExpertsBlock<F, kGate, kOne, kN>;
  constexpr int kWarps = kExpertGroups * kTileThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  typename Block::Feeder feeder{.unit = part.end};
  if (warp == kWarps) me.list_items();
  if (warp == kWarps + 1) feeder = me.fill(lane);
  __syncwarp();
  if (!kOne) __syncthreads();
  if (!awaited) {
    await_results();
    allow_next();
  }
  if (part.n > 0 && warp < kWarps) me.stage(0, warp, kWarps);
  __syncthreads();
  if (part.n == 0) return;
  if (warp < kWarps) me.multiply(warp * kWarp / kTileThreads);
  else if (warp == kWarps) me.stage_all();
  else me.feed_all(feeder, lane);
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
  const int shared_blocks =
      max(1, min(grid - 1, static_cast<int>(ceilf(static_cast<float>(grid) * of_shared / of_all))));
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
