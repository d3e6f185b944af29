// Tokens are grouped by expert, so that a step reads each expert's weights once for all its tokens.
//
// The (token, expert) pairs are sorted by expert, cut into groups (an expert and at most kWavePairs of its tokens) and
// done in waves of groups, each wave in three loops: w1 and w3 with the activation between, quantisation, w2. A wave is
// at most kWavePairs pairs, so that its values stay in the last cache: one wave for decoding (few barriers), one expert
// or few for prefill. Waves go up through the experts, and within a wave each token adds its results in ascending
// order, so the sum of every token runs in the same order whatever the batch.
#include <algorithm>

#include "base/check.h"
#include "ops/linear/product.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/experts_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// z = weight * silu(a) * b with the clamps of model.md 8.2. z may be a.
void SwiGlu(const float* a, const float* b, std::int64_t n, float limit, float weight, float* z) {
  for_each_register(n, [&](auto d, std::int64_t i) HWY_ATTR {
    auto gate = hn::LoadU(d, a + i);
    auto up = hn::LoadU(d, b + i);
    if (limit > 0) {
      const auto top = hn::Set(d, limit);
      up = hn::IfThenElse(hn::IsNaN(up), up, hn::Max(hn::Min(up, top), hn::Neg(top)));
      gate = hn::IfThenElse(hn::IsNaN(gate), gate, hn::Min(gate, top));
    }
    const auto sigmoid = hn::Div(hn::Set(d, 1.0F), hn::Add(hn::Set(d, 1.0F), exponential(d, hn::Neg(gate))));
    hn::StoreU(hn::Mul(hn::Set(d, weight), hn::Mul(hn::Mul(gate, sigmoid), up)), d, z + i);
  });
}

// y += x.
void AddTo(const float* x, std::int64_t n, float* y) {
  for_each_register(n, [&](auto d, std::int64_t i)
                           HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i); });
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(SwiGlu);
HWY_EXPORT(AddTo);

// One expert and some of its pairs, [first, first + n) of the sorted list. The shared expert is the last.
struct Group {
  const ExpertWeights* expert = nullptr;
  std::int64_t first = 0;
  std::int64_t n = 0;
};

class Run {
 public:
  Run(const Experts& op, Context& ctx) : op_(op), ctx_(ctx) {
    sort_pairs();
    pack_inputs();
  }

  void all() {
    std::int64_t begin = 0;
    while (begin < n_groups_) {
      std::int64_t end = begin + 1;
      std::int64_t pairs = groups_[begin].n;
      while (end < n_groups_ && pairs + groups_[end].n <= most_pairs_) pairs += groups_[end++].n;
      wave(begin, end);
      begin = end;
    }
  }

 private:
  static constexpr std::int64_t kWavePairs = 256;

