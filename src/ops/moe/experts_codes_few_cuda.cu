#include "ops/moe/experts_codes_few_cuda.h"

#include <climits>

#include "ops/moe/experts_codes.cuh"
#include "ops/moe/experts_plan.cuh"
#include "ops/moe/experts_sum_cuda.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr std::int64_t kMostTokens = 64;
constexpr int kShared = 220 << 10;  // of a block's memory

#if FATHOM_WGMMA

// The plan of up to kThreads choices, by one block: a thread counts the choices before its own.
__device__ void make_plan_in_block(Mat<const std::int32_t> experts, Mat<const float> weights, const Plan& plan) {
  __shared__ alignas(16) int chosen[kThreads];
  __shared__ bool begins[kThreads];  // whether the sorted choice is the first of an item
  __shared__ int begun[kWarps];      // by a warp's sorted choices
  const auto k = static_cast<int>(experts.cols);
  const auto n = static_cast<int>(experts.rows) * k;
  const auto i = static_cast<int>(threadIdx.x);
  const int mine = i < n ? experts.data[i / k * experts.ld + i % k] : INT_MAX;
  chosen[i] = mine;
  begins[i] = false;
  __syncthreads();
  int before = 0;  // in order
  int same_before = 0;
  int same = 0;
  for (int j = 0; j < n; j += 4) {
    const int4 four = *reinterpret_cast<const int4*>(chosen + j);
    const int others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int equal = others[m] == mine ? 1 : 0;
      before += others[m] < mine ? 1 : 0;
      same += equal;
      same_before += j + m < i ? equal : 0;
    }
  }
  const int at = before + same_before;
  const bool begin = i < n && same_before % kExpertTokens == 0;
  if (begin) begins[at] = true;
  if (i < n) {
    plan.list[at] = i / k;
    plan.weights[at] = weights.data[i / k * weights.ld + i % k];
    plan.place[i] = at;
  }
  __syncthreads();
  const unsigned of_warp = __ballot_sync(kAll, begins[i]);
  if (i % kWarp == 0) begun[i / kWarp] = __popc(of_warp);
  __syncthreads();
  // chosen becomes the number of items that begin before the sorted choice.
  int items = __popc(of_warp & ((1U << i % kWarp) - 1));
  for (int w = 0; w < i / kWarp; ++w) items += begun[w];
  chosen[i] = items;
  if (i == kThreads - 1) *plan.n_items = items + (begins[i] ? 1 : 0);
  __syncthreads();
  if (begin) plan.items[chosen[at]] = {mine, at, min(kExpertTokens, same - same_before)};
}

#endif  // FATHOM_WGMMA

// The first block makes the plan, a warp of the others codes of a block of x.
__global__ void __launch_bounds__(kThreads)
    prepare(Mat<const std::int32_t> experts, Mat<const float> weights, Plan plan, Mat<const float> x, int blocks,
            std::uint8_t* data, float* scales) {
#if FATHOM_WGMMA
  await_previous();
  if (blockIdx.x == 0) {
    make_plan_in_block(experts, weights, plan);
    return;
  }
  const int i = (static_cast<int>(blockIdx.x) - 1) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int row = i / blocks;
  if (row >= x.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float4 all = *reinterpret_cast<const float4*>(x.data + row * x.ld + (i - row * blocks) * kBlock + 4 * lane);
  const float v[4] = {all.x, all.y, all.z, all.w};
  float scale;
  reinterpret_cast<std::uint32_t*>(data + std::int64_t{i} * kCodeRow)[code_word(lane)] = quantise_to_codes(v, scale);
  if (lane == 0) scales[i] = scale;
#endif
}

// Codes of z, a warp a block. ab: [rows, 2, blocks * 128]; weights: of the rows before `shared`, the others have 1.
__global__ void __launch_bounds__(kThreads)
    gated_codes(const float* ab, const float* weights, int rows, int shared, int blocks, float limit, Carrier carrier,
                std::uint8_t* data, float* scales) {
#if FATHOM_WGMMA
  await_previous();
  const int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int row = i / blocks;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const a = ab + (std::int64_t{2} * row * blocks + (i - row * blocks)) * kBlock + 4 * lane;
  float z[4];
  gated4(a, a + blocks * kBlock, row < shared ? weights[row] : 1.0F, limit, carrier, z);
  float scale;
  reinterpret_cast<std::uint32_t*>(data + std::int64_t{i} * kCodeRow)[code_word(lane)] = quantise_to_codes(z, scale);
  if (lane == 0) scales[i] = scale;
#endif
}

// Tokens of an item of the shared expert: as many as a block's memory has room for, beside two slots of each ring.
int shared_tokens(std::int64_t cols, std::int64_t tokens) {
  constexpr std::int64_t kRings = 2 * kExpertGroups * kTileRows * kBlock;
  int n = 32;
  while (n > 8 && (tokens <= n / 2 || 1024 + cols / kBlock * n * (kCodeRow + 4) + kRings > kShared)) n /= 2;
  return n;
}

bool takes(const Context& c, const Experts& op) {
  constexpr std::int64_t kMostInputs = std::int64_t{kExpertBlocks} * kBlock;
  const auto fits = [&](const ExpertWeights& e, DType dtype) {
    return e.w1.dtype == dtype && e.w2.dtype == dtype && e.w1.cols <= kMostInputs && e.w2.cols <= kMostInputs;
  };
  return op.x.rows <= kMostTokens && op.x.rows * op.experts.cols <= kThreads && c.multiprocessors >= 32 &&
         fits(op.routed_like, DType::kFp4x2) && fits(op.shared, DType::kF8E4M3) && op.x.ld % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(op.x.data) % sizeof(float4) == 0;
}

template <bool kGate>
void run_product(Context& c, const char* name, const ExpertsJob& job) {
  const auto go = [&](auto kernel) {
    launch(c, name, kernel, dim3(static_cast<unsigned>(c.multiprocessors)), kExpertThreads, kShared, job);
  };
  if (job.tokens == 1) {
    go(experts_codes<kGate, true, 8>);
    return;
  }
  switch (shared_tokens(std::int64_t{job.blocks} * kBlock, job.tokens)) {
    case 8: go(experts_codes<kGate, false, 8>); break;
    case 16: go(experts_codes<kGate, false, 16>); break;
    default: go(experts_codes<kGate, false, 32>);
  }
}

}  // namespace

