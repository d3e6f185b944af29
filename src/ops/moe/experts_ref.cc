#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/linear/linear.h"
#include "ops/moe/experts.h"

namespace fathom::ops::ref {
namespace {

// silu(a) * b with the clamps of model.md 8.2.
double swiglu(double a, double b, double limit) {
  if (limit > 0) {
    b = std::clamp(b, -limit, limit);
    a = std::min(a, limit);
  }
  return a / (1.0 + std::exp(-a)) * b;
}

}  // namespace

void run_expert(const ExpertWeights& e, Mat<const float> x, const float* weights, float swiglu_limit, bool quantise,
                Carrier carrier, Mat<float> y) {
  const std::int64_t inner = e.w1.rows;
  std::vector<float> a(static_cast<std::size_t>(x.rows * inner));
  std::vector<float> b(a.size());
  const bool fp8 = quantise && e.w1.quantised();
  run(Linear{.x = x, .w = e.w1, .y = mat(a, x.rows, inner), .quantise_x = fp8, .carrier = carrier});
  run(Linear{.x = x, .w = e.w3, .y = mat(b, x.rows, inner), .quantise_x = fp8, .carrier = carrier});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double weight = weights == nullptr ? 1.0 : double{weights[static_cast<std::int64_t>(i) / inner]};
    a[i] = carry(weight * swiglu(a[i], b[i], swiglu_limit), carrier);
  }
  run(Linear{.x = mat(a, x.rows, inner), .w = e.w2, .y = y, .quantise_x = fp8, .carrier = carrier});
}

void run(const Experts& op) {
  const std::int64_t d = op.x.cols;
  FATHOM_CHECK(op.y.rows == op.x.rows && op.y.cols == d, "y has the shape of x");
  std::vector<float> one(static_cast<std::size_t>(d));
  std::vector<double> sum(static_cast<std::size_t>(d));
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const auto add = [&](const ExpertWeights& e, const float* weight) {
      run_expert(e, op.x.slice(t, 1), weight, op.swiglu_limit, op.quantise, op.carrier, mat(one, 1, d));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double{one[i]};
    };
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t k = 0; k < op.experts.cols; ++k) {
      const std::int32_t e = op.experts.row(t)[k];
      FATHOM_CHECK(0 <= e && e < op.n_routed, "the router names experts that exist");
      add(op.routed[e], &op.weights.row(t)[k]);
    }
    add(op.shared, nullptr);
    for (std::int64_t i = 0; i < d; ++i) op.y.row(t)[i] = carry(sum[static_cast<std::size_t>(i)], op.carrier);
  }
}

}  // namespace fathom::ops::ref
