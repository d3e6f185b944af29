#include "ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace fathom::ops {
namespace {

// The dimension (counted over R) whose wavelength makes `turns` turns over the original context.
double correction_dim(double turns, double theta, std::int32_t rope_dim, std::int32_t original_positions) {
  return rope_dim * std::log(original_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

std::vector<float> rope_frequencies(double theta, std::int32_t rope_dim, const Yarn& yarn) {
  FATHOM_CHECK(rope_dim > 0 && rope_dim % 2 == 0, "rotation works on pairs");
  std::vector<float> f(static_cast<std::size_t>(rope_dim / 2));
  for (std::size_t j = 0; j < f.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rope_dim);
    const auto power = static_cast<float>(std::pow(theta, double{exponent}));
    f[j] = 1.0F / power;
  }
  if (yarn.original_positions == 0) return f;

  const double lo = std::max(std::floor(correction_dim(yarn.beta_fast, theta, rope_dim, yarn.original_positions)), 0.0);
  double hi = std::min(std::ceil(correction_dim(yarn.beta_slow, theta, rope_dim, yarn.original_positions)),
                       static_cast<double>(rope_dim - 1));
  if (lo == hi) hi += 0.001;
  for (std::size_t j = 0; j < f.size(); ++j) {
    const auto position =
        static_cast<float>((static_cast<float>(j) - static_cast<float>(lo)) / static_cast<float>(hi - lo));
    const float ramp = std::clamp(position, 0.0F, 1.0F);
    const float slowed = f[j] / static_cast<float>(yarn.factor);
    f[j] = slowed * ramp + f[j] * (1.0F - ramp);
  }
  return f;
}

void rope_angles(std::int32_t position, const float* frequencies, std::int64_t n, float* cos, float* sin) {
  for (std::int64_t j = 0; j < n; ++j) {
    const float angle = static_cast<float>(position) * frequencies[j];
    cos[j] = static_cast<float>(std::cos(double{angle}));
    sin[j] = static_cast<float>(std::sin(double{angle}));
  }
}

void rotate(float* x, std::int64_t dim, const float* cos, const float* sin, std::int64_t n, Turn turn,
            Carrier carrier) {
  float* pairs = x + dim - 2 * n;
  for (std::int64_t j = 0; j < n; ++j) {
    const float a = pairs[2 * j];
    const float b = pairs[2 * j + 1];
    const float s = turn == Turn::kForward ? sin[j] : -sin[j];
    pairs[2 * j] = carry(double{a} * cos[j] - double{b} * s, carrier);
    pairs[2 * j + 1] = carry(double{a} * s + double{b} * cos[j], carrier);
  }
}

namespace ref {

void run(const RopeTable& op) {
  FATHOM_CHECK(op.cos.rows == op.sin.rows && op.cos.cols == op.sin.cols, "cos and sin have the same shape");
  for (std::int64_t t = 0; t < op.cos.rows; ++t) {
    rope_angles(op.positions[t], op.frequencies, op.cos.cols, op.cos.row(t), op.sin.row(t));
  }
}

}  // namespace ref
}  // namespace fathom::ops
