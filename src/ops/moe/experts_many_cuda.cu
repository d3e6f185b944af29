#include "ops/moe/experts_many_cuda.h"

#include <algorithm>

#include "ops/cuda/codes_many.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/experts_plan.cuh"
#include "ops/moe/experts_sum_cuda.h"

namespace fathom::ops::cuda {
namespace {

constexpr std::int64_t kManyEach = 16;  // tokens of an expert, on average, that are many whatever their number

// Memory of one call, laid out. Sorted choices come first, then the tokens as the shared expert has them.
struct Room {
  Room(const Experts& op, std::int64_t most_items)
      : plan(pieces, op.x.rows * op.experts.cols, most_items, op.n_routed) {
    const std::int64_t tokens = op.x.rows;
    const std::int64_t choices = tokens * op.experts.cols;
    const std::int64_t inner = op.routed_like.w1.rows;
    const auto tiles = [this](const TileRows& rows, std::int64_t cols) {
      return pieces.add<std::byte>(static_cast<std::int64_t>(code_tiles_bytes(rows, cols)));
    };
    const TileRows in_items{.items = reinterpret_cast<const Item*>(this), .most_items = most_items};
    x = tiles({.rows = tokens}, op.x.cols);
    x_routed = tiles(in_items, op.x.cols);
    h = tiles({.rows = tokens}, inner);
    h_routed = tiles(in_items, inner);
    results = pieces.add<float>((choices + tokens) * op.x.cols);
  }
  Pieces pieces;
  PlanRoom plan;
  std::size_t x, x_routed, h, h_routed, results;
};

}  // namespace

bool run_many(Context& c, const Experts& op) {
  const ExpertWeights& r = op.routed_like;
  const std::int64_t tokens = op.x.rows;
  const std::int64_t k = op.experts.cols;
  const std::int64_t choices = tokens * k;
  if (tokens < kManyRows && choices <= kManyEach * op.n_routed) return false;
  const std::int64_t most_items = std::min<std::int64_t>(choices, op.n_routed + choices / kManyTokens);
  const Room room(op, most_items);
  std::byte* const base = c.scratch->take(room.pieces.bytes(), c.fault);
  const Plan plan = room.plan.in(base);
  const Mat<float> results = mat(reinterpret_cast<float*>(base + room.results), choices + tokens, op.y.cols);

  make_plan(c, op.experts, op.weights, op.n_routed, kManyTokens, plan, base + room.plan.counts);
  const TileRows all{.rows = tokens};
  const TileRows entries{.items = plan.items, .n_items = plan.n_items, .most_items = most_items};
  TileRows chosen = entries;
  chosen.list = plan.list;
  const CodeTiles x = make_code_tiles(c, op.x, all, base + room.x);
  const CodeTiles x_routed = gather_code_tiles(c, x, chosen, base + room.x_routed);
  const Matmul routed{.w = r.w1,
                      .w3 = r.w3,
                      .table = op.routed,
                      .part = Part::kGate,
                      .x = {},
                      .items = plan.items,
                      .n_items = plan.n_items,
                      .most_items = most_items,
                      .tokens_an_item = kManyTokens,
                      .weights = plan.weights,
                      .swiglu_limit = op.swiglu_limit,
                      .y = {},
                      .carrier = op.carrier};
  const Matmul shared{.w = op.shared.w1,
                      .w3 = op.shared.w3,
                      .part = Part::kGate,
                      .x = {},
                      .rows = tokens,
                      .swiglu_limit = op.swiglu_limit,
                      .y = {},
                      .carrier = op.carrier};
  const CodeTiles h = code_tiles_in(all, r.w1.rows, base + room.h);
  const CodeTiles h_routed = code_tiles_in(entries, r.w1.rows, base + room.h_routed);
  run_codes_many(c, "shared_gate", {.m = shared, .x = {}, .expert = true}, x, h);
  run_codes_many(c, "experts_gate", {.m = routed, .x = {}, .expert = true}, x_routed, h_routed);

  const Matmul shared_down{
      .w = op.shared.w2, .x = {}, .rows = tokens, .y = results.slice(choices, tokens), .carrier = op.carrier};
  const Matmul routed_down{.w = r.w2,
                           .table = op.routed,
                           .x = {},
                           .items = plan.items,
                           .n_items = plan.n_items,
                           .most_items = most_items,
                           .tokens_an_item = kManyTokens,
                           .y = results.slice(0, choices),
                           .carrier = op.carrier};
  run_codes_many(c, "shared_down", {.m = shared_down, .x = {}, .expert = true}, h);
  run_codes_many(c, "experts_down", {.m = routed_down, .x = {}, .expert = true}, h_routed);
  sum_experts(c, results.data, plan.place, static_cast<int>(k), op.y, op.carrier);
  return true;
}

}  // namespace fathom::ops::cuda
