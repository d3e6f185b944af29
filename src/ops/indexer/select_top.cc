#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/indexer/index_select.h"

namespace fathom::ops {

void select_top(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* order, std::int32_t* selected) {
  FATHOM_CHECK(0 <= k && k <= n, "there are k scores to select");
  std::iota(order, order + n, 0);
  const auto better = [scores](std::int32_t a, std::int32_t b) {
    const bool a_nan = std::isnan(scores[a]);
    const bool b_nan = std::isnan(scores[b]);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && scores[a] != scores[b]) return scores[a] > scores[b];
    return a < b;
  };
  if (k < n) std::nth_element(order, order + k, order + n, better);
  std::copy_n(order, k, selected);
  std::sort(selected, selected + k);
}

}  // namespace fathom::ops
