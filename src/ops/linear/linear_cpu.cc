#include <algorithm>

#include "ops/linear/product.h"

namespace fathom::ops::cpu {
namespace {

// As many tokens at once as their packed rows stay in the last cache while all rows of the weight pass by.
constexpr std::int64_t kTokens = 256;

}  // namespace

void run(const Linear& op, Context& ctx) {
  check(op);
  if (op.x.rows == 0) return;
  const PackedRows x = pack_rows(op.x, op.groups, op.w, op.quantise_x, ctx);
  const std::int64_t group_rows = op.w.rows / op.groups;
  const std::int64_t blocks = (op.x.rows + kTokens - 1) / kTokens;
  const std::int64_t most = std::min(op.x.rows, kTokens);
  const auto** x_rows = ctx.scratch.take<const float*>(op.groups * op.x.rows);
  auto** y_rows = ctx.scratch.take<float*>(op.x.rows);
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    for (std::int64_t g = 0; g < op.groups; ++g) x_rows[g * op.x.rows + t] = x.row(t) + g * x.group_floats;
    y_rows[t] = op.y.row(t);
  }
  // A turn is some rows of one group; few rows of many tokens (hyper-connections) are cut by tokens instead.
  const std::int64_t rows = product_grain(op.w, group_rows, most, ctx);
  const std::int64_t per_group = (group_rows + rows - 1) / rows;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t first = b * kTokens;
    const std::int64_t tokens = std::min(kTokens, op.x.rows - first);
    const std::int64_t slices =
        per_group * op.groups >= ctx.pool.size() ? 1 : std::min<std::int64_t>(ctx.pool.size(), (tokens + 15) / 16);
    const std::int64_t slice = (tokens + slices - 1) / slices;
    ctx.pool.parallel_for(per_group * op.groups * slices, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t t = first + i % slices * slice;
        const std::int64_t n = std::min(slice, first + tokens - t);
        if (n <= 0) continue;
        const std::int64_t g = i / slices / per_group;
        const std::int64_t row = i / slices % per_group * rows;
        multiply_rows(op.w, g * group_rows + row, g * group_rows + std::min(row + rows, group_rows),
                      x_rows + g * op.x.rows + t, n, x.pairs, y_rows + t);
      }
    });
  }
}

}  // namespace fathom::ops::cpu
