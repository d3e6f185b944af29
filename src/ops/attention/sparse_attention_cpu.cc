// Each visible entry is decoded to f32 once and serves all heads. The visible rows of a token are taken in blocks of
// kBlock, in their order, with a running softmax per head: the state is a few numbers per head whatever the context,
// and what a head computes depends on the token's position alone. With enough tokens a thread takes a token; with few,
// a thread takes some heads and decodes all rows for itself, because rows that another core has just written are slow
// to come by; with so many threads that decoding would be most of it, they share the decoding of each block and then
// its heads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/sparse_attention_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/entry-inl.h"
#include "ops/simd/vector-inl.h"

#ifndef FATHOM_OPS_ATTENTION_SPARSE_ATTENTION_CPU_CC_
#define FATHOM_OPS_ATTENTION_SPARSE_ATTENTION_CPU_CC_
namespace fathom::ops {
namespace {

constexpr std::int64_t kBlock = 64;         // rows of a block
constexpr std::int64_t kTileHeads = 4;      // heads that share the loads of a row
constexpr std::int64_t kOwnRowsHeads = 16;  // a thread with so many heads had better decode all rows for itself

// One head of one token between blocks.
struct alignas(64) HeadState {
  float sums[16];  // of exp(score - top), row j of a block in lane j mod 16
  float top;       // the largest score so far, the sink included
  float sink;      // exp(sink - top)
};

// The visible rows of one token, in their order: window positions, then entries.
struct Visible {
  const SparseAttention* op;
  const Segment* segment;
  const std::int32_t* selected;  // or null: all entries
  std::int32_t first_position;
  std::int64_t window;  // rows from the window
  std::int64_t rows;
};

// What attends: `heads` heads of one token over a block of decoded rows.
struct Block {
  const float* q;     // [heads, dim]
  const float* rows;  // [n, dim], dim a multiple of 16
  std::int64_t n;     // <= kBlock
  std::int64_t dim;
  std::int64_t heads;
  float scale;
  HeadState* states;  // [heads]
  float* out;         // [heads, dim], unnormalised
};

}  // namespace
}  // namespace fathom::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

constexpr int kTileRows = kWidth == 8 || HWY_TARGET == HWY_SSE4 ? 2 : 4;

// scores[h][j] for kHeads heads and kRows rows from j on.
template <int kHeads, int kRows>
HWY_INLINE void score_tile(const Block& b, std::int64_t h, std::int64_t j, float (*scores)[kBlock]) {
  alignas(64) float sums[kHeads][kRows][16];
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
    V acc[kHeads][kRows];
    FATHOM_UNROLL for (int i = 0; i < kHeads; ++i) {
      FATHOM_UNROLL for (int r = 0; r < kRows; ++r) acc[i][r] = hn::Zero(D());
    }
    const float* q = b.q + h * b.dim + p * kWidth;
    const float* rows = b.rows + j * b.dim + p * kWidth;
    for (std::int64_t k = 0; k < b.dim; k += 16) {
      V x[kHeads];
      FATHOM_UNROLL for (int i = 0; i < kHeads; ++i) x[i] = hn::LoadU(D(), q + i * b.dim + k);
      FATHOM_UNROLL for (int r = 0; r < kRows; ++r) {
        const V row = hn::LoadU(D(), rows + r * b.dim + k);
        FATHOM_UNROLL for (int i = 0; i < kHeads; ++i) acc[i][r] = hn::MulAdd(x[i], row, acc[i][r]);
      }
    }
    FATHOM_UNROLL for (int i = 0; i < kHeads; ++i) {
      FATHOM_UNROLL for (int r = 0; r < kRows; ++r) hn::StoreU(acc[i][r], D(), &sums[i][r][p * kWidth]);
    }
  }
  for (int i = 0; i < kHeads; ++i) {
    for (int r = 0; r < kRows; ++r) scores[i][j + r] = sum_lanes(load_lanes(sums[i][r])) * b.scale;
  }
}

template <int kHeads>
HWY_INLINE void score_block(const Block& b, std::int64_t h, float (*scores)[kBlock]) {
  std::int64_t j = 0;
  for (; j + kTileRows <= b.n; j += kTileRows) score_tile<kHeads, kTileRows>(b, h, j, scores);
  for (; j < b.n; ++j) score_tile<kHeads, 1>(b, h, j, scores);
  const std::int64_t whole = (b.n + 15) / 16 * 16;
  for (int i = 0; i < kHeads; ++i)
    std::fill(scores[i] + b.n, scores[i] + whole, -std::numeric_limits<float>::infinity());
}

