#include "base/check.h"
#include "ops/cpu.h"

namespace fathom::ops::cpu {

void run(const RopeTable& op, Context& ctx) {
  FATHOM_CHECK(op.cos.rows == op.sin.rows && op.cos.cols == op.sin.cols, "cos and sin have the same shape");
  ctx.pool.parallel_for(op.cos.rows, grain(op.cos.rows, 256 * op.cos.cols, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          for (std::int64_t t = begin; t < end; ++t) {
                            rope_angles(op.positions[t], op.frequencies, op.cos.cols, op.cos.row(t), op.sin.row(t));
                          }
                        });
}

}  // namespace fathom::ops::cpu
