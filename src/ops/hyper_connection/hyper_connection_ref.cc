#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/norm/rms_norm.h"

namespace fathom::ops::ref {
namespace {

// rho * fn v, for n rows of fn.
std::vector<float> mix(const float* v, std::int64_t width, const float* fn, std::int64_t n, float eps) {
  double squares = 0;
  for (std::int64_t i = 0; i < width; ++i) squares += double{v[i]} * double{v[i]};
  const double rho = 1.0 / std::sqrt(squares / static_cast<double>(width) + double{eps});
  std::vector<float> m(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; ++j) {
    double dot = 0;
    for (std::int64_t i = 0; i < width; ++i) dot += double{fn[j * width + i]} * double{v[i]};
    m[static_cast<std::size_t>(j)] = static_cast<float>(rho * dot);
  }
  return m;
}

// u = sum_c weights[c] * stream c.
void weigh(const float* v, const float* weights, std::int64_t streams, std::int64_t d, Carrier carrier, float* u) {
  for (std::int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < streams; ++c) sum += double{weights[c]} * double{v[c * d + i]};
    u[i] = carry(sum, carrier);
  }
}

void norm_in_place(Mat<float> x, const float* weight, float eps, Carrier carrier) {
  if (weight != nullptr) run(RmsNorm{.x = x, .w = weight, .y = x, .eps = eps, .carrier = carrier});
}

}  // namespace

void run(const HcPre& op) {
  const std::int64_t streams = op.post.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.x.cols && op.comb.cols == streams * streams, "C streams of d");
  std::vector<float> pre(static_cast<std::size_t>(streams));
  for (std::int64_t t = 0; t < op.streams.rows; ++t) {
    const float* v = op.streams.row(t);
    const auto m = mix(v, op.streams.cols, op.site.fn, 2 * streams + streams * streams, op.norm_eps);
    split_sinkhorn(m.data(), op.site, static_cast<std::int32_t>(streams), op.sinkhorn_iters, op.hc_eps, pre.data(),
                   op.post.row(t), op.comb.row(t));
    weigh(v, pre.data(), streams, op.x.cols, op.carrier, op.x.row(t));
  }
  norm_in_place(op.x, op.norm_weight, op.norm_eps, op.carrier);
}

void run(const HcPost& op) {
  const std::int64_t streams = op.post.cols;
  const std::int64_t d = op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * d && op.out.cols == streams * d, "C streams of d");
  std::vector<double> column(static_cast<std::size_t>(streams));
  for (std::int64_t t = 0; t < op.y.rows; ++t) {
    const float* v = op.streams.row(t);
    for (std::int64_t i = 0; i < d; ++i) {
      for (std::int64_t j = 0; j < streams; ++j) {
        double sum = double{op.post.row(t)[j]} * double{op.y.row(t)[i]};
        for (std::int64_t c = 0; c < streams; ++c)
          sum += double{op.comb.row(t)[c * streams + j]} * double{v[c * d + i]};
        column[static_cast<std::size_t>(j)] = sum;
      }
      for (std::int64_t j = 0; j < streams; ++j) {
        op.out.row(t)[j * d + i] = carry(column[static_cast<std::size_t>(j)], op.carrier);
      }
    }
  }
}

void run(const HcHead& op) {
  const std::int64_t streams = op.streams.cols / op.y.cols;
  FATHOM_CHECK(op.streams.cols == streams * op.y.cols, "C streams of d");
  std::vector<float> weights(static_cast<std::size_t>(streams));
  for (std::int64_t t = 0; t < op.streams.rows; ++t) {
    const float* v = op.streams.row(t);
    const auto m = mix(v, op.streams.cols, op.site.fn, streams, op.norm_eps);
    for (std::size_t c = 0; c < weights.size(); ++c) {
      const double x = double{m[c]} * double{op.site.scale[0]} + double{op.site.base[c]};
      weights[c] = static_cast<float>(1.0 / (1.0 + std::exp(-x)) + double{op.hc_eps});
    }
    weigh(v, weights.data(), streams, op.y.cols, op.carrier, op.y.row(t));
  }
  norm_in_place(op.y, op.norm_weight, op.norm_eps, op.carrier);
}

void run(const StreamMean& op) {
  const std::int64_t d = op.y.cols;
  const std::int64_t streams = op.streams.cols / d;
  FATHOM_CHECK(op.streams.cols == streams * d && op.streams.rows == op.y.rows, "C streams of d");
  for (std::int64_t t = 0; t < op.y.rows; ++t) {
    for (std::int64_t i = 0; i < d; ++i) {
      double sum = 0;
      for (std::int64_t c = 0; c < streams; ++c) sum += double{op.streams.row(t)[c * d + i]};
      op.y.row(t)[i] = carry(sum / static_cast<double>(streams), op.carrier);
    }
  }
}

}  // namespace fathom::ops::ref
