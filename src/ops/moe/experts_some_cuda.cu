#include "ops/moe/experts_some_cuda.h"

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/numbers.cuh"
#include "ops/moe/experts_plan.cuh"
#include "ops/moe/experts_sum_cuda.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kTokensAnItem = 8;

bool takes(const Context& c, const Experts& op) {
  const std::int64_t rows_each = op.x.rows * op.experts.cols / std::max(op.n_routed, 1);
  const auto fits = [&](const Weight& w) {
    return takes_alone(c, w, values_for(w, op.quantise, op.carrier), rows_each);
  };
  const auto shared_fits = [&](const Weight& w, const Weight& like) {
    const Values values = values_for(w, op.quantise, op.carrier);
    return values == values_for(like, op.quantise, op.carrier) && takes_resident(c, w, values, op.x.rows);
  };
  return op.carrier == Carrier::kBf16 && fits(op.routed_like.w1) && fits(op.routed_like.w2) &&
         shared_fits(op.shared.w1, op.routed_like.w1) && shared_fits(op.shared.w2, op.routed_like.w2);
}

// Memory of one call, laid out. Sorted choices come first, then the tokens as the shared expert has them.
struct Room {
  explicit Room(const Experts& op, std::int64_t most_items)
      : plan(pieces, op.x.rows * op.experts.cols, most_items, op.n_routed) {
    const std::int64_t tokens = op.x.rows;
    const std::int64_t choices = tokens * op.experts.cols;
    const std::int64_t inner = op.routed_like.w1.rows;
    const auto planes = [this](std::int64_t rows, std::int64_t cols) {
      return pieces.add<std::byte>(static_cast<std::int64_t>(planes_bytes(rows, cols, Values::kBf16)));
    };
    x_routed = planes(tokens, op.x.cols);
    x_shared = planes(tokens, op.x.cols);
    z = pieces.add<float>((choices + tokens) * inner);
    h_routed = planes(choices, inner);
    h_shared = planes(tokens, inner);
    results = pieces.add<float>((choices + tokens) * op.x.cols);
    sums = pieces.add<std::byte>(
        static_cast<std::int64_t>(std::max(resident_bytes(op.shared.w1, tokens, 1, Part::kGate),
                                           resident_bytes(op.shared.w2, tokens, 1, Part::kDown))));
  }
  Pieces pieces;
  PlanRoom plan;
  std::size_t x_routed, x_shared, z, h_routed, h_shared, results, sums;
};

// The shared expert, all of it: z and h are its rows between the two products.
void run_shared(Context& c, const Experts& op, const Planes& x, Mat<float> z, std::byte* h, Mat<float> y,
                std::byte* sums) {
  const Matmul gate{.w = op.shared.w1,
                    .w3 = op.shared.w3,
                    .part = Part::kGate,
                    .x = x,
                    .rows = op.x.rows,
                    .swiglu_limit = op.swiglu_limit,
                    .y = z,
                    .carrier = op.carrier};
  run_resident(c, "shared_gate", {&gate, 1}, sums);
  const Planes of_z = make_planes(c, {.x = z,
                                      .values = values_for(op.shared.w2, op.quantise, op.carrier),
                                      .order = order_for(op.shared.w2),
                                      .memory = h});
  const Matmul down{.w = op.shared.w2, .x = of_z, .rows = op.x.rows, .y = y, .carrier = op.carrier};
  run_resident(c, "shared_down", {&down, 1}, sums);
}

}  // namespace

bool run_some(Context& c, const Experts& op) {
  if (!takes(c, op)) return false;
  const std::int64_t tokens = op.x.rows;
  const std::int64_t k = op.experts.cols;
  const std::int64_t choices = tokens * k;
  const ExpertWeights& r = op.routed_like;
  const std::int64_t most_items = std::min<std::int64_t>(choices, op.n_routed + choices / kTokensAnItem);
  const Room room(op, most_items);
  std::byte* const base = c.scratch->take(room.pieces.bytes(), c.fault);
  const Plan plan = room.plan.in(base);
  const Mat<float> z = mat(reinterpret_cast<float*>(base + room.z), choices + tokens, r.w1.rows);
  const Mat<float> results = mat(reinterpret_cast<float*>(base + room.results), choices + tokens, op.y.cols);

  make_plan(c, op.experts, op.weights, op.n_routed, kTokensAnItem, plan, base + room.plan.counts);
  const Planes x = make_planes(c, {.x = op.x,
                                   .values = values_for(r.w1, op.quantise, op.carrier),
                                   .order = order_for(r.w1),
                                   .memory = base + room.x_routed,
                                   .other_order = order_for(op.shared.w1),
                                   .other_memory = base + room.x_shared});
  c.beside([&] { run_shared(c, op, at(x, base + room.x_shared, order_for(op.shared.w1)), z.slice(choices, tokens),
                            base + room.h_shared, results.slice(choices, tokens), base + room.sums); });
  run_alone(c, "experts_gate",
            {.w = r.w1,
             .table = op.routed,
             .part = Part::kGate,
             .x = x,
             .list = plan.list,
             .items = plan.items,
             .n_items = plan.n_items,
             .tokens_an_item = kTokensAnItem,
             .weights = plan.weights,
             .swiglu_limit = op.swiglu_limit,
             .y = z.slice(0, choices),
             .carrier = op.carrier});
  const Planes h = make_planes(c, {.x = z.slice(0, choices),
                                   .values = values_for(r.w2, op.quantise, op.carrier),
                                   .order = order_for(r.w2),
                                   .memory = base + room.h_routed});
  run_alone(c, "experts_down",
            {.w = r.w2,
             .table = op.routed,
             .x = h,
             .items = plan.items,
             .n_items = plan.n_items,
             .tokens_an_item = kTokensAnItem,
             .y = results.slice(0, choices),
             .carrier = op.carrier});
  c.meet();
  sum_experts(c, results.data, plan.place, static_cast<int>(k), op.y, op.carrier);
  return true;
}

}  // namespace fathom::ops::cuda
