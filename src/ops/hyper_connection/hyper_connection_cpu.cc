#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/hyper_connection/hyper_connection_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

float InverseRms(const float* x, std::int64_t n, float eps) { return inverse_rms(x, n, eps); }

// u = sum over c, ascending, of weights[c] * stream c; then RMSNorm(u) where there is a weight for it.
void Weigh(const float* v, const float* weights, std::int64_t streams, std::int64_t dim, const float* norm_weight,
           float eps, float* u) {
  for_each_register(dim, [&](auto d, std::int64_t i) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < streams; ++c) {
      sum = hn::MulAdd(hn::Set(d, weights[c]), hn::LoadU(d, v + c * dim + i), sum);
    }
    hn::StoreU(sum, d, u + i);
  });
  if (norm_weight != nullptr) rms_norm(u, norm_weight, dim, eps, u);
}

// Columns [begin, end) of every stream of token t: post first, then the streams ascending.
void PutBack(const HcPost& op, std::int64_t t, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kMost = 16;
  const std::int64_t streams = op.post.cols;
  const std::int64_t dim = op.y.cols;
  const float* v = op.streams.row(t) + begin;
  const float* y = op.y.row(t) + begin;
  const float* comb = op.comb.row(t);
  float* out = op.out.row(t) + begin;
  for_each_register(end - begin, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::Vec<decltype(d)> in[kMost];  // read before `out`, which may be the same memory
    for (std::int64_t c = 0; c < streams; ++c) in[c] = hn::LoadU(d, v + c * dim + i);
    const auto yi = hn::LoadU(d, y + i);
    for (std::int64_t j = 0; j < streams; ++j) {
      auto sum = hn::Mul(hn::Set(d, op.post.row(t)[j]), yi);
      for (std::int64_t c = 0; c < streams; ++c) sum = hn::MulAdd(hn::Set(d, comb[c * streams + j]), in[c], sum);
      hn::StoreU(sum, d, out + j * dim + i);
    }
  });
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(InverseRms);
HWY_EXPORT(Weigh);
HWY_EXPORT(PutBack);

constexpr std::int64_t kMostStreams = 16;

// rho * fn v for n rows of fn: [T, n], in scratch.
Mat<float> mixes(Mat<const float> streams, const float* fn, std::int64_t n, float eps, Context& ctx) {
  const Mat<float> m = mat(ctx.scratch.take<float>(streams.rows * n), streams.rows, n);
  const Weight w = {
      .dtype = DType::kF32, .data = reinterpret_cast<const std::byte*>(fn), .rows = n, .cols = streams.cols};
  run(Linear{.x = streams, .w = w, .y = m}, ctx);
  ctx.pool.parallel_for(m.rows, grain(m.rows, streams.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float rho = HWY_DYNAMIC_DISPATCH(InverseRms)(streams.row(t), streams.cols, eps);
      for (std::int64_t j = 0; j < n; ++j) m.row(t)[j] *= rho;
    }
  });
  return m;
}

}  // namespace

void run(const HcPre& op, Context& ctx) {
  const std::int64_t streams = op.post.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.x.cols && op.comb.cols == streams * streams, "C streams of d");
  FATHOM_CHECK(streams <= kMostStreams, "at most 16 streams");
  const Mat<float> m = mixes(op.streams, op.site.fn, 2 * streams + streams * streams, op.norm_eps, ctx);
  ctx.pool.parallel_for(m.rows, grain(m.rows, 2 * op.streams.cols, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          float pre[kMostStreams];
                          for (std::int64_t t = begin; t < end; ++t) {
                            split_sinkhorn(m.row(t), op.site, static_cast<std::int32_t>(streams), op.sinkhorn_iters,
                                           op.hc_eps, pre, op.post.row(t), op.comb.row(t));
                            HWY_DYNAMIC_DISPATCH(Weigh)
                            (op.streams.row(t), pre, streams, op.x.cols, op.norm_weight, op.norm_eps, op.x.row(t));
                          }
                        });
}

void run(const HcPost& op, Context& ctx) {
  const std::int64_t streams = op.post.cols;
  const std::int64_t dim = op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * dim && op.out.cols == streams * dim, "C streams of d");
  FATHOM_CHECK(streams <= kMostStreams, "at most 16 streams");
  constexpr std::int64_t kColumns = 1024;
  const std::int64_t blocks = (dim + kColumns - 1) / kColumns;
  const std::int64_t n = op.y.rows * blocks;
  const std::int64_t cost = std::min(dim, kColumns) * streams * (streams + 1) / 4;
  ctx.pool.parallel_for(n, grain(n, cost, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % blocks * kColumns;
      HWY_DYNAMIC_DISPATCH(PutBack)(op, i / blocks, first, std::min(first + kColumns, dim));
    }
  });
}

void run(const HcHead& op, Context& ctx) {
  const std::int64_t streams = op.streams.cols / op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols, "C streams of d");
  FATHOM_CHECK(streams <= kMostStreams, "at most 16 streams");
  const Mat<float> m = mixes(op.streams, op.site.fn, streams, op.norm_eps, ctx);
  ctx.pool.parallel_for(m.rows, grain(m.rows, 2 * op.streams.cols, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          float weights[kMostStreams];
                          for (std::int64_t t = begin; t < end; ++t) {
                            for (std::int64_t c = 0; c < streams; ++c) {
                              const double x = double{m.row(t)[c]} * double{op.site.scale[0]} + double{op.site.base[c]};
                              weights[c] = static_cast<float>(1.0 / (1.0 + std::exp(-x)) + double{op.hc_eps});
                            }
                            HWY_DYNAMIC_DISPATCH(Weigh)
                            (op.streams.row(t), weights, streams, op.y.cols, op.norm_weight, op.norm_eps, op.y.row(t));
                          }
                        });
}

void run(const StreamMean& op, Context& ctx) {
  const std::int64_t streams = op.streams.cols / op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols && streams <= kMostStreams, "C streams of d, at most 16");
  float weights[kMostStreams];
  std::fill_n(weights, streams, 1.0F / static_cast<float>(streams));
  ctx.pool.parallel_for(op.y.rows, grain(op.y.rows, op.streams.cols, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int) {
                          for (std::int64_t t = begin; t < end; ++t) {
                            HWY_DYNAMIC_DISPATCH(Weigh)
                            (op.streams.row(t), weights, streams, op.y.cols, nullptr, 0.0F, op.y.row(t));
                          }
                        });
}

}  // namespace fathom::ops::cpu
#endif
