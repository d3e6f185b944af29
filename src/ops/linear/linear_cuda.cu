#include "ops/cuda/launch.cuh"
#include "ops/cuda/matmul.h"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {

void run(Context& c, const Linear& op) {
  check(op);
  FATHOM_CHECK(!op.quantise_x || op.groups == 1 || op.w.cols % kBlock == 0, "blocks of activations inside a group");
  if (op.x.rows == 0) return;
  Values values = op.x_carrier == Carrier::kBf16 ? Values::kBf16 : Values::kF32;
  if (op.quantise_x) values = Values::kQuantise;
  std::byte* memory = c.scratch->take(planes_bytes(op.x.rows * op.groups, op.w.cols, values), c.fault);
  const Planes x =
      make_planes(c, {.x = op.x, .groups = op.groups, .values = values, .order = order_for(op.w), .memory = memory});
  run_matmul(c, "linear",
             {.w = op.w, .groups = op.groups, .x = x, .rows = op.x.rows, .y = op.y, .carrier = op.carrier});
}

}  // namespace fathom::ops::cuda
