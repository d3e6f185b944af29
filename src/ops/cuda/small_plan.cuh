// The plan of a few tokens' experts, made by every block that needs it: the choices of all tokens sorted by expert,
// tokens ascending within one, and cut into items.
#pragma once

#include <cstdint>

#include "ops/cuda/matmul_common.cuh"

namespace fathom::ops::cuda {

struct SmallPlan {
  int n_items;
  Item items[kFewChoices];
  std::int32_t list[kFewChoices];   // the token of each sorted choice
  float weights[kFewChoices];       // its weight
  std::int32_t place[kFewChoices];  // where choice (t, j) went, t * k + j
  std::int32_t chosen[kFewChoices];
  std::int32_t begins[kFewChoices];  // whether the choice is the first of an item
  WeightView w[kFewChoices][2];      // of the items: w1 and w3, or w2
};

// By all threads of a block of at least kFewChoices. Ends with a barrier.
template <Part kPart>
__device__ inline void make_small_plan(const Choices& of, SmallPlan& plan) {
  const int n = of.tokens * of.k;
  const auto i = static_cast<int>(threadIdx.x);
  if (i < n) plan.chosen[i] = of.experts[i / of.k * of.experts_ld + i % of.k];
  const float weight = i < n ? of.weights[i / of.k * of.weights_ld + i % of.k] : 0.0F;
  __syncthreads();
  int lower = 0;
  int same_before = 0;
  int same = 0;
  const int mine = i < n ? plan.chosen[i] : 0;
  for (int j = 0; i < n && j < n; ++j) {
    const int other = plan.chosen[j];
    lower += other < mine ? 1 : 0;
    same += other == mine ? 1 : 0;
    same_before += other == mine && j < i ? 1 : 0;
  }
  const bool begins = i < n && same_before % kListTokens == 0;
  if (i < n) plan.begins[i] = begins ? 1 : 0;
  const int n_items = __syncthreads_count(begins);
  if (i == 0) plan.n_items = n_items;
  if (i < n) {
    const int at = lower + same_before;
    plan.list[at] = i / of.k;
    plan.weights[at] = weight;
    plan.place[i] = at;
    if (begins) {
      int item = same_before / kListTokens;
      for (int j = 0; j < n; ++j) item += plan.begins[j] != 0 && plan.chosen[j] < mine ? 1 : 0;
      plan.items[item] = {mine, at, min(kListTokens, same - same_before)};
      const ExpertWeights& e = of.table[mine];
      if (kPart == Part::kGate) {
        plan.w[item][0] = {e.w1.data, e.w1.scales};
        plan.w[item][1] = {e.w3.data, e.w3.scales};
      } else {
        plan.w[item][0] = {e.w2.data, e.w2.scales};
      }
    }
  }
  __syncthreads();
}

}  // namespace fathom::ops::cuda