// Scores become weights exp(score - top); what was summed before is brought down to the new top.
HWY_INLINE void weigh_scores(std::int64_t n, float* scores, HeadState& s, float* out, std::int64_t dim) {
  Lanes top;
  FATHOM_UNROLL for (int p = 0; p < kParts; ++p) top.part[p] = hn::Set(D(), s.top);
  for (std::int64_t j = 0; j < n; j += 16) {
    FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
      top.part[p] = hn::Max(top.part[p], hn::LoadU(D(), scores + j + p * kWidth));
    }
  }
  float tops[16];
  store_lanes(top, tops);
  const float new_top = *std::max_element(tops, tops + 16);
  if (new_top != s.top) {
    const auto d1 = hn::CappedTag<float, 1>();
    const float down = hn::GetLane(exponential(d1, hn::Set(d1, s.top - new_top)));
    s.top = new_top;
    s.sink *= down;
    store_lanes(fma(load_lanes(s.sums), broadcast(down), zero_lanes()), s.sums);
    for (std::int64_t i = 0; i < dim; i += kWidth)
      hn::StoreU(hn::Mul(hn::LoadU(D(), out + i), hn::Set(D(), down)), D(), out + i);
  }
  Lanes sums = load_lanes(s.sums);
  for (std::int64_t j = 0; j < n; j += 16) {
    FATHOM_UNROLL for (int p = 0; p < kParts; ++p) {
      float* at = scores + j + p * kWidth;
      const auto w = exponential(D(), hn::Sub(hn::LoadU(D(), at), hn::Set(D(), s.top)));
      hn::StoreU(w, D(), at);
      sums.part[p] = hn::Add(sums.part[p], w);
    }
  }
  store_lanes(sums, s.sums);
}

// out[h] += weights[h][j] * row j, rows in order, kRegisters registers of the row at a time.
template <int kHeads, int kRegisters>
HWY_INLINE void add_values(const Block& b, std::int64_t h, std::int64_t i, const float (*weights)[kBlock]) {
  V acc[kHeads][kRegisters];
  FATHOM_UNROLL for (int a = 0; a < kHeads; ++a) {
    FATHOM_UNROLL for (int c = 0; c < kRegisters; ++c) acc[a][c] =
        hn::LoadU(D(), b.out + (h + a) * b.dim + i + c * kWidth);
  }
  const float* row = b.rows + i;
  for (std::int64_t j = 0; j < b.n; ++j, row += b.dim) {
    V v[kRegisters];
    FATHOM_UNROLL for (int c = 0; c < kRegisters; ++c) v[c] = hn::LoadU(D(), row + c * kWidth);
    FATHOM_UNROLL for (int a = 0; a < kHeads; ++a) {
      const V w = hn::Set(D(), weights[a][j]);
      FATHOM_UNROLL for (int c = 0; c < kRegisters; ++c) acc[a][c] = hn::MulAdd(w, v[c], acc[a][c]);
    }
  }
  FATHOM_UNROLL for (int a = 0; a < kHeads; ++a) {
    FATHOM_UNROLL for (int c = 0; c < kRegisters; ++c)
        hn::StoreU(acc[a][c], D(), b.out + (h + a) * b.dim + i + c * kWidth);
  }
}

template <int kHeads>
void attend(const Block& b, std::int64_t h) {
  alignas(64) float scores[kHeads][kBlock];
  score_block<kHeads>(b, h, scores);
  for (int a = 0; a < kHeads; ++a) weigh_scores(b.n, scores[a], b.states[h + a], b.out + (h + a) * b.dim, b.dim);
  constexpr int kRegisters = kWidth == 8 || HWY_TARGET == HWY_SSE4 ? 2 : 4;
  std::int64_t i = 0;
  for (; i + kRegisters * kWidth <= b.dim; i += kRegisters * kWidth) add_values<kHeads, kRegisters>(b, h, i, scores);
  for (; i < b.dim; i += kWidth) add_values<kHeads, 1>(b, h, i, scores);
}

void AttendBlock(const Block& b) {
  std::int64_t h = 0;
  for (; h + kTileHeads <= b.heads; h += kTileHeads) attend<kTileHeads>(b, h);
  for (; h < b.heads; ++h) attend<1>(b, h);
}

void DecodeEntry(const quant::EntryCodec& codec, const std::byte* in, float* x) { decode_entry(codec, in, x); }

