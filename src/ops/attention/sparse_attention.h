// Attention over the visible set: the window, then the compressed entries of the layer. model.md 4.3, 4.4, 7.1-7.3.
//
// Keys and values are one vector. Token t (position p) sees
//   window positions max(0, p - window + 1) .. p: those before its segment's start from the ring, the others from kv;
//   ratio 0: nothing else. ratio 128 (no `selected`): entries 0 .. (p+1)/ratio - 1.
//   ratio 4: the entries its row of `selected` lists (index_select.h).
// all in one softmax with the head's sink in the denominator, in that order: the sum depends on the token's position
// alone, never on how the sequence was cut. The output is turned back by the query's own position (inverse rotation).
// A whole chunk attends before StoreWindow writes it to the ring: the first token still needs what the last overwrites.
#pragma once

#include "ops/batch.h"
#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

// A draft block (model.md 10.2) is the exception: every token of a segment sees the ring's positions
// max(0, start - window) .. start - 1 and all tokens of the segment, in that order, and no compressed entries.
enum class Pattern : std::uint8_t { kCausal, kDraftBlock };

struct SparseAttention {
  Mat<const float> q;   // [T, H*D], rotated
  Mat<const float> kv;  // [T, D], this step's window entries, rotated and quantised
  std::int32_t heads = 0;
  std::int32_t window = 0;
  Pattern pattern = Pattern::kCausal;
  Batch batch;
  WindowRing ring;
  EntryPages entries;                // ratio 0: none
  Mat<const std::int32_t> selected;  // [T, K], or no data: all entries
  const float* sink = nullptr;       // [H], raw logits
  Mat<const float> cos;              // [T, R/2]
  Mat<const float> sin;
  Mat<float> out;  // [T, H*D]; not q
  Carrier carrier = Carrier::kF32;
};

// The last min(tokens, capacity) window entries of every segment, written to its ring at position mod capacity.
struct StoreWindow {
  Mat<const float> kv;  // [T, D]
  Batch batch;
  WindowRing ring;
};

// One head of one token over explicit rows: o = softmax over (scale * q.rows, sink) times rows. model.md 4.3.
// Exposed for the golden vectors; the reference attention is made of it. rows[j] points to dim values. n = 0 gives 0.
void attend_head(const float* q, const float* const* rows, std::int64_t n, std::int64_t dim, float sink, float scale,
                 Carrier carrier, float* o);

namespace ref {
void run(const SparseAttention& op);
void run(const StoreWindow& op);
}  // namespace ref

}  // namespace fathom::ops
