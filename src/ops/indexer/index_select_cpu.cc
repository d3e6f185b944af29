// Scores: a lane is a head, so the sixteen sums of a register need no closing tree. q is turned to [dim][heads] once
// per token, keys are decoded four at a time, and each dot product runs over the dims in order; the heads' weighted sum
// is then a dot16 over heads. The highest are found by their bits, most significant first, in three passes over the
// scores.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/indexer/index_select_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/entry-inl.h"
#include "ops/simd/lanes-inl.h"

#ifndef FATHOM_OPS_INDEXER_INDEX_SELECT_CPU_CC_
#define FATHOM_OPS_INDEXER_INDEX_SELECT_CPU_CC_
namespace fathom::ops {
namespace {

constexpr std::int64_t kKeys = 4;  // of a tile

// The queries of one token as scoring reads them. Heads are filled up to a multiple of 16 with zeros.
struct TurnedQuery {
  float* q;        // [dim][heads]
  float* weights;  // [heads], scaled
  std::int64_t heads;
  std::int64_t dim;
};

}  // namespace
}  // namespace fathom::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// total[key] += weight * max(0, q . key) for kGroups * 16 heads from h on.
template <int kGroups>
HWY_INLINE void add_heads(const TurnedQuery& query, std::int64_t h, const float* keys, float (*total)[16]) {
  Lanes acc[kKeys][kGroups];
  FATHOM_UNROLL for (int k = 0; k < kKeys; ++k) {
    FATHOM_UNROLL for (int g = 0; g < kGroups; ++g) acc[k][g] = zero_lanes();
  }
  const float* q = query.q + h;
  for (std::int64_t i = 0; i < query.dim; ++i, q += query.heads) {
    Lanes x[kGroups];
    FATHOM_UNROLL for (int g = 0; g < kGroups; ++g) x[g] = load_lanes(q + 16 * g);
    FATHOM_UNROLL for (int k = 0; k < kKeys; ++k) {
      const Lanes key = broadcast(keys[k * query.dim + i]);
      FATHOM_UNROLL for (int g = 0; g < kGroups; ++g) acc[k][g] = fma(x[g], key, acc[k][g]);
    }
  }
  FATHOM_UNROLL for (int k = 0; k < kKeys; ++k) {
    Lanes sum = load_lanes(total[k]);
    FATHOM_UNROLL for (int g = 0; g < kGroups; ++g) {
      FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
        const V dot = acc[k][g].part[p];
        const V positive = hn::IfThenElseZero(hn::Gt(dot, hn::Zero(D())), dot);  // also of a NaN
        const V weight = hn::LoadU(D(), query.weights + h + 16 * g + p * kWidth);
        sum.part[p] = hn::MulAdd(weight, positive, sum.part[p]);
      }
    }
    store_lanes(sum, total[k]);
  }
}

