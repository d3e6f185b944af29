#include "base/check.h"
#include "ops/cpu.h"

namespace fathom::ops::cpu {

void run(const MtpInput& op, Context& ctx) {
  const std::int64_t d = op.e.cols;
  const std::int64_t streams = op.x.cols / d;
  FATHOM_CHECK(op.h.rows == op.e.rows * streams && op.h.cols == d, "one h row per stream");
  ctx.pool.parallel_for(op.h.rows, grain(op.h.rows, d, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* e = op.e.row(r / streams);
      const float* h = op.h.row(r);
      float* x = op.x.row(r / streams) + r % streams * d;
      for (std::int64_t i = 0; i < d; ++i) x[i] = e[i] + h[i];
    }
  });
}

}  // namespace fathom::ops::cpu
