#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/compressor/compress_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vector-inl.h"

#ifndef FATHOM_OPS_COMPRESSOR_COMPRESS_CPU_CC_
#define FATHOM_OPS_COMPRESSOR_COMPRESS_CPU_CC_
namespace fathom::ops {
namespace {

// One token's contribution to an entry: where its columns for this entry begin.
struct PoolRow {
  const float* kv;
  const float* score;
};

}  // namespace
}  // namespace fathom::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// Per channel, a softmax over the rows applied to their values; rows in order.
void PoolRows(const PoolRow* rows, std::int64_t n, std::int64_t dim, float* entry) {
  for_each_register(dim, [&](auto d, std::int64_t c) HWY_ATTR {
    auto top = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (std::int64_t j = 0; j < n; ++j) top = hn::Max(top, hn::LoadU(d, rows[j].score + c));
    auto weights = hn::Zero(d);
    auto sum = hn::Zero(d);
    for (std::int64_t j = 0; j < n; ++j) {
      const auto w = exponential(d, hn::Sub(hn::LoadU(d, rows[j].score + c), top));
      weights = hn::Add(weights, w);
      sum = hn::MulAdd(w, hn::LoadU(d, rows[j].kv + c), sum);
    }
    hn::StoreU(hn::Div(sum, weights), d, entry + c);
  });
}

void FinishEntry(const Compress& op, std::int64_t dim, const float* cos, const float* sin, float* entry) {
  rms_norm(entry, op.norm_weight, dim, op.eps, entry);
  rotate(entry, dim, cos, sin, op.rope_dim / 2, 1);
  if (op.kind == EntryKind::kIndex) {
    hadamard(entry, dim);
    if (op.quantise) fp4_round_trip(entry, dim);
  } else if (op.quantise) {
    fp8_round_trip(entry, dim - op.rope_dim, quant::kEntryBlock);
  }
}

void AddBias(const float* bias, std::int64_t n, float* x) {
  for_each_register(n, [&](auto d, std::int64_t i)
                           HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i)), d, x + i); });
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(PoolRows);
HWY_EXPORT(FinishEntry);
HWY_EXPORT(AddBias);

// What one thread works with.
struct Bench {
  PoolRow* rows;  // [2 * ratio]
  float* entry;   // [Dc]
  float* cos;     // [R/2]
  float* sin;
};

PoolRow row_at(const Compress& op, const Segment& s, std::int32_t position, std::int64_t offset) {
  if (position >= s.start) {
    const std::int64_t t = s.first_row + position - s.start;
    return {op.kv.row(t) + offset, op.score.row(t) + offset};
  }
  const float* r = op.ring.row(s.slot, position);
  return {r + offset, r + op.ring.width + offset};
}

void make_entry(const Compress& op, const Segment& s, std::int32_t w, const Bench& bench) {
  const std::int32_t ratio = op.entries.ratio;
  const std::int64_t dim = op.entries.codec.dim;
  const bool overlap = op.ring.width == 2 * dim;
  std::int64_t n = 0;
  for (std::int32_t p = ratio * (w - 1); overlap && w > 0 && p < ratio * w; ++p) bench.rows[n++] = row_at(op, s, p, 0);
  for (std::int32_t p = ratio * w; p < ratio * (w + 1); ++p) bench.rows[n++] = row_at(op, s, p, overlap ? dim : 0);
  HWY_DYNAMIC_DISPATCH(PoolRows)(bench.rows, n, dim, bench.entry);
  rope_angles(ratio * w, op.frequencies, op.rope_dim / 2, bench.cos, bench.sin);
  HWY_DYNAMIC_DISPATCH(FinishEntry)(op, dim, bench.cos, bench.sin, bench.entry);
  op.entries.codec.encode({bench.entry, static_cast<std::size_t>(dim)}, op.entries.at(s, w));
}

void keep_rows(const Compress& op, const Segment& s) {
  for (std::int32_t k = std::max(0, s.tokens - op.ring.capacity); k < s.tokens; ++k) {
    float* r = op.ring.row(s.slot, s.start + k);
    std::copy_n(op.kv.row(s.first_row + k), op.ring.width, r);
    std::copy_n(op.score.row(s.first_row + k), op.ring.width, r + op.ring.width);
  }
}

}  // namespace

void run(const Compress& op, Context& ctx) {
  FATHOM_CHECK(op.kv.cols == op.ring.width && op.score.cols == op.ring.width, "projections of the ring's width");
  const std::int32_t ratio = op.entries.ratio;
  const std::int64_t dim = op.entries.codec.dim;
  FATHOM_CHECK(op.kind != EntryKind::kIndex || std::has_single_bit(static_cast<std::uint64_t>(dim)),
               "a Hadamard transform needs a power of two");
  const std::int64_t tokens = op.batch.tokens;
  ctx.pool.parallel_for(tokens, grain(tokens, op.score.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      HWY_DYNAMIC_DISPATCH(AddBias)
      (op.ape + op.batch.positions[t] % ratio * op.score.cols, op.score.cols, op.score.row(t));
    }
  });

  // All new entries as one list: entry i is the (i - first[s])-th of segment s.
  auto* first = ctx.scratch.take<std::int64_t>(op.batch.n_segments + 1);
  first[0] = 0;
  for (std::int32_t i = 0; i < op.batch.n_segments; ++i) {
    const Segment& s = op.batch.segments[i];
    first[i + 1] = first[i] + (s.start + s.tokens) / ratio - s.start / ratio;
  }
  auto* benches = ctx.scratch.take<Bench>(ctx.pool.size());
  for (int i = 0; i < ctx.pool.size(); ++i) {
    benches[i] = {ctx.scratch.take<PoolRow>(2 * ratio), ctx.scratch.take<float>(dim),
                  ctx.scratch.take<float>(op.rope_dim / 2), ctx.scratch.take<float>(op.rope_dim / 2)};
  }
  const std::int64_t n = first[op.batch.n_segments];
  ctx.pool.parallel_for(n, grain(n, 32 * ratio * dim, 1, ctx), [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto segment = std::upper_bound(first, first + op.batch.n_segments + 1, i) - first - 1;
      const Segment& s = op.batch.segments[segment];
      make_entry(op, s, static_cast<std::int32_t>(s.start / ratio + i - first[segment]), benches[worker]);
    }
  });
  for (std::int32_t i = 0; i < op.batch.n_segments; ++i) keep_rows(op, op.batch.segments[i]);
}

}  // namespace fathom::ops::cpu
#endif
