#include "model/forward.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fathom::model {

void Forward::trunk() {
  b_.embed({.ids = batch_.ids, .table = ctx_.weights.embed, .streams = c_.streams, .x = a_.streams});
  rope_tables();
  const auto& layers = ctx_.weights.layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerTurn turn{.first = l == 0, .next = l + 1 < layers.size() ? &layers[l + 1] : nullptr};
    layer(layers[l], ctx_.layout.layers[l], a_.streams, turn);
    tap(static_cast<std::int32_t>(l));
  }
  if (!ctx_.weights.dspark.stages.empty()) dspark_context(ctx_.weights.dspark);
}

void Forward::tap(std::int32_t l) {
  const auto& taps = c_.draft.target_layers;
  const auto at = std::find(taps.begin(), taps.end(), l);
  if (ctx_.weights.dspark.stages.empty() || at == taps.end()) return;
  const std::int64_t column = (at - taps.begin()) * c_.hidden;
  b_.stream_mean({.streams = a_.streams,
                  .y = {a_.taps.data + column, a_.taps.rows, c_.hidden, a_.taps.ld},
                  .carrier = ctx_.numerics.carrier});
}

void Forward::dspark_context(const DsparkWeights& w) {
  b_.linear(linear_q(a_.taps, w.main_proj, a_.main));
  b_.rms_norm({.x = a_.main, .w = w.main_norm, .y = a_.main, .eps = c_.norm_eps, .carrier = ctx_.numerics.carrier});
  for (std::size_t i = 0; i < w.stages.size(); ++i) {
    b_.linear(linear_q(a_.main, w.stages[i].attention.wkv, a_.kv));
    b_.window_entries(window_entries(w.stages[i].attention, a_.cos, a_.sin));
    b_.store_window({.kv = a_.kv, .batch = batch_, .ring = stage_cache(i).window});
  }
}

void Forward::dspark_block(const DsparkWeights& w) {
  rope_tables();
  b_.embed({.ids = batch_.ids, .table = ctx_.weights.embed, .streams = c_.streams, .x = a_.draft_streams});
  for (std::size_t i = 0; i < w.stages.size(); ++i) {
    layer(w.stages[i], stage_cache(i), a_.draft_streams, {}, ops::Pattern::kDraftBlock);
  }
}

const LayerCache& Forward::stage_cache(std::size_t stage) const {
  return ctx_.layout.layers[static_cast<std::size_t>(c_.layers) + stage];
}

void Forward::mtp(const MtpWeights& w, std::int32_t layer_index) {
  rope_tables();
  b_.embed({.ids = batch_.ids, .table = ctx_.weights.embed, .streams = 1, .x = a_.e});
  b_.rms_norm({.x = a_.e, .w = w.enorm, .y = a_.e, .eps = c_.norm_eps, .carrier = ctx_.numerics.carrier});
  b_.linear(linear_q(a_.e, w.e_proj, a_.e_proj));
  const std::int64_t rows = a_.h.rows * c_.streams;
  const Mat<float> h_proj = mat(a_.h_proj.data, rows, c_.hidden);
  b_.linear(linear_q(mat(a_.h.data, rows, c_.hidden), w.h_proj, h_proj));
  b_.mtp_input({.e = a_.e_proj, .h = h_proj, .x = a_.draft_streams, .carrier = ctx_.numerics.carrier});
  layer(w.layer, ctx_.layout.layers[static_cast<std::size_t>(layer_index)], a_.draft_streams, {});
}

void Forward::rope_tables() {
  b_.rope_table({.positions = batch_.positions, .frequencies = ctx_.frequencies, .cos = a_.cos, .sin = a_.sin});
  b_.rope_table(
      {.positions = batch_.positions, .frequencies = ctx_.compressed_frequencies, .cos = a_.ccos, .sin = a_.csin});
}

