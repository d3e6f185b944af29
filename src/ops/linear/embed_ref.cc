#include <algorithm>

#include "base/check.h"
#include "ops/linear/embed.h"

namespace fathom::ops::ref {

void run(const Embed& op) {
  FATHOM_CHECK(op.x.cols == op.streams * op.table.cols, "x holds one copy per stream");
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    FATHOM_CHECK(op.ids[t] >= 0 && op.ids[t] < op.table.rows, "token ids are inside the vocabulary");
    float* x = op.x.row(t);
    dequantise_row(op.table, op.ids[t], x);
    for (std::int64_t c = 1; c < op.streams; ++c) std::copy_n(x, op.table.cols, x + c * op.table.cols);
  }
}

}  // namespace fathom::ops::ref
