// y = x W^T, per row; the only matrix product there is. model.md 9.1-9.4, 4.4.
//
// groups > 1 is the grouped output projection wo_a: W has groups * O rows, and the outputs of group g see only columns
// [g*K, (g+1)*K) of x, with K = w.cols.
//
// Shapes: x [T, groups * w.cols], y [T, w.rows]; y does not overlap x. T = 0 is a no-op.
// quantise_x: x passes through FP8 in blocks of 128 first (act_quant); legal only in front of quantised weights.
// Accumulates in f32 or wider; y is rounded once, to the carrier. Each y[t, o] depends on row t of x and row o of W
// alone, in an order that the shape of W fixes: the same bytes whatever T, the thread count or the other rows. A NaN in
// x stays in its row. Shape violations abort.
#pragma once

#include "ops/numerics.h"
#include "ops/weight.h"
#include "tensor/view.h"

namespace fathom::ops {

struct Linear {
  Mat<const float> x;
  Weight w;
  Mat<float> y;
  std::int32_t groups = 1;
  bool quantise_x = false;
  // What the values of x were rounded to before. Changes no result: x of bf16 values may be multiplied as bf16.
  Carrier x_carrier = Carrier::kF32;
  Carrier carrier = Carrier::kF32;
};

// Aborts where the shapes contradict each other.
void check(const Linear& op);

namespace ref {
void run(const Linear& op);
}

}  // namespace fathom::ops