bool run_codes_few(Context& c, const Experts& op) {
  if (!takes(c, op)) return false;
  const bool one = op.x.rows == 1;
  const auto tokens = static_cast<int>(op.x.rows);
  const auto k = static_cast<int>(op.experts.cols);
  const int choices = tokens * k;
  const int rows = choices + tokens;
  const std::int64_t d = op.x.cols;
  const std::int64_t inner = op.routed_like.w1.rows;
  Pieces pieces;
  const std::size_t list = pieces.add<std::int32_t>(choices);
  const std::size_t weights = pieces.add<float>(choices);
  const std::size_t place = pieces.add<std::int32_t>(choices);
  const std::size_t items = pieces.add<Item>(choices);
  const std::size_t n_items = pieces.add<std::int32_t>(1);
  const std::size_t x = pieces.add<std::byte>(static_cast<std::int64_t>(codes_bytes(tokens, d)));
  const std::size_t ab = pieces.add<float>(rows * 2 * inner);
  const std::size_t h = pieces.add<std::byte>(static_cast<std::int64_t>(codes_bytes(rows, inner)));
  const std::size_t results = pieces.add<float>(rows * d);
  std::byte* const base = c.scratch->take(pieces.bytes(), c.fault);
  const auto floats = [&](std::size_t at) { return reinterpret_cast<float*>(base + at); };
  const auto ints = [&](std::size_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
  const auto codes = [&](std::size_t at, std::int64_t n, std::int64_t cols) {
    return Codes{.data = reinterpret_cast<const std::uint8_t*>(base + at),
                 .scales = reinterpret_cast<const float*>(base + at + n * cols),
                 .blocks = static_cast<int>(cols / kBlock)};
  };
  const auto blocks_for = [&](std::int64_t n, std::int64_t cols) {
    return static_cast<unsigned>(ceil_div(n * (cols / kBlock), kWarps));
  };
  const Plan plan{.list = ints(list),
                  .weights = floats(weights),
                  .place = ints(place),
                  .items = reinterpret_cast<Item*>(base + items),
                  .n_items = ints(n_items)};
  ExpertsJob gate{.table = op.routed,
                  .shared = {{op.shared.w1.data, op.shared.w1.scales}, {op.shared.w3.data, op.shared.w3.scales}},
                  .shared_scales_f32 = op.shared.w1.scale_dtype == DType::kF32,
                  .items = plan.items,
                  .n_items = plan.n_items,
                  .list = plan.list,
                  .experts = op.experts.data,
                  .choices = choices,
                  .tokens = tokens,
                  .blocks = static_cast<int>(d / kBlock),
                  .tiles = static_cast<int>(2 * inner / kTileRows),
                  .shared_bytes = kShared,
                  .x = codes(x, tokens, d),
                  .values = op.x.data,
                  .weights = one ? op.weights.data : plan.weights,
                  .limit = op.swiglu_limit,
                  .carrier = op.carrier,
                  .out = floats(ab)};
  ExpertsJob down = gate;
  down.shared[0] = {op.shared.w2.data, op.shared.w2.scales};
  down.shared_scales_f32 = op.shared.w2.scale_dtype == DType::kF32;
  down.blocks = static_cast<int>(inner / kBlock);
  down.tiles = static_cast<int>(d / kTileRows);
  down.x = codes(h, rows, inner);
  down.values = gate.out;
  down.out = floats(results);

  if (!one) {
    launch(c, "experts_prepare", prepare, dim3(1 + blocks_for(tokens, d)), kThreads, 0, op.experts, op.weights, plan,
           op.x, gate.blocks, const_cast<std::uint8_t*>(gate.x.data), const_cast<float*>(gate.x.scales));
  }
  run_product<true>(c, "experts_gate", gate);
  if (!one) {
    launch(c, "experts_gated", gated_codes, dim3(blocks_for(rows, inner)), kThreads, 0,
           static_cast<const float*>(gate.out), gate.weights, rows, choices, down.blocks, op.swiglu_limit, op.carrier,
           const_cast<std::uint8_t*>(down.x.data), const_cast<float*>(down.x.scales));
  }
  run_product<false>(c, "experts_down", down);
  sum_experts(c, down.out, one ? nullptr : plan.place, k, op.y, op.carrier);
  return true;
}

}  // namespace fathom::ops::cuda
