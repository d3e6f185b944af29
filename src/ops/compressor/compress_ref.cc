#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "ops/compressor/compress.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "quant/block.h"

namespace fathom::ops::ref {
namespace {

// The projections of one earlier or current token.
struct Row {
  const float* kv;
  const float* score;
};

Row row_at(const Compress& op, const Segment& s, std::int32_t position) {
  if (position >= s.start) {
    const std::int64_t t = s.first_row + position - s.start;
    return {op.kv.row(t), op.score.row(t)};
  }
  const float* r = op.ring.row(s.slot, position);
  return {r, r + op.ring.width};
}

void add_position_bias(const Compress& op) {
  for (std::int64_t t = 0; t < op.batch.tokens; ++t) {
    const float* ape = op.ape + op.batch.positions[t] % op.entries.ratio * op.score.cols;
    for (std::int64_t c = 0; c < op.score.cols; ++c) op.score.row(t)[c] += ape[c];
  }
}

// Softmax over the rows of one channel, applied to their values.
float pool(const std::vector<Row>& rows, const std::vector<std::int64_t>& columns) {
  double top = -std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < rows.size(); ++j) top = std::max(top, double{rows[j].score[columns[j]]});
  double weights = 0;
  double sum = 0;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const double w = std::exp(double{rows[j].score[columns[j]]} - top);
    weights += w;
    sum += w * double{rows[j].kv[columns[j]]};
  }
  return static_cast<float>(sum / weights);
}

void pool_entry(const Compress& op, const Segment& s, std::int32_t w, std::vector<float>& entry) {
  const std::int32_t ratio = op.entries.ratio;
  const auto dim = static_cast<std::int64_t>(entry.size());
  const bool overlap = op.ring.width == 2 * dim;
  std::vector<Row> rows;
  std::vector<std::int64_t> offsets;  // where the row's columns for this entry begin
  for (std::int32_t p = ratio * (w - 1); overlap && w > 0 && p < ratio * w; ++p) {
    rows.push_back(row_at(op, s, p));
    offsets.push_back(0);
  }
  for (std::int32_t p = ratio * w; p < ratio * (w + 1); ++p) {
    rows.push_back(row_at(op, s, p));
    offsets.push_back(overlap ? dim : 0);
  }
  std::vector<std::int64_t> columns(offsets.size());
  for (std::int64_t c = 0; c < dim; ++c) {
    std::transform(offsets.begin(), offsets.end(), columns.begin(), [c](std::int64_t o) { return o + c; });
    entry[static_cast<std::size_t>(c)] = carry(pool(rows, columns), op.carrier);
  }
}

void finish_entry(const Compress& op, std::int32_t first_position, std::vector<float>& entry) {
  const auto dim = static_cast<std::int64_t>(entry.size());
  const Mat<float> row = mat(entry, 1, dim);
  run(RmsNorm{.x = row, .w = op.norm_weight, .y = row, .eps = op.eps, .carrier = op.carrier});
  std::vector<float> cos(static_cast<std::size_t>(op.rope_dim / 2));
  std::vector<float> sin(cos.size());
  rope_angles(first_position, op.frequencies, op.rope_dim / 2, cos.data(), sin.data());
  rotate(entry.data(), dim, cos.data(), sin.data(), op.rope_dim / 2, Turn::kForward, op.carrier);
  if (op.kind == EntryKind::kIndex) {
    quant::hadamard(entry);
    for (float& v : entry) v = carry(v, op.carrier);
    if (op.quantise) quant::fp4_round_trip(entry);
  } else if (op.quantise) {
    quant::fp8_round_trip(std::span(entry).first(static_cast<std::size_t>(dim - op.rope_dim)), quant::kEntryBlock);
  }
}

void keep_rows(const Compress& op, const Segment& s) {
  for (std::int32_t k = std::max(0, s.tokens - op.ring.capacity); k < s.tokens; ++k) {
    float* r = op.ring.row(s.slot, s.start + k);
    std::copy_n(op.kv.row(s.first_row + k), op.ring.width, r);
    std::copy_n(op.score.row(s.first_row + k), op.ring.width, r + op.ring.width);
  }
}

}  // namespace

void run(const Compress& op) {
  FATHOM_CHECK(op.kv.cols == op.ring.width && op.score.cols == op.ring.width, "projections of the ring's width");
  add_position_bias(op);
  std::vector<float> entry(static_cast<std::size_t>(op.entries.codec.dim));
  const std::int32_t ratio = op.entries.ratio;
  for (std::int32_t i = 0; i < op.batch.n_segments; ++i) {
    const Segment& s = op.batch.segments[i];
    for (std::int32_t w = s.start / ratio; w < (s.start + s.tokens) / ratio; ++w) {
      pool_entry(op, s, w, entry);
      finish_entry(op, ratio * w, entry);
      op.entries.codec.encode(entry, op.entries.at(s, w));
    }
    keep_rows(op, s);
  }
}

}  // namespace fathom::ops::ref