// out divided by the sum of weights, turned back by the query's position. out: [dim], padded; o: op.kv.cols values.
void FinishHead(const HeadState& s, std::int64_t dim, const float* cos, const float* sin, std::int64_t pairs,
                const float* out, float* o) {
  const float inverse = static_cast<float>(1.0 / (double{sum_lanes(load_lanes(s.sums))} + double{s.sink}));
  for_each_register(dim, [&](auto d, std::int64_t i)
                             HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, out + i), hn::Set(d, inverse)), d, o + i); });
  rotate(o, dim, cos, sin, pairs, -1);
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::cpu {
namespace {

HWY_EXPORT(AttendBlock);
HWY_EXPORT(DecodeEntry);
HWY_EXPORT(FinishHead);

Visible visible_rows(const SparseAttention& op, std::int64_t t) {
  const std::int32_t position = op.batch.positions[t];
  const Segment& segment = op.batch.segments[op.batch.segment_of[t]];
  const bool block = op.pattern == Pattern::kDraftBlock;
  Visible v = {.op = &op,
               .segment = &segment,
               .selected = nullptr,
               .first_position = std::max(0, (block ? segment.start : position + 1) - op.window),
               .window = 0,
               .rows = 0};
  v.window = (block ? segment.start + segment.tokens : position + 1) - v.first_position;
  v.rows = v.window;
  if (op.entries.ratio == 0) return v;
  const std::int32_t exist = (position + 1) / op.entries.ratio;
  if (op.selected.data == nullptr) {
    v.rows += exist;
    return v;
  }
  v.selected = op.selected.row(t);
  const std::int32_t* end = std::find(v.selected, v.selected + op.selected.cols, -1);  // ascending, then -1
  FATHOM_CHECK(v.selected == end || *(end - 1) < exist, "only entries that exist are selected");
  v.rows += end - v.selected;
  return v;
}

void decode_row(const Visible& v, std::int64_t j, std::int64_t padded, float* row) {
  const SparseAttention& op = *v.op;
  if (j < v.window) {
    const auto p = static_cast<std::int32_t>(v.first_position + j);
    if (p < v.segment->start) {
      HWY_DYNAMIC_DISPATCH(DecodeEntry)(op.ring.codec, op.ring.at(v.segment->slot, p), row);
    } else {
      std::copy_n(op.kv.row(v.segment->first_row + p - v.segment->start), op.kv.cols, row);
    }
  } else {
    const auto i = static_cast<std::int32_t>(j - v.window);
    const std::int32_t w = v.selected == nullptr ? i : v.selected[i];
    HWY_DYNAMIC_DISPATCH(DecodeEntry)(op.entries.codec, op.entries.at(*v.segment, w), row);
  }
  std::fill(row + op.kv.cols, row + padded, 0.0F);
}

// Queries, sums and states of one token at a time. dim: of a head, filled up to 16.
struct Token {
  std::int64_t dim;
  float* q;           // [H, dim]
  float* out;         // [H, dim]
  HeadState* states;  // [H]
};

class Run {
 public:
  Run(const SparseAttention& op, Context& ctx)
      : op_(op),
        ctx_(ctx),
        dim_((op.kv.cols + 15) / 16 * 16),
        scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(op.kv.cols)))) {}

  void all() {
    if (op_.batch.tokens >= 2 * ctx_.pool.size() || ctx_.pool.size() == 1) {
      tokens_to_threads();
    } else if (op_.heads >= kOwnRowsHeads * ctx_.pool.size()) {
      shares_to_threads();
    } else {
      for (std::int64_t t = 0; t < op_.batch.tokens; ++t) heads_to_threads(t);
    }
  }

 private:
  Token make_token() {
    return {dim_, ctx_.scratch.take<float>(op_.heads * dim_), ctx_.scratch.take<float>(op_.heads * dim_),
            ctx_.scratch.take<HeadState>(op_.heads)};
  }

  void begin(std::int64_t t, const Token& token, std::int64_t h) const {
    const std::int64_t dim = op_.kv.cols;
    float* q = token.q + h * dim_;
    std::copy_n(op_.q.row(t) + h * dim, dim, q);
    std::fill(q + dim, q + dim_, 0.0F);
    std::fill_n(token.out + h * dim_, dim_, 0.0F);
    token.states[h] = {.sums = {}, .top = op_.sink[h], .sink = 1};
  }

  void attend(const Token& token, std::int64_t head, std::int64_t heads, const float* rows, std::int64_t n) const {
    HWY_DYNAMIC_DISPATCH(AttendBlock)
    ({.q = token.q + head * dim_,
      .rows = rows,
      .n = n,
      .dim = dim_,
      .heads = heads,
      .scale = scale_,
      .states = token.states + head,
      .out = token.out + head * dim_});
  }

  void end(std::int64_t t, const Token& token, std::int64_t h) const {
    HWY_DYNAMIC_DISPATCH(FinishHead)
    (token.states[h], op_.kv.cols, op_.cos.row(t), op_.sin.row(t), op_.cos.cols, token.out + h * dim_,
     op_.out.row(t) + h * op_.kv.cols);
  }

  // Some heads of a token over all its rows. rows: memory of a block.
  void attend_all(std::int64_t t, const Token& token, std::int64_t first, std::int64_t heads, float* rows) const {
    for (std::int64_t h = first; h < first + heads; ++h) begin(t, token, h);
    const Visible v = visible_rows(op_, t);
    for (std::int64_t j = 0; j < v.rows; j += kBlock) {
      const std::int64_t n = std::min(kBlock, v.rows - j);
      for (std::int64_t i = 0; i < n; ++i) decode_row(v, j + i, dim_, rows + i * dim_);
      attend(token, first, heads, rows, n);
    }
    for (std::int64_t h = first; h < first + heads; ++h) end(t, token, h);
  }

  void tokens_to_threads() {
    auto* tokens = ctx_.scratch.take<Token>(ctx_.pool.size());
    auto** rows = ctx_.scratch.take<float*>(ctx_.pool.size());
    for (int i = 0; i < ctx_.pool.size(); ++i) {
      tokens[i] = make_token();
      rows[i] = ctx_.scratch.take<float>(kBlock * dim_);
    }
    ctx_.pool.parallel_for(op_.batch.tokens, 1, [&](std::int64_t first, std::int64_t last, int worker) {
      for (std::int64_t t = first; t < last; ++t) attend_all(t, tokens[worker], 0, op_.heads, rows[worker]);
    });
  }

  // A thread takes an equal share of the heads of every token, and decodes all rows for itself.
  void shares_to_threads() {
    const int threads = ctx_.pool.size();
    auto* tokens = ctx_.scratch.take<Token>(threads);
    auto** rows = ctx_.scratch.take<float*>(threads);
    for (int i = 0; i < threads; ++i) {
      tokens[i] = make_token();
      rows[i] = ctx_.scratch.take<float>(kBlock * dim_);
    }
    const std::int64_t share = ((op_.heads + threads - 1) / threads + kTileHeads - 1) / kTileHeads * kTileHeads;
    ctx_.pool.parallel_for(op_.batch.tokens * threads, 1, [&](std::int64_t turn, std::int64_t, int worker) {
      const std::int64_t first = turn % threads * share;
      const std::int64_t heads = std::min(share, op_.heads - first);
      if (heads > 0) attend_all(turn / threads, tokens[worker], first, heads, rows[worker]);
    });
  }

  // A megabyte of rows at a time: decoded by all, then attended to by all.
  void heads_to_threads(std::int64_t t) {
    constexpr std::int64_t kRows = 8 * kBlock;
    const Visible v = visible_rows(op_, t);
    if (token_.q == nullptr) {
      token_ = make_token();
      rows_ = ctx_.scratch.take<float>(kRows * dim_);
    }
    for (std::int64_t j = 0; j < v.rows; j += kRows) {
      const std::int64_t n = std::min(kRows, v.rows - j);
      ctx_.pool.parallel_for(n, grain(n, 8 * dim_, 1, ctx_), [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t i = first; i < last; ++i) decode_row(v, j + i, dim_, rows_ + i * dim_);
      });
      const std::int64_t heads = grain(op_.heads, 2 * n * dim_, kTileHeads, ctx_);
      ctx_.pool.parallel_for(op_.heads, heads, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t h = first; j == 0 && h < last; ++h) begin(t, token_, h);
        for (std::int64_t i = 0; i < n; i += kBlock)
          attend(token_, first, last - first, rows_ + i * dim_, std::min(kBlock, n - i));
        for (std::int64_t h = first; j + n == v.rows && h < last; ++h) end(t, token_, h);
      });
    }
  }

  const SparseAttention& op_;
  Context& ctx_;
  std::int64_t dim_;
  float scale_;
  Token token_ = {};
  float* rows_ = nullptr;
};

}  // namespace

