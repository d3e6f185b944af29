#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/indexer/index_select.h"
#include "ops/rope/rope.h"
#include "quant/block.h"

namespace fathom::ops {

void index_scores(const IndexSelect& op, std::int64_t t, std::int32_t n, float* scores) {
  const Segment& s = op.batch.segments[op.batch.segment_of[t]];
  const std::int64_t dim = op.q.cols / op.heads;
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (std::int32_t w = 0; w < n; ++w) {
    op.keys.codec.decode(op.keys.at(s, w), key);
    double sum = 0;
    for (std::int64_t h = 0; h < op.heads; ++h) {
      const float* q = op.q.row(t) + h * dim;
      double dot = 0;
      for (std::int64_t i = 0; i < dim; ++i) dot += double{q[i]} * double{key[static_cast<std::size_t>(i)]};
      const float weight = carry(double{op.weights.row(t)[h]} * double{op.scale}, op.carrier);
      sum += carry(double{weight} * std::max(0.0, double{carry(dot, op.carrier)}), op.carrier);
    }
    scores[w] = carry(sum, op.carrier);
  }
}

namespace ref {

void run(const IndexQuery& op) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  for (std::int64_t t = 0; t < op.q.rows; ++t) {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      const std::span<float> q(op.q.row(t) + h * dim, static_cast<std::size_t>(dim));
      rotate(q.data(), dim, op.cos.row(t), op.sin.row(t), op.cos.cols, Turn::kForward, op.carrier);
      quant::hadamard(q);
      for (float& v : q) v = carry(v, op.carrier);
      if (op.quantise) quant::fp4_round_trip(q);
    }
  }
}

void run(const IndexSelect& op) {
  FATHOM_CHECK(op.weights.cols == op.heads && op.keys.ratio > 0, "one weight per head, entries that exist");
  for (std::int64_t t = 0; t < op.batch.tokens; ++t) {
    const std::int32_t exist = (op.batch.positions[t] + 1) / op.keys.ratio;
    const auto k = std::min(exist, static_cast<std::int32_t>(op.selected.cols));
    std::int32_t* selected = op.selected.row(t);
    if (exist <= k) {
      std::iota(selected, selected + k, 0);
    } else {
      std::vector<float> scores(static_cast<std::size_t>(exist));
      std::vector<std::int32_t> order(static_cast<std::size_t>(exist));
      index_scores(op, t, exist, scores.data());
      select_top(scores.data(), exist, k, order.data(), selected);
    }
    std::fill(selected + k, selected + op.selected.cols, -1);
  }
}

}  // namespace ref
}  // namespace fathom::ops
