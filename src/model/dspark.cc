// The DSpark side of Model: blocks of drafts from three small stages and a low-rank correction. model.md 10.2.
#include <vector>

#include "base/check.h"
#include "model/model.h"

namespace fathom::model {

Result<> Model::allocate_dspark() {
  if (weights_.dspark.stages.empty()) return {};
  const std::int64_t rows = options_.max_logit_rows;
  const std::int64_t blocks = rows / config_.draft.block_size;
  Dspark& s = dspark_;
  s.max_blocks = static_cast<std::int32_t>(blocks);
  struct Piece {
    Mat<float>* to;
    std::int64_t rows;
    std::int64_t cols;
  };
  const Piece pieces[] = {{&s.base, rows, config_.vocab},
                          {&s.y, rows, config_.hidden},
                          {&s.normed, rows, config_.hidden},
                          {&s.embedding, blocks, config_.draft.markov_rank},
                          {&s.correction, blocks, config_.vocab},
                          {&s.logits, blocks, config_.vocab},
                          {&s.confidence_y, blocks, 1},
                          {&s.confidence_m, blocks, 1},
                          {&s.confidence, blocks, 1}};
  std::int64_t floats = 0;
  for (const Piece& p : pieces) floats += p.rows * p.cols;
  FATHOM_ASSIGN(s.memory, backend_.allocate(sizeof(float) * static_cast<std::size_t>(floats + blocks)));
  auto* next = reinterpret_cast<float*>(s.memory.get());
  for (const Piece& p : pieces) {
    *p.to = mat(next, p.rows, p.cols);
    next += p.rows * p.cols;
  }
  s.previous = mat(reinterpret_cast<std::int32_t*>(next), blocks, 1);
  return {};
}

Result<> Model::draft_block(std::span<const Chunk> anchors) {
  const DsparkWeights& w = weights_.dspark;
  if (w.stages.empty()) return fail(Code::kInvalid, "this checkpoint has no DSpark module to draft with");
  const auto block = static_cast<std::size_t>(config_.draft.block_size);
  const auto blocks = static_cast<std::int32_t>(anchors.size());
  if (blocks > dspark_.max_blocks) {
    return fail(Code::kInvalid, "{} blocks of drafts in a step, the limit is {}", blocks, dspark_.max_blocks);
  }
  std::vector<std::int32_t> ids(anchors.size() * block, config_.draft.noise_token);
  std::vector<Chunk> chunks(anchors.begin(), anchors.end());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    FATHOM_CHECK(anchors[i].ids.size() == 1, "a block starts from one anchor");
    ids[i * block] = anchors[i].ids[0];
    chunks[i].ids = std::span(ids).subspan(i * block, block);
    chunks[i].logits = Rows::kNone;
  }
  FATHOM_TRY(check(chunks));
  FATHOM_ASSIGN(const ops::Batch batch, step_memory_.upload(chunks));
  const ActivationViews a = activations_.views().first(batch.tokens);
  const ForwardContext ctx = context();
  Forward step(ctx, a, batch);
  step.dspark_block(w);

  dspark_.blocks = blocks;
  const Mat<float> y = dspark_.y.slice(0, batch.tokens);
  const Mat<float> normed = dspark_.normed.slice(0, batch.tokens);
  step.head_input(w.hc_head, nullptr, a.draft_streams, y);
  backend_.rms_norm({.x = y, .w = w.norm, .y = normed, .eps = config_.norm_eps, .carrier = options_.numerics.carrier});
  step.logits(normed, dspark_.base.slice(0, batch.tokens));
  return backend_.finish();
}

Result<Model::BlockLogits> Model::block_logits(std::int32_t i, std::span<const std::int32_t> previous,
                                               const Then& then) {
  const std::int32_t block = config_.draft.block_size;
  FATHOM_CHECK(i >= 0 && i < block && static_cast<std::int32_t>(previous.size()) == dspark_.blocks,
               "one token before each draft of the last blocks");
  for (const std::int32_t id : previous) {
    if (id < 0 || id >= config_.vocab) {
      return fail(Code::kInvalid, "token id {} is outside the vocabulary of {} ids", id, config_.vocab);
    }
  }
  const DsparkWeights& w = weights_.dspark;
  const std::int64_t n = dspark_.blocks;
  backend_.copy_in(reinterpret_cast<std::byte*>(dspark_.previous.data), previous.data(), previous.size_bytes());
  const Mat<float> m = dspark_.embedding.slice(0, n);
  backend_.embed({.ids = dspark_.previous.data, .table = w.markov_w1, .streams = 1, .x = m});
  // Row i of every block: one row in `block`.
  const auto ith = [&](const Mat<float>& all) {
    return Mat<const float>{all.data + i * all.ld, n, all.cols, block * all.ld};
  };

  const Mat<float> correction = dspark_.correction.slice(0, n);
  const Mat<float> logits = dspark_.logits.slice(0, n);
  backend_.linear({.x = m, .w = w.markov_w2, .y = correction});
  backend_.mtp_input({.e = ith(dspark_.base), .h = correction, .x = logits});

  // proj . [y ; m], in two parts: the one row of proj is contiguous.
  ops::Weight of_y = w.confidence;
  of_y.cols = config_.hidden;
  ops::Weight of_m = w.confidence;
  of_m.cols = config_.draft.markov_rank;
  of_m.data += of_y.row_bytes();
  const Mat<float> confidence = dspark_.confidence.slice(0, n);
  backend_.linear({.x = ith(dspark_.y), .w = of_y, .y = dspark_.confidence_y.slice(0, n)});
  backend_.linear({.x = m, .w = of_m, .y = dspark_.confidence_m.slice(0, n)});
  backend_.mtp_input({.e = dspark_.confidence_y.slice(0, n), .h = dspark_.confidence_m.slice(0, n), .x = confidence});
  FATHOM_TRY(finish(logits, then));
  return BlockLogits{.logits = logits, .confidence = confidence};
}

}  // namespace fathom::model
