// Forward: one step through the model, in the order of the paper. The file to read first; each function is one section
// of model.md, each line one operation.
#pragma once

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/cache_layout.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "ops/numerics.h"

namespace fathom::model {

// What does not change from step to step. Everything pointed to outlives the Forward.
struct ForwardContext {
  const checkpoint::ModelConfig& config;
  const Weights& weights;
  const CacheLayout& layout;
  ops::Numerics numerics;
  ops::Backend& backend;
  const float* frequencies = nullptr;             // [R/2] window-only layers
  const float* compressed_frequencies = nullptr;  // [R/2] compressed layers
};

// A layer among others: what one leaves is mixed with what the next takes in (hc_post_pre).
struct LayerTurn {
  bool first = true;                   // false: the one before has mixed this one's input already
  const LayerWeights* next = nullptr;  // whose input this one mixes, null: nobody's
};

class Forward {
 public:
  // `a` has one row per token of the batch; ids, positions and segments are filled in.
  Forward(const ForwardContext& context, const ActivationViews& a, const ops::Batch& batch)
      : c_(context.config), ctx_(context), b_(context.backend), a_(a), batch_(batch) {}

  // Section 1: token ids to a.streams after the last layer, with the taps that DSpark drafts from.
  void trunk();
  // Section 10.1: a.h [T, C*d] holds the normalised streams (hnorm, per stream), batch ids the next
  // tokens; leaves a.draft_streams.
  void mtp(const MtpWeights& mtp, std::int32_t layer_index);

  // Section 10.2, the end of trunk(): what the stages will attend to of these tokens, into every stage's window ring.
  void dspark_context(const DsparkWeights& w);
  // Section 10.2: one block a segment, ids [anchor, noise, ...]; leaves a.draft_streams after the last stage.
  void dspark_block(const DsparkWeights& w);

  // cos and sin of the batch's positions, for both tables. Part of whatever starts a step.
  void rope_tables();
  // One layer over `streams`, in place.
  void layer(const LayerWeights& w, const LayerCache& cache, Mat<float> streams, LayerTurn turn = {},
             ops::Pattern pattern = ops::Pattern::kCausal);
  // Section 4: a.x to a.y. Sections 5 and 6 happen inside, for compressed layers. A draft block leaves its window
  // untouched.
  void attention(const AttentionWeights& w, const LayerCache& cache, ops::Pattern pattern = ops::Pattern::kCausal);
  // Section 8: a.x to a.y.
  void moe(const MoeWeights& w);
  // Section 2.4: some rows of streams to inputs of the head, x [rows, d].
  void head_input(const ops::HyperConnection& hc_head, const float* norm, Mat<const float> streams, Mat<float> x) const;
  // Section 1: x to logits [rows, V].
  void logits(Mat<const float> x, Mat<float> logits) const;

 private:
  // A linear layer of the quantised kind (FP8, FP4): its input passes through FP8 in official numerics.
  ops::Linear linear_q(Mat<const float> x, const ops::Weight& w, Mat<float> y) const;
  // A linear layer in f32: compressors, gate, head. Its output is not rounded to the carrier.
  ops::Linear linear_f32(Mat<const float> x, const ops::Weight& w, Mat<float> y) const;

  // All products of a.x that a layer's attention begins with: queries, window entries, compressors, indexer.
  void project(const AttentionWeights& w, const LayerCache& cache);
  // Section 4.2: what becomes of the projection in a.kv.
  ops::WindowEntries window_entries(const AttentionWeights& w, Mat<const float> cos, Mat<const float> sin) const;
  // Section 10.2: the mean stream after layer l, if DSpark taps it.
  void tap(std::int32_t l);
  const LayerCache& stage_cache(std::size_t stage) const;
  // Section 5: what becomes of the projections in kv and score.
  ops::Compress compress(const CompressorWeights& w, const ops::CompressorRing& ring, const ops::EntryPages& entries,
                         ops::EntryKind kind, Mat<float> kv, Mat<float> score) const;
  // Section 6: what becomes of the projection in a.iq, and what is selected then.
  ops::IndexQuery index_queries() const;
  ops::IndexSelect select_entries(const LayerCache& cache) const;

  const checkpoint::ModelConfig& c_;
  const ForwardContext& ctx_;
  ops::Backend& b_;
  const ActivationViews& a_;
  const ops::Batch& batch_;
};

}  // namespace fathom::model
