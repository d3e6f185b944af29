// The router: which experts a token goes to, and with what weights. model.md 8.1.
//
// sigma = sqrt(softplus(logit)). Score layers pick the k highest of sigma + bias, ties by the lower expert; hash layers
// take the k experts their table names for the token id. Weights are the chosen sigmas (no bias), divided by their sum,
// times route_scale. Experts come out ascending, as they are later summed. Whatever the logits (NaN ranks lowest), the
// experts are valid; table entries are checked when the model is loaded.
#pragma once

#include "tensor/view.h"

namespace fathom::ops {

struct Route {
  Mat<const float> logits;              // [T, E], f32 gate products
  const float* bias = nullptr;          // [E]; score layers
  const std::int32_t* table = nullptr;  // [V, k]; hash layers, then bias is null
  const std::int32_t* ids = nullptr;    // [T] input token ids; hash layers
  float route_scale = 1;
  Mat<std::int32_t> experts;  // [T, k], ascending
  Mat<float> weights;         // [T, k]
};

namespace ref {
void run(const Route& op);
}

}  // namespace fathom::ops
