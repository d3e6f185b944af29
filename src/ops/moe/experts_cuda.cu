#include <algorithm>

#include "ops/cuda/codes.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"
#include "ops/moe/experts_codes_cuda.h"
#include "ops/moe/experts_few_cuda.h"
#include "ops/moe/experts_plan.cuh"
#include "ops/moe/experts_some_cuda.h"
#include "ops/moe/experts_sum_cuda.h"

namespace fathom::ops::cuda {
namespace {

// Memory of one call, laid out. Sorted choices come first, then the tokens as the shared expert has them.
struct Room {
  Room(std::int64_t tokens, std::int64_t k, std::int64_t d, std::int64_t inner, std::int64_t most_items, Values routed,
       Values shared, int n_experts)
      : plan(pieces, tokens * k, most_items, n_experts) {
    const auto planes = [this](std::int64_t rows, std::int64_t cols, Values v) {
      return pieces.add<std::byte>(static_cast<std::int64_t>(planes_bytes(rows, cols, v)));
    };
    x_routed = planes(tokens, d, routed);
    x_shared = planes(tokens, d, shared);
    z = pieces.add<float>((tokens * k + tokens) * inner);
    z_planes = planes(tokens * k + tokens, inner, routed);
    z_shared = routed == shared ? z_planes : planes(tokens, inner, shared);
    results = pieces.add<float>((tokens * k + tokens) * d);
  }
  Pieces pieces;
  PlanRoom plan;
  std::size_t x_routed, x_shared, z, z_planes, z_shared, results;
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
  const bool packed = takes_codes(c, op.shared.w1);
  FATHOM_CHECK(packed == takes_codes(c, op.routed_like.w1), "experts are packed together");
  if (tokens == 0) return;
  if (packed) {
    run_codes(c, op);
    return;
  }
  if (run_few(c, op) || run_some(c, op)) return;
  const Values routed = values_for(op.routed_like.w1, op.quantise, op.carrier);
  const Values shared = values_for(op.shared.w1, op.quantise, op.carrier);
  const std::int64_t rows_each = tokens * k / std::max(op.n_routed, 1);
  const int at_once = std::min(tokens_an_item(c, op.routed_like.w1, routed, rows_each, op.n_routed),
                               tokens_an_item(c, op.routed_like.w2, routed, rows_each, op.n_routed));
  const std::int64_t most_items = std::min<std::int64_t>(tokens * k, op.n_routed + tokens * k / at_once);
  const Room room(tokens, k, d, inner, most_items, routed, shared, op.n_routed);
  std::byte* const base = c.scratch->take(room.pieces.bytes(), c.fault);
  const Plan plan = room.plan.in(base);
  make_plan(c, op.experts, op.weights, op.n_routed, at_once, plan, base + room.plan.counts);

  const Order order = order_for(c, op.routed_like.w1, routed, rows_each, op.n_routed);
  const Order shared_order = order_for(c, op.shared.w1, shared, tokens);
  const bool alike = routed == shared;
  Inputs x;
  x.routed = make_planes(c, {.x = op.x,
                             .values = routed,
                             .order = order,
                             .memory = base + room.x_routed,
                             .other_order = shared_order,
                             .other_memory = alike ? base + room.x_shared : nullptr});
  x.shared = alike
                 ? at(x.routed, base + room.x_shared, shared_order)
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
  const Order down_order = order_for(c, op.routed_like.w2, routed, rows_each, op.n_routed);
  const Order shared_down_order = order_for(c, op.shared.w2, shared, tokens);
  if (alike) {
    h.routed = make_planes(c, {.x = z,
                               .values = routed,
                               .order = down_order,
                               .memory = base + room.z_planes,
                               .other_order = shared_down_order,
                               .other_from = tokens * k});
    h.shared = from_row(h.routed, tokens * k, shared_down_order);
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
  sum_experts(c, results.data, plan.place, static_cast<int>(k), op.y, op.carrier);
}

}  // namespace fathom::ops::cuda
