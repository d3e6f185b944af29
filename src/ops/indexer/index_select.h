// The indexer: which compressed entries a token of a ratio-4 layer attends to. model.md 6.
#pragma once

#include "ops/batch.h"
#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

// Index queries: each head rotated, Hadamard-transformed, rounded to FP4 where `quantise`. In place.
struct IndexQuery {
  Mat<float> q;  // [T, Hi*Di]
  std::int32_t heads = 0;
  Mat<const float> cos;  // [T, R/2]
  Mat<const float> sin;
  bool quantise = false;
  Carrier carrier = Carrier::kF32;
};

// score(t, w) = sum_h scale * weights[t, h] * max(0, q[t, h] . key[w]) over the entries w < (p+1)/ratio that exist; the
// min(K, exist) highest are selected, ties by the lowest entry. Where exist <= K nothing is scored.
// A NaN score ranks below every number: whatever the inputs, only entries that exist are selected.
struct IndexSelect {
  Mat<const float> q;        // [T, Hi*Di]
  Mat<const float> weights;  // [T, Hi]
  float scale = 1;           // Di^-0.5 * Hi^-0.5
  std::int32_t heads = 0;
  Batch batch;
  EntryPages keys;
  Mat<std::int32_t> selected;  // [T, K]: ascending entries, then -1
  Carrier carrier = Carrier::kF32;
};

// The scores of token t over entries [0, n), as IndexSelect ranks them. Host memory; for the golden vectors.
void index_scores(const IndexSelect& op, std::int64_t t, std::int32_t n, float* scores);

// The k highest of n scores, ascending by index, ties by the lowest index; NaN ranks lowest. order: scratch of n.
void select_top(const float* scores, std::int32_t n, std::int32_t k, std::int32_t* order, std::int32_t* selected);

namespace ref {
void run(const IndexQuery& op);
void run(const IndexSelect& op);
}  // namespace ref

}  // namespace fathom::ops