void Forward::layer(const LayerWeights& w, const LayerCache& cache, Mat<float> streams, LayerTurn turn,
                    ops::Pattern pattern) {
  const auto pre = [&](const ops::HyperConnection& site, const float* norm) {
    return ops::HcPre{.streams = streams,
                      .site = site,
                      .norm_weight = norm,
                      .x = a_.x,
                      .post = a_.post,
                      .comb = a_.comb,
                      .sinkhorn_iters = c_.sinkhorn_iters,
                      .norm_eps = c_.norm_eps,
                      .hc_eps = c_.hc_eps,
                      .carrier = ctx_.numerics.carrier};
  };
  const ops::HcPost post{.y = a_.y,
                         .streams = streams,
                         .post = a_.post,
                         .comb = a_.comb,
                         .out = streams,
                         .carrier = ctx_.numerics.carrier};
  if (turn.first) b_.hc_pre(pre(w.attn_hc, w.attn_norm));
  attention(w.attention, cache, pattern);
  b_.hc_post_pre({.post = post, .pre = pre(w.ffn_hc, w.ffn_norm)});
  moe(w.moe);
  if (turn.next != nullptr) b_.hc_post_pre({.post = post, .pre = pre(turn.next->attn_hc, turn.next->attn_norm)});
  else b_.hc_post(post);
}

void Forward::attention(const AttentionWeights& w, const LayerCache& cache, ops::Pattern pattern) {
  const ops::Carrier carrier = ctx_.numerics.carrier;
  const bool compressed = cache.ratio != 0;
  const Mat<const float> cos = compressed ? a_.ccos : a_.cos;
  const Mat<const float> sin = compressed ? a_.csin : a_.sin;

  project(w, cache);
  const ops::StoreWindow store{.kv = a_.kv, .batch = batch_, .ring = cache.window};
  const bool stores = pattern == ops::Pattern::kCausal;
  const bool store_first = stores && may_store_first(batch_, cache.window.capacity, c_.window);
  ops::AttentionInputs inputs{.latent = {.x = a_.qr, .w = w.q_norm, .y = a_.qr, .eps = c_.norm_eps, .carrier = carrier},
                              .window = window_entries(w, cos, sin)};
  if (store_first) inputs.store = store;
  if (compressed) {
    inputs.entries = compress(w.compressor, cache.compressor, cache.entries, ops::EntryKind::kMain, a_.ckv, a_.cscore);
  }
  ops::Queries queries{
      .heads = {.q = a_.q, .heads = c_.heads, .cos = cos, .sin = sin, .eps = c_.norm_eps, .carrier = carrier}};
  if (cache.ratio == 4) {
    const IndexerWeights& i = w.indexer;
    inputs.keys =
        compress(i.compressor, cache.index_compressor, cache.index_keys, ops::EntryKind::kIndex, a_.ikv, a_.iscore);
    queries.index = index_queries();
    b_.attention_inputs(inputs);
    b_.linears(std::array{linear_q(a_.qr, w.wq_b, a_.q), linear_q(a_.qr, i.wq_b, a_.iq)});
  } else {
    b_.attention_inputs(inputs);
    b_.linear(linear_q(a_.qr, w.wq_b, a_.q));
  }
  ops::Attend attend{
      .queries = queries,
      .attention = {.q = a_.q,
                    .kv = a_.kv,
                    .heads = c_.heads,
                    .window = c_.window,
                    .pattern = pattern,
                    .batch = batch_,
                    .ring = cache.window,
                    .entries = cache.entries,
                    .selected = cache.ratio == 4 ? Mat<const std::int32_t>(a_.selected) : Mat<const std::int32_t>{},
                    .sink = w.sink,
                    .cos = cos,
                    .sin = sin,
                    .out = a_.o,
                    .carrier = carrier},
      // wo_a is the one quantised weight whose input is not (model.md 4.4).
      .project = {.x = a_.o,
                  .w = w.wo_a,
                  .y = a_.z,
                  .groups = c_.o_groups,
                  .quantise_x = false,
                  .x_carrier = carrier,
                  .carrier = carrier}};
  if (cache.ratio == 4) attend.select = select_entries(cache);
  b_.attend(attend);
  if (stores && !store_first) b_.store_window(store);
  b_.linear(linear_q(a_.z, w.wo_b, a_.y));
}

void Forward::project(const AttentionWeights& w, const LayerCache& cache) {
  std::array<ops::Linear, 7> all;
  std::size_t n = 0;
  all[n++] = linear_q(a_.x, w.wq_a, a_.qr);
  all[n++] = linear_q(a_.x, w.wkv, a_.kv);
  const auto compressor = [&](const CompressorWeights& of, const ops::CompressorRing& ring, const Mat<float>& kv,
                              const Mat<float>& score) {
    all[n++] = linear_f32(a_.x, of.wkv, mat(kv.data, kv.rows, ring.width));
    all[n++] = linear_f32(a_.x, of.wgate, mat(score.data, score.rows, ring.width));
  };
  if (cache.ratio != 0) compressor(w.compressor, cache.compressor, a_.ckv, a_.cscore);
  if (cache.ratio == 4) {
    compressor(w.indexer.compressor, cache.index_compressor, a_.ikv, a_.iscore);
    all[n] = linear_f32(a_.x, w.indexer.weights_proj, a_.iweights);
    all[n++].carrier = ctx_.numerics.carrier;
  }
  b_.linears(std::span(all).first(n));
}

