#include "ops/moe/experts_plan.cuh"

#include "ops/cuda/reduce.cuh"

namespace fathom::ops::cuda {
namespace {

// For few choices. One block; a thread places one choice by counting those before it.
constexpr int kCountedChoices = 256;
__global__ void __launch_bounds__(kCountedChoices)
    make_small_plan(Mat<const std::int32_t> experts, Mat<const float> weights, int tokens_an_item, Plan plan) {
  await_previous();
  __shared__ int chosen[kCountedChoices];
  __shared__ bool begins[kCountedChoices];  // whether the choice is the first of an item
  const auto k = static_cast<int>(experts.cols);
  const auto n = static_cast<int>(experts.rows) * k;
  const int i = threadIdx.x;
  if (i < n) chosen[i] = experts.data[i / k * experts.ld + i % k];
  __syncthreads();
  int lower = 0;
  int same_before = 0;
  int same = 0;
  for (int j = 0; i < n && j < n; ++j) {
    lower += chosen[j] < chosen[i] ? 1 : 0;
    same += chosen[j] == chosen[i] ? 1 : 0;
    same_before += chosen[j] == chosen[i] && j < i ? 1 : 0;
  }
  begins[i] = i < n && same_before % tokens_an_item == 0;
  const int n_items = __syncthreads_count(begins[i]);
  if (i == 0) *plan.n_items = n_items;
  if (i >= n) return;
  const int at = lower + same_before;
  plan.list[at] = i / k;
  plan.weights[at] = weights.data[i / k * weights.ld + i % k];
  plan.place[i] = at;
  if (!begins[i]) return;
  int item = same_before / tokens_an_item;
  for (int j = 0; j < n; ++j) item += begins[j] && chosen[j] < chosen[i] ? 1 : 0;
  plan.items[item] = {chosen[i], at, min(tokens_an_item, same - same_before)};
}

// For many, a counting sort in three kernels: a warp counts kChunk choices, one block adds the counts up, a warp places
// its choices in their order.
constexpr int kChunk = 512;
constexpr int kPlanThreads = kMostExperts;

// counts: [chunks, n_experts].
__global__ void __launch_bounds__(kWarp) count_choices(Mat<const std::int32_t> experts, int n_experts, int* counts) {
  await_previous();
  __shared__ int count[kMostExperts];
  const auto k = static_cast<int>(experts.cols);
  const auto n = static_cast<int>(experts.rows) * k;
  for (int e = threadIdx.x; e < n_experts; e += kWarp) count[e] = 0;
  __syncwarp();
  const int end = min(n, static_cast<int>(blockIdx.x + 1) * kChunk);
  for (int i = static_cast<int>(blockIdx.x) * kChunk + threadIdx.x; i < end; i += kWarp) {
    atomicAdd(&count[experts.data[i / k * experts.ld + i % k]], 1);
  }
  __syncwarp();
  for (int e = threadIdx.x; e < n_experts; e += kWarp) counts[static_cast<int>(blockIdx.x) * n_experts + e] = count[e];
}

// Turns counts into where each chunk's choices of each expert begin, and cuts items. A thread has one expert.
__global__ void __launch_bounds__(kPlanThreads)
    add_counts(int* counts, int chunks, int n_experts, int tokens_an_item, Plan plan) {
  await_previous();
  __shared__ int first[kPlanThreads];  // counts, then where the next expert's choices begin
  __shared__ int item[kPlanThreads];
  const int e = threadIdx.x;
  int count = 0;
  if (e < n_experts) {
#pragma unroll 8
    for (int c = 0; c < chunks; ++c) count += counts[c * n_experts + e];
  }
  const int items = (count + tokens_an_item - 1) / tokens_an_item;
  first[e] = count;
  item[e] = items;
  // Inclusive sums over the experts.
  for (int d = 1; d < kPlanThreads; d *= 2) {
    __syncthreads();
    const int f = e >= d ? first[e - d] : 0;
    const int g = e >= d ? item[e - d] : 0;
    __syncthreads();
    first[e] += f;
    item[e] += g;
  }
  if (e == kPlanThreads - 1) *plan.n_items = item[e];
  if (count == 0) return;
  const int begin = first[e] - count;
  for (int i = 0; i < items; ++i) {
    const int done = i * tokens_an_item;
    plan.items[item[e] - items + i] = {e, begin + done, min(tokens_an_item, count - done)};
  }
  int at = begin;
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    const int mine = counts[c * n_experts + e];
    counts[c * n_experts + e] = at;
    at += mine;
  }
}

__global__ void __launch_bounds__(kWarp) place_choices(Mat<const std::int32_t> experts, Mat<const float> weights,
                                                       int n_experts, const int* begins, Plan plan) {
  await_previous();
  __shared__ int next[kMostExperts];
  const auto k = static_cast<int>(experts.cols);
  const auto n = static_cast<int>(experts.rows) * k;
  for (int e = threadIdx.x; e < n_experts; e += kWarp) next[e] = begins[static_cast<int>(blockIdx.x) * n_experts + e];
  __syncwarp();
  const int begin = static_cast<int>(blockIdx.x) * kChunk;
  const int end = min(n, begin + kChunk);
  for (int i0 = begin; i0 < end; i0 += kWarp) {
    const int i = i0 + static_cast<int>(threadIdx.x);
    const int e = i < end ? experts.data[i / k * experts.ld + i % k] : -1;
    const unsigned same = __match_any_sync(kAll, e);
    const int before = __popc(same & ((1U << threadIdx.x) - 1));
    const int at = e >= 0 ? next[e] + before : 0;
    __syncwarp();
    if (e >= 0 && before == 0) next[e] += __popc(same);
    __syncwarp();
    if (e < 0) continue;
    plan.list[at] = i / k;
    plan.weights[at] = weights.data[i / k * weights.ld + i % k];
    plan.place[i] = at;
  }
}

}  // namespace

std::size_t plan_bytes(std::int64_t choices, int n_experts) {
  if (choices <= kCountedChoices) return 0;
  return sizeof(int) * static_cast<std::size_t>(ceil_div(choices, kChunk)) * static_cast<std::size_t>(n_experts);
}

void make_plan(Context& c, Mat<const std::int32_t> experts, Mat<const float> weights, int n_experts, int tokens_an_item,
               const Plan& plan, std::byte* memory) {
  const std::int64_t choices = experts.rows * experts.cols;
  if (choices <= kCountedChoices) {
    launch(c, "experts_plan", make_small_plan, dim3(1), kCountedChoices, 0, experts, weights, tokens_an_item, plan);
    return;
  }
  auto* const counts = reinterpret_cast<int*>(memory);
  const int chunks = ceil_div(choices, kChunk);
  const dim3 grid(static_cast<unsigned>(chunks));
  launch(c, "experts_count", count_choices, grid, kWarp, 0, experts, n_experts, counts);
  launch(c, "experts_plan", add_counts, dim3(1), kPlanThreads, 0, counts, chunks, n_experts, tokens_an_item, plan);
  launch(c, "experts_place", place_choices, grid, kWarp, 0, experts, weights, n_experts,
         static_cast<const int*>(counts), plan);
}

}  // namespace fathom::ops::cuda
