#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/attention/sparse_attention.h"
#include "ops/rope/rope.h"

namespace fathom::ops {

void attend_head(const float* q, const float* const* rows, std::int64_t n, std::int64_t dim, float sink, float scale,
                 Carrier carrier, float* o) {
  std::vector<double> p(static_cast<std::size_t>(n));
  double top = sink;
  for (std::int64_t j = 0; j < n; ++j) {
    double dot = 0;
    for (std::int64_t i = 0; i < dim; ++i) dot += double{q[i]} * double{rows[j][i]};
    p[static_cast<std::size_t>(j)] = dot * double{scale};
    top = std::max(top, p[static_cast<std::size_t>(j)]);
  }
  double denominator = std::exp(double{sink} - top);
  for (double& v : p) denominator += v = std::exp(v - top);
  // official-bf16: probabilities enter the value product as bf16, their sum stays f32 (model.md 4.3).
  for (double& v : p) v = carry(v, carrier);
  for (std::int64_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += p[static_cast<std::size_t>(j)] * double{rows[j][i]};
    o[i] = carry(sum / denominator, carrier);
  }
}

namespace ref {
namespace {

// The visible rows of one token, decoded, in their fixed order.
class VisibleRows {
 public:
  VisibleRows(const SparseAttention& op, std::int64_t t) : dim_(op.kv.cols) {
    const Segment& s = op.batch.segments[op.batch.segment_of[t]];
    const std::int32_t position = op.batch.positions[t];
    const bool block = op.pattern == Pattern::kDraftBlock;
    const std::int32_t first = std::max(0, (block ? s.start : position + 1) - op.window);
    const std::int32_t last = block ? s.start + s.tokens - 1 : position;
    for (std::int32_t p = first; p <= last; ++p) {
      if (p < s.start) {
        add(op.ring.codec, op.ring.at(s.slot, p));
      } else {
        const float* kv = op.kv.row(s.first_row + p - s.start);
        values_.insert(values_.end(), kv, kv + dim_);
      }
    }
    if (op.entries.ratio != 0) {
      const std::int32_t exist = (position + 1) / op.entries.ratio;
      if (op.selected.data == nullptr) {
        for (std::int32_t w = 0; w < exist; ++w) add(op.entries.codec, op.entries.at(s, w));
      } else {
        for (std::int64_t k = 0; k < op.selected.cols; ++k) {
          const std::int32_t w = op.selected.row(t)[k];
          if (w < 0) continue;
          FATHOM_CHECK(w < exist, "only entries that exist are selected");
          add(op.entries.codec, op.entries.at(s, w));
        }
      }
    }
    for (std::size_t at = 0; at < values_.size(); at += static_cast<std::size_t>(dim_)) rows_.push_back(&values_[at]);
  }

  const float* const* rows() const { return rows_.data(); }
  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }

 private:
  void add(const quant::EntryCodec& codec, const std::byte* stored) {
    values_.resize(values_.size() + static_cast<std::size_t>(dim_));
    codec.decode(stored, std::span(values_).last(static_cast<std::size_t>(dim_)));
  }

  std::int64_t dim_;
  std::vector<float> values_;
  std::vector<const float*> rows_;
};

}  // namespace

void run(const SparseAttention& op) {
  const std::int64_t dim = op.kv.cols;
  FATHOM_CHECK(op.q.cols == op.heads * dim && op.out.cols == op.q.cols, "heads of the entries' width");
  FATHOM_CHECK(op.ring.capacity >= op.window, "the ring holds the window");
  FATHOM_CHECK(op.pattern == Pattern::kCausal || op.entries.ratio == 0, "draft blocks see no compressed entries");
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (std::int64_t t = 0; t < op.batch.tokens; ++t) {
    const VisibleRows visible(op, t);
    for (std::int64_t h = 0; h < op.heads; ++h) {
      float* o = op.out.row(t) + h * dim;
      attend_head(op.q.row(t) + h * dim, visible.rows(), visible.size(), dim, op.sink[h], scale, op.carrier, o);
      rotate(o, dim, op.cos.row(t), op.sin.row(t), op.cos.cols, Turn::kInverse, op.carrier);
    }
  }
}

void run(const StoreWindow& op) {
  for (std::int32_t i = 0; i < op.batch.n_segments; ++i) {
    const Segment& s = op.batch.segments[i];
    for (std::int32_t k = std::max(0, s.tokens - op.ring.capacity); k < s.tokens; ++k) {
      const float* kv = op.kv.row(s.first_row + k);
      op.ring.codec.encode({kv, static_cast<std::size_t>(op.kv.cols)}, op.ring.at(s.slot, s.start + k));
    }
  }
}

}  // namespace ref
}  // namespace fathom::ops