// scores[i] of keys [begin, end). keys: scratch of kKeys * dim floats.
void ScoreKeys(const IndexSelect& op, const Segment& s, const TurnedQuery& query, std::int32_t begin, std::int32_t end,
               float* keys, float* scores) {
  constexpr int kGroups = kWidth == 16 || (kWidth == 4 && HWY_TARGET != HWY_SSE4) ? 16 * 4 / 16 / kParts : 1;
  for (std::int32_t w = begin; w < end; w += kKeys) {
    const auto n = std::min<std::int32_t>(kKeys, end - w);
    for (std::int32_t k = 0; k < kKeys; ++k) {  // a short last tile repeats its last key
      decode_entry(op.keys.codec, op.keys.at(s, std::min(w + k, end - 1)), keys + k * query.dim);
    }
    alignas(64) float total[kKeys][16] = {};
    std::int64_t h = 0;
    for (; h + 16 * kGroups <= query.heads; h += 16 * kGroups) add_heads<kGroups>(query, h, keys, total);
    for (; h < query.heads; h += 16) add_heads<1>(query, h, keys, total);
    for (std::int32_t k = 0; k < n; ++k) scores[w + k] = sum_lanes(load_lanes(total[k]));
  }
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(ScoreKeys);

// Larger for larger scores; NaN is 0, below every number. A score is a sum that starts from zero, so it is never minus
// zero.
std::uint32_t rank(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// select_top without sorting: finds the rank of the k-th highest digit by digit, then takes what lies above it and the
// first of its equals.
void select_highest(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* selected) {
  std::uint32_t known = 0;  // the leading digits of the k-th highest rank
  std::int32_t left = k;    // how many of those that share them are selected
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    std::array<std::int32_t, 2048> count{};
    const unsigned mask = (1U << bits) - 1;
    for (std::int32_t i = 0; i < n; ++i) {
      const std::uint32_t r = rank(scores[i]);
      if (static_cast<std::uint64_t>(r) >> (shift + bits) == known) ++count[(r >> shift) & mask];
    }
    std::uint32_t digit = mask;
    while (left > count[digit]) left -= count[digit--];
    known = known << bits | digit;
  }
  for (std::int32_t i = 0; i < n; ++i) {
    const std::uint32_t r = rank(scores[i]);
    if (r > known || (r == known && left-- > 0)) *selected++ = i;
  }
}

class Run {
 public:
  Run(const IndexSelect& op, Context& ctx) : op_(op), ctx_(ctx), heads_((op.heads + 15) / 16 * 16) {
    for (std::int64_t t = 0; t < op.batch.tokens; ++t) most_ = std::max(most_, exist(t));
    if (most_ <= op.selected.cols) most_ = 0;  // nothing is scored
  }

  void all() {
    if (most_ == 0 || op_.batch.tokens >= 2 * ctx_.pool.size() || ctx_.pool.size() == 1) {
      tokens_to_threads();
    } else {
      keys_to_threads();
    }
  }

 private:
  std::int32_t exist(std::int64_t t) const { return (op_.batch.positions[t] + 1) / op_.keys.ratio; }
  std::int64_t dim() const { return op_.q.cols / op_.heads; }

  struct Worker {
    TurnedQuery query;
    float* keys;
  };
  Worker make_worker() {
    return {{.q = ctx_.scratch.take<float>(dim() * heads_),
             .weights = ctx_.scratch.take<float>(heads_),
             .heads = heads_,
             .dim = dim()},
            ctx_.scratch.take<float>(kKeys * dim())};
  }

  void turn(std::int64_t t, const TurnedQuery& query) const {
    for (std::int64_t i = 0; i < dim(); ++i) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        query.q[i * heads_ + h] = h < op_.heads ? op_.q.row(t)[h * dim() + i] : 0.0F;
      }
    }
    for (std::int64_t h = 0; h < heads_; ++h)
      query.weights[h] = h < op_.heads ? op_.weights.row(t)[h] * op_.scale : 0.0F;
  }

  void score(std::int64_t t, const Worker& w, std::int32_t begin, std::int32_t end, float* scores) const {
    const Segment& s = op_.batch.segments[op_.batch.segment_of[t]];
    HWY_DYNAMIC_DISPATCH(ScoreKeys)(op_, s, w.query, begin, end, w.keys, scores);
  }

  void select(std::int64_t t, const float* scores) const {
    const std::int32_t n = exist(t);
    const auto k = std::min(n, static_cast<std::int32_t>(op_.selected.cols));
    std::int32_t* selected = op_.selected.row(t);
    if (n <= k) {
      std::iota(selected, selected + k, 0);
    } else {
      select_highest(scores, n, k, selected);
    }
    std::fill(selected + k, selected + op_.selected.cols, -1);
  }

  void tokens_to_threads() {
    auto* workers = ctx_.scratch.take<Worker>(ctx_.pool.size());
    auto** scores = ctx_.scratch.take<float*>(ctx_.pool.size());
    for (int i = 0; most_ > 0 && i < ctx_.pool.size(); ++i) {
      workers[i] = make_worker();
      scores[i] = ctx_.scratch.take<float>(most_);
    }
    const std::int64_t cost = 64 + std::int64_t{most_} * op_.q.cols;
    ctx_.pool.parallel_for(op_.batch.tokens, grain(op_.batch.tokens, cost, 1, ctx_),
                           [&](std::int64_t begin, std::int64_t end, int worker) {
                             for (std::int64_t t = begin; t < end; ++t) {
                               if (exist(t) > op_.selected.cols) {
                                 turn(t, workers[worker].query);
                                 score(t, workers[worker], 0, exist(t), scores[worker]);
                               }
                               select(t, scores[worker]);
                             }
                           });
  }

  void keys_to_threads() {
    auto* workers = ctx_.scratch.take<Worker>(ctx_.pool.size());
    for (int i = 0; i < ctx_.pool.size(); ++i) workers[i] = make_worker();
    auto* scores = ctx_.scratch.take<float>(most_);
    for (std::int64_t t = 0; t < op_.batch.tokens; ++t) {
      const std::int32_t n = exist(t);
      if (n > op_.selected.cols) {
        turn(t, workers[0].query);
        for (int i = 1; i < ctx_.pool.size(); ++i) workers[i].query = workers[0].query;
        ctx_.pool.parallel_for(
            n, grain(n, op_.q.cols, kKeys, ctx_), [&](std::int64_t begin, std::int64_t end, int worker) {
              score(t, workers[worker], static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), scores);
            });
      }
      select(t, scores);
    }
  }

  const IndexSelect& op_;
  Context& ctx_;
  std::int64_t heads_;
  std::int32_t most_ = 0;  // scores of a token
};

}  // namespace

void run(const IndexSelect& op, Context& ctx) {
  FATHOM_CHECK(op.weights.cols == op.heads && op.keys.ratio > 0, "one weight per head, entries that exist");
  Run(op, ctx).all();
}

}  // namespace fathom::ops::cpu
#endif
