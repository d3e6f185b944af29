// Activations: the memory of one step, allocated once for the largest step. Names are those of model.md.
#pragma once

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "ops/backend.h"

namespace fathom::model {

// One view per value, each with a row per token of the step. In backend memory.
struct ActivationViews {
  Mat<float> streams;          // [T, C*d] the trunk's residual streams
  Mat<float> draft_streams;    // [T, C*d] a draft block's
  Mat<float> x;                // [T, d] input of a sub-layer, normalised
  Mat<float> y;                // [T, d] its output
  Mat<float> post;             // [T, C]
  Mat<float> comb;             // [T, C*C]
  Mat<float> cos, sin;         // [T, R/2] window-only layers
  Mat<float> ccos, csin;       // [T, R/2] compressed layers
  Mat<float> qr;               // [T, Q]
  Mat<float> q;                // [T, H*D]
  Mat<float> kv;               // [T, D]
  Mat<float> o;                // [T, H*D]
  Mat<float> z;                // [T, G*O]
  Mat<float> ckv, cscore;      // [T, 2*D] compressor projections; ratio 128 uses the first half of the columns
  Mat<float> ikv, iscore;      // [T, 2*Di] the indexer compressor's
  Mat<float> iq;               // [T, Hi*Di]
  Mat<float> iweights;         // [T, Hi]
  Mat<std::int32_t> selected;  // [T, K]
  Mat<float> gate;             // [T, E]
  Mat<std::int32_t> experts;   // [T, k]
  Mat<float> expert_weights;   // [T, k]
  Mat<float> e;                // [T, d] MTP: normalised embedding, then
  Mat<float> e_proj;           // [T, d] its projection
  Mat<float> h;                // [T, C*d] MTP: normalised streams, then
  Mat<float> h_proj;           // [T, C*d] their projections
  Mat<float> taps;             // [T, taps*d] DSpark: mean streams of the tapped layers
  Mat<float> main;             // [T, d] their projection, normalised

  // The first `tokens` rows of everything.
  ActivationViews first(std::int64_t tokens) const;
};

class Activations {
 public:
  // Error: kExhausted.
  static Result<Activations> allocate(const checkpoint::ModelConfig& config, std::int32_t max_tokens,
                                      ops::Backend& backend);

  const ActivationViews& views() const { return views_; }
  std::size_t bytes() const { return bytes_; }

 private:
  ops::Buffer memory_;
  ActivationViews views_;
  std::size_t bytes_ = 0;
};

}  // namespace fathom::model
