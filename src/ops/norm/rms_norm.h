// y = x / sqrt(mean(x^2) + eps) * w, per row. model.md 1.
//
// Shapes: x, y [T, n], w [n]; y may be x itself (same data and ld). T = 0 is a no-op.
// Sums in f32 or wider, rounded once on store, to the carrier. A NaN or infinity in a row stays in that row.
#pragma once

#include <span>

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

struct RmsNorm {
  Mat<const float> x;
  const float* w = nullptr;  // [n]
  Mat<float> y;
  float eps = 0;
  Carrier carrier = Carrier::kF32;
};

namespace ref {
void run(const RmsNorm& op);
}

}  // namespace fathom::ops
