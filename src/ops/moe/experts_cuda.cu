#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"
#include "ops/moe/experts_few_cuda.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMostExperts = 1024;
constexpr int kSumThreads = 256;

// The choices of all tokens sorted by expert, tokens ascending within one, and cut into items.
struct Plan {
  std::int32_t* list;     // [T*k] the token of each sorted choice
  float* weights;         // [T*k] its weight
  std::int32_t* place;    // [T*k] where the choice (t, j) went
  Item* items;            // [most items]
  std::int32_t* n_items;  // [1]
};

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

// For any number. One block; a thread counts, then places, the choices of one expert; all read the same choice at a
// time.
__global__ void __launch_bounds__(kPlanThreads)
    make_plan(Mat<const std::int32_t> experts, Mat<const float> weights, int n_experts, int tokens_an_item, Plan plan) {
  await_previous();
  __shared__ int first[kMostExperts];  // counts, then where the expert's choices begin
  __shared__ int item[kMostExperts];
  const auto k = static_cast<int>(experts.cols);
  const auto n = static_cast<int>(experts.rows) * k;
  const int e = threadIdx.x;
  int count = 0;
  if (e < n_experts) {
    for (int i = 0; i < n; ++i) count += experts.data[i / k * experts.ld + i % k] == e ? 1 : 0;
  }
  first[e] = count;
  item[e] = (count + tokens_an_item - 1) / tokens_an_item;
  // Inclusive sums over the experts.
  for (int d = 1; d < kPlanThreads; d *= 2) {
    __syncthreads();
    const int f = e >= d ? first[e - d] : 0;
    const int g = e >= d ? item[e - d] : 0;
    __syncthreads();
    first[e] += f;
    item[e] += g;
  }
  __syncthreads();
  if (e == kPlanThreads - 1) *plan.n_items = item[e];
  if (count == 0) return;
  const int begin = first[e] - count;
  int at = begin;
  for (int i = 0; i < n; ++i) {
    if (experts.data[i / k * experts.ld + i % k] != e) continue;
    plan.list[at] = i / k;
    plan.weights[at] = weights.data[i / k * weights.ld + i % k];
    plan.place[i] = at++;
  }
  int out = item[e] - (count + tokens_an_item - 1) / tokens_an_item;
  for (int c = 0; c < count; c += tokens_an_item) plan.items[out++] = {e, begin + c, min(tokens_an_item, count - c)};
}

// y[t] = the routed results in order of the experts, then the shared one. results [T*k + T, d]: sorted choices, tokens.
__global__ void sum_experts(const float* results, const std::int32_t* place, int k, Mat<float> y, Carrier carrier) {
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  const std::int64_t t = blockIdx.y;
  if (i >= y.cols) return;
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += results[place[t * k + j] * y.cols + i];
  sum += results[(y.rows * k + t) * y.cols + i];
  y.data[t * y.ld + i] = carry_to(sum, carrier);
}

Values values_for(const Weight& w, bool quantise, Carrier carrier) {
  if (quantise && w.quantised()) return Values::kQuantise;
  return carrier == Carrier::kBf16 ? Values::kBf16 : Values::kF32;
}

// Memory of one call, laid out. Sorted choices come first, then the tokens as the shared expert has them.
struct Room {
  Room(std::int64_t tokens, std::int64_t k, std::int64_t d, std::int64_t inner, std::int64_t most_items, Values routed,
       Values shared) {
    const auto planes = [this](std::int64_t rows, std::int64_t cols, Values v) {
      return pieces.add<std::byte>(static_cast<std::int64_t>(planes_bytes(rows, cols, v)));
    };
    list = pieces.add<std::int32_t>(tokens * k);
    weights = pieces.add<float>(tokens * k);
    place = pieces.add<std::int32_t>(tokens * k);
    items = pieces.add<Item>(most_items);
    n_items = pieces.add<std::int32_t>(1);
    x_routed = planes(tokens, d, routed);
    x_shared = planes(tokens, d, shared);
    z = pieces.add<float>((tokens * k + tokens) * inner);
    z_planes = planes(tokens * k + tokens, inner, routed);
    z_shared = routed == shared ? z_planes : planes(tokens, inner, shared);
    results = pieces.add<float>((tokens * k + tokens) * d);
  }
  Pieces pieces;
  std::size_t list, weights, place, items, n_items, x_routed, x_shared, z, z_planes, z_shared, results;
};

// The planes of both kinds of experts: of x, or of what SwiGLU left. One launch where both want the same values.
struct Inputs {
  Planes routed;
  Planes shared;
};

}  // namespace

