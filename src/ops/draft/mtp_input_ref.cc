#include "base/check.h"
#include "ops/draft/mtp_input.h"

namespace fathom::ops::ref {

void run(const MtpInput& op) {
  const std::int64_t d = op.e.cols;
  const std::int64_t streams = op.x.cols / d;
  FATHOM_CHECK(op.h.rows == op.e.rows * streams && op.h.cols == d, "one h row per stream");
  for (std::int64_t t = 0; t < op.e.rows; ++t) {
    for (std::int64_t c = 0; c < streams; ++c) {
      const float* h = op.h.row(t * streams + c);
      for (std::int64_t i = 0; i < d; ++i) {
        op.x.row(t)[c * d + i] = carry(double{op.e.row(t)[i]} + double{h[i]}, op.carrier);
      }
    }
  }
}

}  // namespace fathom::ops::ref
