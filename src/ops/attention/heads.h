// What happens to queries and to window keys between their projections and attention. model.md 4.1, 4.2.
#pragma once

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

// Each head of q: divided by its root mean square (over all D dims, no weight), then rotated. In place.
struct QueryHeads {
  Mat<float> q;  // [T, H*D]
  std::int32_t heads = 0;
  Mat<const float> cos;  // [T, R/2], this layer's table
  Mat<const float> sin;
  float eps = 0;
  Carrier carrier = Carrier::kF32;
};

// kv: RMSNorm with weight over all D dims, rotated, the first D-R dims through FP8 in blocks of 64 where `quantise`.
// In place; the result is key and value both.
struct WindowEntries {
  Mat<float> kv;                       // [T, D]
  const float* norm_weight = nullptr;  // [D]
  Mat<const float> cos;
  Mat<const float> sin;
  float eps = 0;
  bool quantise = false;
  Carrier carrier = Carrier::kF32;
};

namespace ref {
void run(const QueryHeads& op);
void run(const WindowEntries& op);
}  // namespace ref

}  // namespace fathom::ops
