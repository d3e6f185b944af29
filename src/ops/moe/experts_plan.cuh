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

}  // namespace fathom::ops::cuda
