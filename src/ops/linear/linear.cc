#include "ops/linear/linear.h"

#include "base/check.h"

namespace fathom::ops {

void check(const Linear& op) {
  FATHOM_CHECK(op.groups >= 1 && op.w.rows % op.groups == 0, "groups divide the outputs");
  FATHOM_CHECK(op.x.cols == op.groups * op.w.cols, "x has one column per input");
  FATHOM_CHECK(op.y.cols == op.w.rows, "y has one column per output");
  FATHOM_CHECK(op.x.rows == op.y.rows, "x and y have the same rows");
  FATHOM_CHECK(!op.quantise_x || op.w.quantised(), "only FP8 and FP4 weights see quantised activations");
}

}  // namespace fathom::ops