void run(const SparseAttention& op, Context& ctx) {
  FATHOM_CHECK(op.q.cols == op.heads * op.kv.cols && op.out.cols == op.q.cols, "heads of the entries' width");
  FATHOM_CHECK(op.ring.capacity >= op.window, "the ring holds the window");
  FATHOM_CHECK(op.pattern == Pattern::kCausal || op.entries.ratio == 0, "draft blocks see no compressed entries");
  Run(op, ctx).all();
}

void run(const StoreWindow& op, Context& ctx) {
  for (std::int32_t i = 0; i < op.batch.n_segments; ++i) {
    const Segment& s = op.batch.segments[i];
    const std::int32_t first = std::max(0, s.tokens - op.ring.capacity);
    const std::int64_t n = s.tokens - first;
    ctx.pool.parallel_for(n, grain(n, 32 * op.kv.cols, 1, ctx), [&](std::int64_t begin, std::int64_t end, int) {
      for (auto k = static_cast<std::int32_t>(first + begin); k < first + end; ++k) {
        const float* kv = op.kv.row(s.first_row + k);
        op.ring.codec.encode({kv, static_cast<std::size_t>(op.kv.cols)}, op.ring.at(s.slot, s.start + k));
      }
    });
  }
}

}  // namespace fathom::ops::cpu
#endif
