// Mixture of experts: the chosen experts of every token and the shared one, summed. model.md 8.2, 8.3.
//
//   a = x W1^T, b = x W3^T;  b clamped to +-limit, a from above;  z = silu(a) * b;  routed: z *= weight
//   y_e = z W2^T;  y = sum over the token's experts, ascending, in f32, then + the shared expert, then one rounding
// Quantised weights see x and z through FP8 in blocks of 128 where `quantise`.
#pragma once

#include <cstdint>

#include "ops/numerics.h"
#include "ops/weight.h"
#include "tensor/view.h"

namespace fathom::ops {

// Weight::quantised_inputs is the same for all matrices of all experts of a layer.
struct ExpertWeights {
  Weight w1;  // [I, d] gate
  Weight w3;  // [I, d] up
  Weight w2;  // [d, I] down
};

struct Experts {
  Mat<const float> x;                     // [T, d], of carrier values
  const ExpertWeights* routed = nullptr;  // [n_routed], in backend memory
  std::int32_t n_routed = 0;
  ExpertWeights routed_like;  // any of them: the shapes and types that all have, for whoever launches the work
  ExpertWeights shared;
  Mat<const std::int32_t> experts;  // [T, k], ascending, each in [0, n_routed)
  Mat<const float> weights;         // [T, k]
  float swiglu_limit = 0;           // 0: no clamp
  bool quantise = false;
  Mat<float> y;  // [T, d]; not x
  Carrier carrier = Carrier::kF32;
};

namespace ref {
void run(const Experts& op);

// One expert over all rows of x; weights [T] or null (shared). Exposed for the golden vectors. y [T, d].
void run_expert(const ExpertWeights& e, Mat<const float> x, const float* weights, float swiglu_limit, bool quantise,
                Carrier carrier, Mat<float> y);
}  // namespace ref

}  // namespace fathom::ops
