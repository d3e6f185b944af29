#include <vector>

#include "ops/linear/linear.h"
#include "quant/block.h"

namespace fathom::ops::ref {

void run(const Linear& op) {
  check(op);
  std::vector<float> x;
  x.reserve(static_cast<std::size_t>(op.x.rows * op.x.cols));
  for (std::int64_t t = 0; t < op.x.rows; ++t) x.insert(x.end(), op.x.row(t), op.x.row(t) + op.x.cols);
  if (op.quantise_x) {
    for (std::int64_t t = 0; t < op.x.rows; ++t) {
      quant::fp8_round_trip({x.data() + t * op.x.cols, static_cast<std::size_t>(op.x.cols)}, quant::kActBlock);
    }
  }
  const std::int64_t group_rows = op.w.rows / op.groups;
  std::vector<float> w(static_cast<std::size_t>(op.w.cols));
  for (std::int64_t o = 0; o < op.w.rows; ++o) {
    dequantise_row(op.w, o, w.data());
    for (std::int64_t t = 0; t < op.x.rows; ++t) {
      const float* xt = x.data() + t * op.x.cols + o / group_rows * op.w.cols;
      double sum = 0;
      for (std::int64_t i = 0; i < op.w.cols; ++i) sum += double{w[static_cast<std::size_t>(i)]} * double{xt[i]};
      op.y.row(t)[o] = carry(sum, op.carrier);
    }
  }
}

}  // namespace fathom::ops::ref
