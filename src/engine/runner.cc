#include "engine/runner.h"

#include "base/check.h"

namespace fathom::engine {

ModelRunner::ModelRunner(model::Model& model, std::string_view identity) : model_(model), memory_(model.backend()) {
  const checkpoint::ModelConfig& c = model.config();
  const ops::Numerics n = model.options().numerics;
  facts_ = {.vocab = c.vocab,
            .max_positions = c.max_positions,
            .step_tokens = model.options().max_step_tokens,
            .logit_rows = model.options().max_logit_rows,
            .drafts = model.has_mtp(),
            .block_drafts = model.block_size(),
            .draft_layers = c.draft.stages,
            .stream_width = std::int64_t{c.streams} * c.hidden,
            .identity = fmt::format("{}|{}|{} {}", identity, model.backend().name(), n.quantise ? "quantised" : "float",
                                    n.carrier == ops::Carrier::kBf16 ? "bf16" : "f32")};
}

Result<Mat<const float>> ModelRunner::to_host(Result<Mat<const float>> logits) {
  if (!logits || model_.backend().on_host()) return logits;
  const auto n = static_cast<std::size_t>(logits->rows * logits->cols);
  if (host_logits_.size() < n) host_logits_.resize(n);
  model_.backend().copy_out(host_logits_.data(), reinterpret_cast<const std::byte*>(logits->data), n * sizeof(float));
  return Mat<const float>{host_logits_.data(), logits->rows, logits->cols, logits->cols};
}

Result<Mat<const float>> ModelRunner::block_logits(std::int32_t i, std::span<const std::int32_t> previous) {
  FATHOM_ASSIGN(const model::Model::BlockLogits block, model_.block_logits(i, previous));
  FATHOM_CHECK(block.confidence.cols == 1 && block.confidence.ld == 1, "one value for each block, close together");
  confidence_.resize(static_cast<std::size_t>(block.confidence.rows));
  model_.backend().copy_out(confidence_.data(), reinterpret_cast<const std::byte*>(block.confidence.data),
                            confidence_.size() * sizeof(float));
  return to_host(block.logits);
}

Result<Mat<const float>> ModelRunner::forward(std::span<const model::Chunk> chunks) {
  return to_host(model_.forward(chunks));
}
Result<Mat<const float>> ModelRunner::draft(std::span<const model::Chunk> chunks, Mat<const float> streams) {
  return to_host(model_.draft(chunks, streams));
}
Result<Mat<const float>> ModelRunner::logits_of(Mat<const float> streams) { return to_host(model_.logits_of(streams)); }

}  // namespace fathom::engine