void run(Context& c, const Experts& op) {
  const std::int64_t tokens = op.x.rows;
  const std::int64_t d = op.x.cols;
  const std::int64_t k = op.experts.cols;
  const std::int64_t inner = op.routed_like.w1.rows;
  FATHOM_CHECK(op.y.rows == tokens && op.y.cols == d, "y has the shape of x");
  FATHOM_CHECK(op.n_routed <= kMostExperts && op.routed_like.w1.cols == d, "experts of these shapes");
  FATHOM_CHECK(op.shared.w1.rows == inner, "the shared expert is as wide as the routed ones");
  if (tokens == 0 || run_few(c, op)) return;
  const Values routed = values_for(op.routed_like.w1, op.quantise, op.carrier);
  const Values shared = values_for(op.shared.w1, op.quantise, op.carrier);
  const int at_once = tokens_an_item(op.routed_like.w1, tokens * k / std::max(op.n_routed, 1));
  const std::int64_t most_items = std::min<std::int64_t>(tokens * k, op.n_routed + tokens * k / at_once);
  const Room room(tokens, k, d, inner, most_items, routed, shared);
  std::byte* const base = c.scratch->take(room.pieces.bytes(), c.fault);
  const Plan plan{.list = reinterpret_cast<std::int32_t*>(base + room.list),
                  .weights = reinterpret_cast<float*>(base + room.weights),
                  .place = reinterpret_cast<std::int32_t*>(base + room.place),
                  .items = reinterpret_cast<Item*>(base + room.items),
                  .n_items = reinterpret_cast<std::int32_t*>(base + room.n_items)};
  if (tokens * k <= kCountedChoices) {
    launch(c, "experts_plan", make_small_plan, dim3(1), kCountedChoices, 0, op.experts, op.weights, at_once, plan);
  } else {
    launch(c, "experts_plan", make_plan, dim3(1), kPlanThreads, 0, op.experts, op.weights, op.n_routed, at_once, plan);
  }

  const Order order = order_for(op.routed_like.w1);
  const Order shared_order = order_for(op.shared.w1);
  const bool alike = routed == shared;
  Inputs x;
  x.routed = make_planes(c, {.x = op.x,
                             .values = routed,
                             .order = order,
                             .memory = base + room.x_routed,
                             .other_order = shared_order,
                             .other_memory = alike ? base + room.x_shared : nullptr});
  x.shared = alike
                 ? at(x.routed, base + room.x_shared)
                 : make_planes(c, {.x = op.x, .values = shared, .order = shared_order, .memory = base + room.x_shared});

  const Mat<float> z = mat(reinterpret_cast<float*>(base + room.z), tokens * k + tokens, inner);
  const Mat<float> results = mat(reinterpret_cast<float*>(base + room.results), tokens * k + tokens, d);
  // The shared expert beside the routed ones.
  c.beside([&] {
    run_matmul(c, "shared_gate",
               {.w = op.shared.w1,
                .w3 = op.shared.w3,
                .part = Part::kGate,
                .x = x.shared,
                .rows = tokens,
                .swiglu_limit = op.swiglu_limit,
                .y = z.slice(tokens * k, tokens),
                .carrier = op.carrier});
  });
  run_matmul(c, "experts_gate",
             {.w = op.routed_like.w1,
              .table = op.routed,
              .part = Part::kGate,
              .x = x.routed,
              .list = plan.list,
              .items = plan.items,
              .n_items = plan.n_items,
              .most_items = most_items,
              .tokens_an_item = at_once,
              .weights = plan.weights,
              .swiglu_limit = op.swiglu_limit,
              .y = z.slice(0, tokens * k),
              .carrier = op.carrier});
  c.meet();

  Inputs h;
  const Order down_order = order_for(op.routed_like.w2);
  const Order shared_down_order = order_for(op.shared.w2);
  if (alike) {
    h.routed = make_planes(c, {.x = z,
                               .values = routed,
                               .order = down_order,
                               .memory = base + room.z_planes,
                               .other_order = shared_down_order,
                               .other_from = tokens * k});
    h.shared = from_row(h.routed, tokens * k);
  } else {
    h.routed = make_planes(
        c, {.x = z.slice(0, tokens * k), .values = routed, .order = down_order, .memory = base + room.z_planes});
    h.shared = make_planes(c, {.x = z.slice(tokens * k, tokens),
                               .values = shared,
                               .order = shared_down_order,
                               .memory = base + room.z_shared});
  }
  c.beside([&] {
    run_matmul(c, "shared_down",
               {.w = op.shared.w2,
                .part = Part::kDown,
                .x = h.shared,
                .rows = tokens,
                .y = results.slice(tokens * k, tokens),
                .carrier = op.carrier});
  });
  run_matmul(c, "experts_down",
             {.w = op.routed_like.w2,
              .table = op.routed,
              .part = Part::kDown,
              .x = h.routed,
              .items = plan.items,
              .n_items = plan.n_items,
              .most_items = most_items,
              .tokens_an_item = at_once,
              .y = results.slice(0, tokens * k),
              .carrier = op.carrier});
  c.meet();
  launch(c, "experts_sum", sum_experts,
         dim3(static_cast<unsigned>(ceil_div(d, kSumThreads)), static_cast<unsigned>(tokens)), kSumThreads, 0,
         static_cast<const float*>(results.data), static_cast<const std::int32_t*>(plan.place), static_cast<int>(k),
         op.y, op.carrier);
}

}  // namespace fathom::ops::cuda
