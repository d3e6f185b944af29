#include <algorithm>
#include <cmath>

#include "ops/hyper_connection/hyper_connection.h"

namespace fathom::ops {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// m [n, n]: rows (or columns) divided by their sum plus eps.
void normalise(float* m, std::int32_t n, float eps, bool rows) {
  const std::int32_t across = rows ? 1 : n;
  const std::int32_t along = rows ? n : 1;
  for (std::int32_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int32_t j = 0; j < n; ++j) sum += m[i * along + j * across];
    for (std::int32_t j = 0; j < n; ++j) m[i * along + j * across] /= sum + eps;
  }
}

}  // namespace

void split_sinkhorn(const float* mixes, const HyperConnection& site, std::int32_t streams, std::int32_t iters,
                    float hc_eps, float* pre, float* post, float* comb) {
  const std::int32_t n = streams;
  for (std::int32_t c = 0; c < n; ++c) {
    pre[c] = static_cast<float>(sigmoid(mixes[c] * site.scale[0] + site.base[c]) + double{hc_eps});
    post[c] = static_cast<float>(2 * sigmoid(mixes[n + c] * site.scale[1] + site.base[n + c]));
  }
  for (std::int32_t i = 0; i < n; ++i) {  // row softmax
    float* row = comb + i * n;
    const std::int32_t at = 2 * n + i * n;
    for (std::int32_t j = 0; j < n; ++j) row[j] = mixes[at + j] * site.scale[2] + site.base[at + j];
    const float top = *std::max_element(row, row + n);
    float sum = 0;
    for (std::int32_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - top);
    for (std::int32_t j = 0; j < n; ++j) row[j] = row[j] / sum + hc_eps;
  }
  normalise(comb, n, hc_eps, /*rows=*/false);
  for (std::int32_t t = 1; t < iters; ++t) {
    normalise(comb, n, hc_eps, /*rows=*/true);
    normalise(comb, n, hc_eps, /*rows=*/false);
  }
}

}  // namespace fathom::ops
