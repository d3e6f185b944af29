#include <bit>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/indexer/index_query_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// Heads [begin, end), counted through all tokens.
void TurnQueries(const IndexQuery& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = op.q.cols / op.heads;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t t = i / op.heads;
    float* q = op.q.row(t) + i % op.heads * dim;
    rotate(q, dim, op.cos.row(t), op.sin.row(t), op.cos.cols, 1);
    hadamard(q, dim);
    if (op.quantise) fp4_round_trip(q, dim);
  }
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {
HWY_EXPORT(TurnQueries);
}  // namespace

void run(const IndexQuery& op, Context& ctx) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  FATHOM_CHECK(std::has_single_bit(static_cast<std::uint64_t>(dim)), "a Hadamard transform needs a power of two");
  const std::int64_t n = op.q.rows * op.heads;
  ctx.pool.parallel_for(n, grain(n, 8 * dim, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(TurnQueries)(op, begin, end);
  });
}

}  // namespace fathom::ops::cpu
#endif
