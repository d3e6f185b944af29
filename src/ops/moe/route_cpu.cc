// The reference's arithmetic (doubles: a gate decides between experts) without its allocations, a thread to a few
// tokens.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/cpu.h"

namespace fathom::ops::cpu {
namespace {

struct Worker {
  double* sigma;        // [E]
  double* score;        // [E]
  std::int32_t* order;  // [E]
};

double sqrt_softplus(float g) {
  const double x = g;
  return std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
}

void pick_highest(const Worker& w, std::int64_t n, const float* bias, std::int64_t k, std::int32_t* experts) {
  for (std::int64_t e = 0; e < n; ++e) w.score[e] = w.sigma[e] + (bias != nullptr ? double{bias[e]} : 0.0);
  std::iota(w.order, w.order + n, 0);
  std::partial_sort(w.order, w.order + k, w.order + n, [score = w.score](std::int32_t a, std::int32_t b) {
    const bool a_nan = std::isnan(score[a]);
    const bool b_nan = std::isnan(score[b]);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && score[a] != score[b]) return score[a] > score[b];
    return a < b;
  });
  std::copy_n(w.order, k, experts);
}

void route_token(const Route& op, std::int64_t t, const Worker& w) {
  const std::int64_t n = op.logits.cols;
  const std::int64_t k = op.experts.cols;
  std::transform(op.logits.row(t), op.logits.row(t) + n, w.sigma, sqrt_softplus);
  std::int32_t* experts = op.experts.row(t);
  if (op.table != nullptr) {
    std::copy_n(op.table + op.ids[t] * k, k, experts);
  } else {
    pick_highest(w, n, op.bias, k, experts);
  }
  std::sort(experts, experts + k);
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += w.sigma[experts[i]];
  for (std::int64_t i = 0; i < k; ++i) {
    op.weights.row(t)[i] = static_cast<float>(w.sigma[experts[i]] / sum * double{op.route_scale});
  }
}

}  // namespace

void run(const Route& op, Context& ctx) {
  const std::int64_t n = op.logits.cols;
  FATHOM_CHECK(op.weights.cols == op.experts.cols && op.experts.cols <= n, "k of E experts");
  auto* workers = ctx.scratch.take<Worker>(ctx.pool.size());
  for (int i = 0; i < ctx.pool.size(); ++i) {
    workers[i] = {ctx.scratch.take<double>(n), ctx.scratch.take<double>(n), ctx.scratch.take<std::int32_t>(n)};
  }
  ctx.pool.parallel_for(op.logits.rows, grain(op.logits.rows, 256 * n, 1, ctx),
                        [&](std::int64_t begin, std::int64_t end, int worker) {
                          for (std::int64_t t = begin; t < end; ++t) route_token(op, t, workers[worker]);
                        });
}

}  // namespace fathom::ops::cpu
