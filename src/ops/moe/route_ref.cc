#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/moe/route.h"

namespace fathom::ops::ref {
namespace {

double sqrt_softplus(float g) {
  const double x = g;
  return std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
}

void pick_highest(const std::vector<double>& sigma, const float* bias, std::int64_t k, std::int32_t* experts) {
  std::vector<double> score(sigma.size());
  for (std::size_t e = 0; e < score.size(); ++e) score[e] = sigma[e] + (bias != nullptr ? double{bias[e]} : 0.0);
  std::vector<std::int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&score](std::int32_t a, std::int32_t b) {
    const double x = score[static_cast<std::size_t>(a)];
    const double y = score[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (!std::isnan(x) && x != y) return x > y;
    return a < b;
  });
  std::copy_n(order.begin(), k, experts);
}

}  // namespace

void run(const Route& op) {
  const std::int64_t k = op.experts.cols;
  FATHOM_CHECK(op.weights.cols == k && k <= op.logits.cols, "k of E experts");
  std::vector<double> sigma(static_cast<std::size_t>(op.logits.cols));
  for (std::int64_t t = 0; t < op.logits.rows; ++t) {
    std::transform(op.logits.row(t), op.logits.row(t) + op.logits.cols, sigma.begin(), sqrt_softplus);
    std::int32_t* experts = op.experts.row(t);
    if (op.table != nullptr) {
      std::copy_n(op.table + op.ids[t] * k, k, experts);
    } else {
      pick_highest(sigma, op.bias, k, experts);
    }
    std::sort(experts, experts + k);
    double sum = 0;
    for (std::int64_t i = 0; i < k; ++i) sum += sigma[static_cast<std::size_t>(experts[i])];
    for (std::int64_t i = 0; i < k; ++i) {
      op.weights.row(t)[i] = static_cast<float>(sigma[static_cast<std::size_t>(experts[i])] / sum * op.route_scale);
    }
  }
}

}  // namespace fathom::ops::ref
