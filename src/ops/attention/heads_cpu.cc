#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/heads_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// Heads [begin, end), counted through all tokens.
void NormHeads(const QueryHeads& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = op.q.cols / op.heads;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t t = i / op.heads;
    float* q = op.q.row(t) + i % op.heads * dim;
    const float rho = inverse_rms(q, dim, op.eps);
    for_each_register(dim, [&](auto d, std::int64_t j)
                               HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, q + j), hn::Set(d, rho)), d, q + j); });
    rotate(q, dim, op.cos.row(t), op.sin.row(t), op.cos.cols, 1);
  }
}

void FinishEntries(const WindowEntries& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    float* kv = op.kv.row(t);
    rms_norm(kv, op.norm_weight, op.kv.cols, op.eps, kv);
    rotate(kv, op.kv.cols, op.cos.row(t), op.sin.row(t), op.cos.cols, 1);
    if (op.quantise) fp8_round_trip(kv, op.kv.cols - 2 * op.cos.cols, quant::kEntryBlock);
  }
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {
HWY_EXPORT(NormHeads);
HWY_EXPORT(FinishEntries);
}  // namespace

void run(const QueryHeads& op, Context& ctx) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  const std::int64_t n = op.q.rows * op.heads;
  ctx.pool.parallel_for(n, grain(n, dim, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(NormHeads)(op, begin, end);
  });
}

void run(const WindowEntries& op, Context& ctx) {
  ctx.pool.parallel_for(op.kv.rows, grain(op.kv.rows, 4 * op.kv.cols, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(FinishEntries)(op, begin, end);
                        });
}

}  // namespace fathom::ops::cpu
#endif
