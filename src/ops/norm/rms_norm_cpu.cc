#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rms_norm_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

void NormRows(const RmsNorm& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) rms_norm(op.x.row(t), op.w, op.x.cols, op.eps, op.y.row(t));
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {
HWY_EXPORT(NormRows);
}  // namespace

void run(const RmsNorm& op, Context& ctx) {
  FATHOM_CHECK(op.x.rows == op.y.rows && op.x.cols == op.y.cols, "x and y have the same shape");
  ctx.pool.parallel_for(op.x.rows, grain(op.x.rows, op.x.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(NormRows)(op, begin, end);
  });
}

}  // namespace fathom::ops::cpu
#endif