ops::WindowEntries Forward::window_entries(const AttentionWeights& w, Mat<const float> cos,
                                           Mat<const float> sin) const {
  return {.kv = a_.kv,
          .norm_weight = w.kv_norm,
          .cos = cos,
          .sin = sin,
          .eps = c_.norm_eps,
          .quantise = ctx_.numerics.quantise,
          .carrier = ctx_.numerics.carrier};
}

ops::IndexQuery Forward::index_queries() const {
  return {.q = a_.iq,
          .heads = c_.index_heads,
          .cos = a_.ccos,
          .sin = a_.csin,
          .quantise = ctx_.numerics.quantise,
          .carrier = ctx_.numerics.carrier};
}

ops::IndexSelect Forward::select_entries(const LayerCache& cache) const {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.index_dim) * c_.index_heads));
  return {.q = a_.iq,
          .weights = a_.iweights,
          .scale = scale,
          .heads = c_.index_heads,
          .batch = batch_,
          .keys = cache.index_keys,
          .selected = a_.selected,
          .carrier = ctx_.numerics.carrier};
}

ops::Compress Forward::compress(const CompressorWeights& w, const ops::CompressorRing& ring,
                                const ops::EntryPages& entries, ops::EntryKind kind, Mat<float> kv,
                                Mat<float> score) const {
  return {.kv = mat(kv.data, kv.rows, ring.width),
          .score = mat(score.data, score.rows, ring.width),
          .ape = w.ape,
          .norm_weight = w.norm,
          .frequencies = ctx_.compressed_frequencies,
          .rope_dim = c_.rope_dim,
          .kind = kind,
          .eps = c_.norm_eps,
          .quantise = ctx_.numerics.quantise,
          .carrier = ctx_.numerics.carrier,
          .batch = batch_,
          .ring = ring,
          .entries = entries};
}

void Forward::moe(const MoeWeights& w) {
  b_.linear(linear_f32(a_.x, w.gate, a_.gate));
  b_.route({.logits = a_.gate,
            .bias = w.bias,
            .table = w.table,
            .ids = batch_.ids,
            .route_scale = c_.route_scale,
            .experts = a_.experts,
            .weights = a_.expert_weights});
  b_.experts({.x = a_.x,
              .routed = w.routed_table,
              .n_routed = static_cast<std::int32_t>(w.routed.size()),
              .routed_like = w.routed.front(),
              .shared = w.shared,
              .experts = a_.experts,
              .weights = a_.expert_weights,
              .swiglu_limit = c_.swiglu_limit,
              .quantise = ctx_.numerics.quantise,
              .y = a_.y,
              .carrier = ctx_.numerics.carrier});
}

void Forward::head_input(const ops::HyperConnection& hc_head, const float* norm, Mat<const float> streams,
                         Mat<float> x) const {
  b_.hc_head({.streams = streams,
              .site = hc_head,
              .norm_weight = norm,
              .y = x,
              .norm_eps = c_.norm_eps,
              .hc_eps = c_.hc_eps,
              .carrier = ctx_.numerics.carrier});
}

void Forward::logits(Mat<const float> x, Mat<float> logits) const {
  b_.linear(linear_f32(x, ctx_.weights.head, logits));
}

ops::Linear Forward::linear_q(Mat<const float> x, const ops::Weight& w, Mat<float> y) const {
  return {.x = x,
          .w = w,
          .y = y,
          .quantise_x = ctx_.numerics.quantise && w.quantised(),
          .x_carrier = ctx_.numerics.carrier,
          .carrier = ctx_.numerics.carrier};
}

ops::Linear Forward::linear_f32(Mat<const float> x, const ops::Weight& w, Mat<float> y) const {
  return {.x = x, .w = w, .y = y, .x_carrier = ctx_.numerics.carrier, .carrier = ops::Carrier::kF32};
}

}  // namespace fathom::model
