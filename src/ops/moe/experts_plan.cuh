// Which tokens every expert computes: the choices of all tokens sorted by expert, tokens ascending within one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "tensor/view.h"

namespace fathom::ops::cuda {

inline constexpr int kMostExperts = 1024;

// What a product with `w` makes of its inputs.
inline Values values_for(const Weight& w, bool quantise, Carrier carrier) {
  if (quantise && w.quantised()) return Values::kQuantise;
  return carrier == Carrier::kBf16 ? Values::kBf16 : Values::kF32;
}

struct Plan {
  std::int32_t* list;     // [T*k] the token of each sorted choice
  float* weights;         // [T*k] its weight
  std::int32_t* place;    // [T*k] where the choice (t, j) went
  Item* items;            // [most items]
  std::int32_t* n_items;  // [1]
};

// Memory that making a plan takes beside the plan.
std::size_t plan_bytes(std::int64_t choices, int n_experts);

// experts, weights: [T, k], ids below n_experts, which is at most kMostExperts; memory: plan_bytes, aligned to 256. An
// item has up to tokens_an_item choices of one expert; items are in order of the experts.
void make_plan(Context& c, Mat<const std::int32_t> experts, Mat<const float> weights, int n_experts, int tokens_an_item,
               const Plan& plan, std::byte* memory);

// Where a plan and the memory that making it takes are among the pieces of a call.
struct PlanRoom {
  PlanRoom(Pieces& pieces, std::int64_t choices, std::int64_t most_items, int n_experts)
      : list(pieces.add<std::int32_t>(choices)),
        weights(pieces.add<float>(choices)),
        place(pieces.add<std::int32_t>(choices)),
        items(pieces.add<Item>(most_items)),
        n_items(pieces.add<std::int32_t>(1)),
        counts(pieces.add<std::byte>(static_cast<std::int64_t>(plan_bytes(choices, n_experts)))) {}

  Plan in(std::byte* base) const {
    return {.list = reinterpret_cast<std::int32_t*>(base + list),
            .weights = reinterpret_cast<float*>(base + weights),
            .place = reinterpret_cast<std::int32_t*>(base + place),
            .items = reinterpret_cast<Item*>(base + items),
            .n_items = reinterpret_cast<std::int32_t*>(base + n_items)};
  }

  std::size_t list, weights, place, items, n_items, counts;
};

}  // namespace fathom::ops::cuda
