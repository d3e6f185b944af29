#include <algorithm>

#include "base/check.h"
#include "ops/cpu.h"

namespace fathom::ops::cpu {

void run(const Embed& op, Context& ctx) {
  FATHOM_CHECK(op.x.cols == op.streams * op.table.cols, "x holds one copy per stream");
  ctx.pool.parallel_for(
      op.x.rows, grain(op.x.rows, 4 * op.x.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t t = begin; t < end; ++t) {
          FATHOM_CHECK(op.ids[t] >= 0 && op.ids[t] < op.table.rows, "token ids are inside the vocabulary");
          float* x = op.x.row(t);
          dequantise_row(op.table, op.ids[t], x);
          for (std::int64_t c = 1; c < op.streams; ++c) std::copy_n(x, op.table.cols, x + c * op.table.cols);
        }
      });
}

}  // namespace fathom::ops::cpu
