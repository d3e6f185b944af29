#include <cmath>

#include "base/check.h"
#include "ops/norm/rms_norm.h"

namespace fathom::ops::ref {

void run(const RmsNorm& op) {
  FATHOM_CHECK(op.x.rows == op.y.rows && op.x.cols == op.y.cols, "x and y have the same shape");
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const float* x = op.x.row(t);
    float* y = op.y.row(t);
    double squares = 0;
    for (std::int64_t i = 0; i < op.x.cols; ++i) squares += double{x[i]} * double{x[i]};
    const double rho = 1.0 / std::sqrt(squares / static_cast<double>(op.x.cols) + double{op.eps});
    for (std::int64_t i = 0; i < op.x.cols; ++i) y[i] = carry(double{op.w[i]} * (double{x[i]} * rho), op.carrier);
  }
}

}  // namespace fathom::ops::ref