  // Counting sort by expert; tokens of one expert stay in order. Then all tokens once more for the shared expert.
  void sort_pairs() {
    const std::int64_t tokens = op_.x.rows;
    const std::int64_t k = op_.experts.cols;
    const std::int64_t pairs = tokens * (k + 1);
    token_of_ = ctx_.scratch.take<std::int64_t>(pairs);
    weight_of_ = ctx_.scratch.take<float>(pairs);
    pair_of_ = ctx_.scratch.take<std::int64_t>(pairs);
    auto* next = ctx_.scratch.take<std::int64_t>(op_.n_routed + 1);
    std::fill(next, next + op_.n_routed + 1, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < k; ++i) {
        const std::int32_t e = op_.experts.row(t)[i];
        FATHOM_CHECK(0 <= e && e < op_.n_routed, "the router names experts that exist");
        ++next[e + 1];
      }
    }
    groups_ = ctx_.scratch.take<Group>(op_.n_routed + 1 + pairs / kWavePairs);
    for (std::int64_t e = 0; e < op_.n_routed; ++e) {
      add_groups(op_.routed[e], next[e], next[e + 1]);
      next[e + 1] += next[e];
    }
    add_groups(op_.shared, tokens * k, tokens);
    most_pairs_ = std::min(kWavePairs, pairs);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i <= k; ++i) {
        const std::int64_t at = i == k ? tokens * k + t : next[op_.experts.row(t)[i]]++;
        token_of_[at] = t;
        weight_of_[at] = i == k ? 1.0F : op_.weights.row(t)[i];
        pair_of_[t * (k + 1) + i] = at;
      }
    }
  }

  void add_groups(const ExpertWeights& expert, std::int64_t first, std::int64_t n) {
    for (; n > 0; first += kWavePairs, n -= kWavePairs)
      groups_[n_groups_++] = {&expert, first, std::min(n, kWavePairs)};
  }

  static bool fp8(const Experts& op, const ExpertWeights& e) { return op.quantise && e.w1.quantised(); }

  const PackedRows& input_of(const ExpertWeights& e) const { return &e == &op_.shared ? x_shared_ : x_routed_; }
  bool z_pairs(const ExpertWeights& e) const { return use_pairs(e.w2, 1, fp8(op_, e), ctx_); }

  // x in front of the routed experts and of the shared one: their formats may differ. Memory of a wave.
  void pack_inputs() {
    const Weight& routed = op_.n_routed > 0 ? op_.routed[0].w1 : op_.shared.w1;
    x_routed_ = pack_rows(op_.x, 1, routed, op_.n_routed > 0 && fp8(op_, op_.routed[0]), ctx_);
    x_shared_ = pack_rows(op_.x, 1, op_.shared.w1, fp8(op_, op_.shared), ctx_);
    inner_ = op_.shared.w1.rows;
    for (std::int64_t g = 0; g < n_groups_; ++g) {
      const ExpertWeights& e = *groups_[g].expert;
      const Weight& packed_for = &e == &op_.shared ? op_.shared.w1 : routed;
      FATHOM_CHECK(e.w1.dtype == packed_for.dtype && e.w3.dtype == packed_for.dtype, "w1 and w3 of one format");
      inner_ = std::max(inner_, e.w1.rows);
    }
    z_ld_ = packed_ld(padded_cols(inner_));
    x_ = ctx_.scratch.take<const float*>(most_pairs_);
    z_ = ctx_.scratch.take<float>(most_pairs_ * z_ld_);
    up_ = ctx_.scratch.take<float>(most_pairs_ * z_ld_);
    y_ = ctx_.scratch.take<float>(most_pairs_ * op_.y.cols);
    z_rows_ = ctx_.scratch.take<float*>(most_pairs_);
    up_rows_ = ctx_.scratch.take<float*>(most_pairs_);
    y_rows_ = ctx_.scratch.take<float*>(most_pairs_);
    for (std::int64_t i = 0; i < most_pairs_; ++i) {
      z_rows_[i] = z_ + i * z_ld_;
      up_rows_[i] = up_ + i * z_ld_;
      y_rows_[i] = y_ + i * op_.y.cols;
    }
    for (std::int64_t t = 0; t < op_.y.rows; ++t) std::fill_n(op_.y.row(t), op_.y.cols, 0.0F);
  }

  void wave(std::int64_t begin, std::int64_t end) {
    const std::int64_t first = groups_[begin].first;
    const std::int64_t n = groups_[end - 1].first + groups_[end - 1].n - first;
    for (std::int64_t g = begin; g < end; ++g) {
      const PackedRows& x = input_of(*groups_[g].expert);
      for (std::int64_t i = 0; i < groups_[g].n; ++i) {
        const std::int64_t at = groups_[g].first + i;
        x_[at - first] = x.row(token_of_[at]);
      }
    }
    over_rows(begin, end, &ExpertWeights::w1, [&](const Group& g, std::int64_t row, std::int64_t last) {
      const std::int64_t at = g.first - first;
      multiply_rows(g.expert->w1, row, last, x_ + at, g.n, input_of(*g.expert).pairs, z_rows_ + at);
      multiply_rows(g.expert->w3, row, last, x_ + at, g.n, input_of(*g.expert).pairs, up_rows_ + at);
      for (std::int64_t i = at; i < at + g.n; ++i) {
        HWY_DYNAMIC_DISPATCH(SwiGlu)
        (z_rows_[i] + row, up_rows_[i] + row, last - row, op_.swiglu_limit, weight_of_[first + i], z_rows_[i] + row);
      }
    });
    // The packed z takes the place of `up`, which is used up.
    ctx_.pool.parallel_for(n, grain(n, 4 * inner_, 1, ctx_), [&](std::int64_t b, std::int64_t e, int) {
      for (std::int64_t i = b; i < e; ++i) {
        const ExpertWeights& expert = *group_of(begin, end, first + i).expert;
        pack_row(z_rows_[i], 1, expert.w2, fp8(op_, expert), z_pairs(expert), up_rows_[i]);
      }
    });
    over_rows(begin, end, &ExpertWeights::w2, [&](const Group& g, std::int64_t row, std::int64_t last) {
      const std::int64_t at = g.first - first;
      multiply_rows(g.expert->w2, row, last, up_rows_ + at, g.n, z_pairs(*g.expert), y_rows_ + at);
    });
    add_results(first, n);
  }

  const Group& group_of(std::int64_t begin, std::int64_t end, std::int64_t pair) const {
    return *(std::upper_bound(groups_ + begin, groups_ + end, pair,
                              [](std::int64_t p, const Group& g) { return p < g.first; }) -
             1);
  }

  // body(group, first row, last row) over the rows of one weight of all experts of a wave, as one flat list: the first
  // of the pool's parts of every expert, then the second.
  template <class Body>
  void over_rows(std::int64_t begin, std::int64_t end, Weight ExpertWeights::*weight, const Body& body) {
    std::int64_t rows = 0;
    std::int64_t most = 1;
    std::int64_t tokens = 0;
    for (std::int64_t g = begin; g < end; ++g) {
      const Weight& w = groups_[g].expert->*weight;
      rows += w.rows;
      most = std::max(most, w.rows);
      tokens = std::max(tokens, groups_[g].n);
    }
    const std::int64_t parts = ctx_.pool.parts();
    const std::int64_t most_of_part = (most + parts - 1) / parts;
    const std::int64_t step = std::min(product_grain(groups_[begin].expert->*weight, rows, tokens, ctx_), most_of_part);
    const std::int64_t per_expert = (most_of_part + step - 1) / step;  // of a part
    const std::int64_t per_part = (end - begin) * per_expert;
    ctx_.pool.parallel_for(parts * per_part, 1, [&](std::int64_t b, std::int64_t e, int) {
      for (std::int64_t i = b; i < e; ++i) {
        const std::int64_t part = i / per_part;
        const Group& g = groups_[begin + i % per_part / per_expert];
        const std::int64_t all = (g.expert->*weight).rows;
        const std::int64_t row = all * part / parts + i % per_expert * step;
        const std::int64_t last = std::min(row + step, all * (part + 1) / parts);
        if (row < last) body(g, row, last);
      }
    });
  }

  // Each token adds the results of its pairs in [first, first + n): ascending experts, the shared one last.
  void add_results(std::int64_t first, std::int64_t n) {
    const std::int64_t tokens = op_.x.rows;
    const std::int64_t k = op_.experts.cols + 1;
    ctx_.pool.parallel_for(tokens, grain(tokens, op_.y.cols, 1, ctx_), [&](std::int64_t b, std::int64_t e, int) {
      for (std::int64_t t = b; t < e; ++t) {
        for (std::int64_t i = 0; i < k; ++i) {
          const std::int64_t at = pair_of_[t * k + i] - first;
          if (0 <= at && at < n) HWY_DYNAMIC_DISPATCH(AddTo)(y_rows_[at], op_.y.cols, op_.y.row(t));
        }
      }
    });
  }

  const Experts& op_;
  Context& ctx_;
  std::int64_t* token_of_ = nullptr;  // per sorted pair
  float* weight_of_ = nullptr;
  std::int64_t* pair_of_ = nullptr;  // [T, k + 1]: place of the token's i-th result in the sorted list
  Group* groups_ = nullptr;
  std::int64_t n_groups_ = 0;
  std::int64_t most_pairs_ = 0;  // of a wave
  std::int64_t inner_ = 0;
  std::int64_t z_ld_ = 0;
  PackedRows x_routed_;
  PackedRows x_shared_;
  const float** x_ = nullptr;  // per pair of a wave, as all that follow
  float* z_ = nullptr;
  float* up_ = nullptr;
  float* y_ = nullptr;
  float** z_rows_ = nullptr;
  float** up_rows_ = nullptr;
  float** y_rows_ = nullptr;
};

}  // namespace

void run(const Experts& op, Context& ctx) {
  FATHOM_CHECK(op.y.rows == op.x.rows && op.y.cols == op.x.cols, "y has the shape of x");
  if (op.x.rows == 0) return;
  Run(op, ctx).all();
}

}  // namespace fathom::ops::cpu
#endif
