// Scores by index_score_cpu.cc. The highest are found by their bits, most significant first, in three passes over the
// scores and a fourth that writes them down.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/indexer/index_score.h"

namespace fathom::ops::cpu {
namespace {

// Larger for larger scores; NaN is 0, below every number. A score is a sum that starts from zero, so it is never minus
// zero.
std::uint32_t rank(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

constexpr std::int32_t kPartScores = 16'384;  // a thread's turn of selection
constexpr std::int32_t kDigits = 1 << 11;

// Some consecutive scores on the way to the selection.
struct Part {
  std::int32_t above;  // ranks above the k-th highest, as far as its digits are known
  std::int32_t equal;  // ranks that share those digits
  std::array<std::int32_t, kDigits> count;
};

std::int32_t parts_of(std::int32_t n) { return (n + kPartScores - 1) / kPartScores; }

// select_top without sorting: finds the rank of the k-th highest digit by digit, then takes what lies above it and the
// first of its equals. parts: scratch, parts_of(n); each(body) calls body(i) once for every part, in any order.
template <class Each>
void select_highest(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* selected, Part* parts,
                    const Each& each) {
  const std::int32_t n_parts = parts_of(n);
  const auto for_scores = [&](std::int32_t part, const auto& body) {
    const std::int32_t end = std::min(n, (part + 1) * kPartScores);
    for (std::int32_t i = part * kPartScores; i < end; ++i) body(i, rank(scores[i]));
  };
  std::uint32_t known = 0;  // the leading digits of the k-th highest rank
  std::int32_t left = k;    // how many of those that share them are selected
  for (std::int32_t p = 0; p < n_parts; ++p) parts[p].above = 0;
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    const unsigned mask = (1U << bits) - 1;
    each([&, shift = shift, bits = bits](std::int32_t p) {
      std::array<std::int32_t, kDigits>& count = parts[p].count;
      count.fill(0);
      for_scores(p, [&](std::int32_t, std::uint32_t r) {
        if (static_cast<std::uint64_t>(r) >> (shift + bits) == known) ++count[(r >> shift) & mask];
      });
    });
    std::uint32_t digit = mask;
    for (;; --digit) {
      std::int32_t all = 0;
      for (std::int32_t p = 0; p < n_parts; ++p) all += parts[p].equal = parts[p].count[digit];
      if (left <= all) break;
      left -= all;
      for (std::int32_t p = 0; p < n_parts; ++p) parts[p].above += parts[p].equal;
    }
    known = known << bits | digit;
  }
  each([&](std::int32_t p) {
    std::int32_t at = 0;
    std::int32_t equals = left;
    for (std::int32_t before = 0; before < p; ++before) {
      const std::int32_t taken = std::min(equals, parts[before].equal);
      at += parts[before].above + taken;
      equals -= taken;
    }
    for_scores(p, [&](std::int32_t i, std::uint32_t r) {
      if (r > known || (r == known && equals-- > 0)) selected[at++] = i;
    });
  });
}

class Run {
 public:
  Run(const IndexSelect& op, Context& ctx) : op_(op), ctx_(ctx) {
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
  bool scored(std::int64_t t) const { return exist(t) > op_.selected.cols; }
  const Segment& segment(std::int64_t t) const { return op_.batch.segments[op_.batch.segment_of[t]]; }

  template <class Each>
  void select(std::int64_t t, const float* scores, Part* parts, const Each& each) const {
    const std::int32_t n = exist(t);
    const auto k = std::min(n, static_cast<std::int32_t>(op_.selected.cols));
    std::int32_t* selected = op_.selected.row(t);
    if (scored(t)) select_highest(scores, n, k, selected, parts, each);
    else std::iota(selected, selected + k, 0);
    std::fill(selected + k, selected + op_.selected.cols, -1);
  }

  struct Worker {
    ScoreQuery query;
    float* keys;
    float* scores;
    Part* parts;
  };

  void tokens_to_threads() {
    auto* workers = ctx_.scratch.take<Worker>(ctx_.pool.size());
    for (int i = 0; most_ > 0 && i < ctx_.pool.size(); ++i) {
      workers[i] = {.query = take_score_query(op_, ctx_.scratch),
                    .keys = take_score_keys(op_, ctx_.scratch),
                    .scores = ctx_.scratch.take<float>(most_),
                    .parts = ctx_.scratch.take<Part>(parts_of(most_))};
    }
    const std::int64_t cost = 64 + std::int64_t{most_} * op_.q.cols / 4;
    ctx_.pool.parallel_for(op_.batch.tokens, grain(op_.batch.tokens, cost, 1, ctx_),
                           [&](std::int64_t begin, std::int64_t end, int worker) {
                             Worker& w = workers[worker];
                             for (std::int64_t t = begin; t < end; ++t) {
                               if (scored(t)) {
                                 prepare_query(op_, t, w.query);
                                 score_keys(op_, segment(t), w.query, 0, exist(t), w.keys, w.scores);
                               }
                               select(t, w.scores, w.parts, [n = parts_of(exist(t))](const auto& body) {
                                 for (std::int32_t p = 0; p < n; ++p) body(p);
                               });
                             }
                           });
  }

  void keys_to_threads() {
    ScoreQuery query = take_score_query(op_, ctx_.scratch);
    auto** keys = ctx_.scratch.take<float*>(ctx_.pool.size());
    for (int i = 0; i < ctx_.pool.size(); ++i) keys[i] = take_score_keys(op_, ctx_.scratch);
    auto* scores = ctx_.scratch.take<float>(most_);
    auto* parts = ctx_.scratch.take<Part>(parts_of(most_));
    for (std::int64_t t = 0; t < op_.batch.tokens; ++t) {
      const std::int32_t n = exist(t);
      if (scored(t)) {
        prepare_query(op_, t, query);
        ctx_.pool.parallel_for(n, grain(n, op_.q.cols / 4, kScoreKeys, ctx_),
                               [&](std::int64_t begin, std::int64_t end, int worker) {
                                 score_keys(op_, segment(t), query, static_cast<std::int32_t>(begin),
                                            static_cast<std::int32_t>(end), keys[worker], scores);
                               });
      }
      select(t, scores, parts, [&](const auto& body) {
        ctx_.pool.parallel_for(parts_of(n), 1,
                               [&](std::int64_t p, std::int64_t, int) { body(static_cast<std::int32_t>(p)); });
      });
    }
  }

  const IndexSelect& op_;
  Context& ctx_;
  std::int32_t most_ = 0;  // scores of a token
};

}  // namespace

void run(const IndexSelect& op, Context& ctx) {
  FATHOM_CHECK(op.weights.cols == op.heads && op.keys.ratio > 0, "one weight per head, entries that exist");
  Run(op, ctx).all();
}

}  // namespace fathom::ops::cpu
