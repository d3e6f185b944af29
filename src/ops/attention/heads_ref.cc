#include <cmath>

#include "base/check.h"
#include "ops/attention/heads.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "quant/block.h"

namespace fathom::ops::ref {

void run(const QueryHeads& op) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  for (std::int64_t t = 0; t < op.q.rows; ++t) {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      float* q = op.q.row(t) + h * dim;
      double squares = 0;
      for (std::int64_t i = 0; i < dim; ++i) squares += double{q[i]} * double{q[i]};
      const double rho = 1.0 / std::sqrt(squares / static_cast<double>(dim) + double{op.eps});
      for (std::int64_t i = 0; i < dim; ++i) q[i] = carry(double{q[i]} * rho, op.carrier);
      rotate(q, dim, op.cos.row(t), op.sin.row(t), op.cos.cols, Turn::kForward, op.carrier);
    }
  }
}

void run(const WindowEntries& op) {
  run(RmsNorm{.x = op.kv, .w = op.norm_weight, .y = op.kv, .eps = op.eps, .carrier = op.carrier});
  for (std::int64_t t = 0; t < op.kv.rows; ++t) {
    float* kv = op.kv.row(t);
    rotate(kv, op.kv.cols, op.cos.row(t), op.sin.row(t), op.cos.cols, Turn::kForward, op.carrier);
    if (op.quantise) {
      quant::fp8_round_trip({kv, static_cast<std::size_t>(op.kv.cols - 2 * op.cos.cols)}, quant::kEntryBlock);
    }
  }
}

}  // namespace fathom::ops::ref
