#include "ops/moe/experts_codes_cuda.h"

#include <algorithm>

#include "ops/cuda/codes.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/experts_codes_few_cuda.h"
#include "ops/moe/experts_many_cuda.h"
#include "ops/moe/experts_plan.cuh"
#include "ops/moe/experts_sum_cuda.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kTokensAnItem = 8;

// Memory of one call, laid out. Sorted choices come first, then the tokens as the shared expert has them.
struct Room {
  Room(const Experts& op, std::int64_t most_items)
      : plan(pieces, op.x.rows * op.experts.cols, most_items, op.n_routed) {
    const std::int64_t tokens = op.x.rows;
    const std::int64_t choices = tokens * op.experts.cols;
    const std::int64_t inner = op.routed_like.w1.rows;
    const auto codes = [this](std::int64_t rows, std::int64_t cols) {
      return pieces.add<std::byte>(static_cast<std::int64_t>(codes_bytes(rows, cols)));
    };
    x = codes(tokens, op.x.cols);
    z = pieces.add<float>((choices + tokens) * inner);
    h = codes(choices + tokens, inner);
    results = pieces.add<float>((choices + tokens) * op.x.cols);
  }
  Pieces pieces;
  PlanRoom plan;
  std::size_t x, z, h, results;
};

Codes from_row(Codes x, std::int64_t row) {
  x.data += row * x.blocks * kCodeRow;
  x.scales += row * x.blocks;
  return x;
}

}  // namespace

void run_codes(Context& c, const Experts& op) {
  const ExpertWeights& r = op.routed_like;
  FATHOM_CHECK(op.quantise, "experts packed for quantised inputs get them");
  if (run_codes_few(c, op) || run_many(c, op)) return;
  const std::int64_t tokens = op.x.rows;
  const std::int64_t k = op.experts.cols;
  const std::int64_t choices = tokens * k;
  const std::int64_t most_items = std::min<std::int64_t>(choices, op.n_routed + choices / kTokensAnItem);
  const Room room(op, most_items);
  std::byte* const base = c.scratch->take(room.pieces.bytes(), c.fault);
  const Plan plan = room.plan.in(base);
  const Mat<float> z = mat(reinterpret_cast<float*>(base + room.z), choices + tokens, r.w1.rows);
  const Mat<float> results = mat(reinterpret_cast<float*>(base + room.results), choices + tokens, op.y.cols);

  make_plan(c, op.experts, op.weights, op.n_routed, kTokensAnItem, plan, base + room.plan.counts);
  const Codes x = make_codes(c, op.x, base + room.x);
  const Matmul routed{.w = r.w1,
                      .w3 = r.w3,
                      .table = op.routed,
                      .part = Part::kGate,
                      .x = {},
                      .list = plan.list,
                      .items = plan.items,
                      .n_items = plan.n_items,
                      .most_items = most_items,
                      .tokens_an_item = kTokensAnItem,
                      .weights = plan.weights,
                      .swiglu_limit = op.swiglu_limit,
                      .y = z.slice(0, choices),
                      .carrier = op.carrier};
  const Matmul shared{.w = op.shared.w1,
                      .w3 = op.shared.w3,
                      .part = Part::kGate,
                      .x = {},
                      .rows = tokens,
                      .swiglu_limit = op.swiglu_limit,
                      .y = z.slice(choices, tokens),
                      .carrier = op.carrier};
  run_codes_plain(c, "shared_gate", {.m = shared, .x = x, .expert = true});
  run_codes_plain(c, "experts_gate", {.m = routed, .x = x, .expert = true});

  const Codes h = make_codes(c, z, base + room.h);
  run_codes_plain(
      c, "shared_down",
      {.m = {.w = op.shared.w2, .x = {}, .rows = tokens, .y = results.slice(choices, tokens), .carrier = op.carrier},
       .x = from_row(h, choices),
       .expert = true});
  run_codes_plain(c, "experts_down",
                  {.m = {.w = r.w2,
                         .table = op.routed,
                         .x = {},
                         .items = plan.items,
                         .n_items = plan.n_items,
                         .most_items = most_items,
                         .tokens_an_item = kTokensAnItem,
                         .y = results.slice(0, choices),
                         .carrier = op.carrier},
                   .x = h,
                   .expert = true});
  sum_experts(c, results.data, plan.place, static_cast<int>(k), op.y, op.carrier);
}

}  // namespace fathom::ops::cuda
