#include "engine/runner.h"

#include <algorithm>

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

Result<> ModelRunner::take_rules(Rules rules) {
  rules_ = rules;
  choosing_ = std::any_of(rules.begin(), rules.end(), [](const ops::ChoiceRule& r) { return r.temperature >= 0; });
  if (!choosing_ || rules.size() <= choice_rows_) return {};
  const std::size_t rows = std::max(rules.size(), static_cast<std::size_t>(facts_.logit_rows));
  FATHOM_ASSIGN(choice_memory_, model_.backend().allocate(rows * (sizeof(ops::ChoiceRule) + sizeof(std::int32_t))));
  choice_rows_ = rows;
  return {};
}

void ModelRunner::choose(Mat<const float> logits) {
  FATHOM_CHECK(static_cast<std::size_t>(logits.rows) == rules_.size(), "a rule for every row");
  ops::Backend& backend = model_.backend();
  std::byte* const rules = choice_memory_.get();
  std::byte* const chosen = rules + choice_rows_ * sizeof(ops::ChoiceRule);
  chosen_.resize(rules_.size());
  backend.copy_in(rules, rules_.data(), rules_.size_bytes());
  backend.choose({.logits = logits,
                  .rules = reinterpret_cast<const ops::ChoiceRule*>(rules),
                  .chosen = reinterpret_cast<std::int32_t*>(chosen)});
  backend.copy_out(chosen_.data(), chosen, chosen_.size() * sizeof(std::int32_t));
}

// Copies the logits that are wanted from a device, neighbours together.
Result<LogitRows> ModelRunner::rows(const Result<Mat<const float>>& logits) {
  if (!logits) return tl::unexpected<Error>(logits.error());
  LogitRows out{.logits = *logits};
  if (choosing_ && logits->rows > 0) out.chosen = chosen_;
  if (model_.backend().on_host()) return out;
  const std::int64_t cols = logits->cols;
  if (host_logits_.size() < static_cast<std::size_t>(logits->rows * cols))
    host_logits_.resize(static_cast<std::size_t>(logits->rows * cols));
  for (std::int64_t row = 0, end = 0; row < logits->rows; row = end + 1) {
    for (end = row; end < logits->rows && out.token(end) == ops::kNoChoice;) ++end;
    if (end == row) continue;
    model_.backend().copy_out(host_logits_.data() + row * cols, reinterpret_cast<const std::byte*>(logits->row(row)),
                              static_cast<std::size_t>((end - row) * cols) * sizeof(float));
  }
  out.logits = {host_logits_.data(), logits->rows, cols, cols};
  return out;
}

Result<LogitRows> ModelRunner::forward(std::span<const model::Chunk> chunks, Rules rules) {
  FATHOM_TRY(take_rules(rules));
  return rows(model_.forward(chunks, then()));
}

Result<LogitRows> ModelRunner::draft(std::span<const model::Chunk> chunks, Mat<const float> streams, Rules rules) {
  FATHOM_TRY(take_rules(rules));
  return rows(model_.draft(chunks, streams, then()));
}

Result<LogitRows> ModelRunner::logits_of(Mat<const float> streams, Rules rules) {
  FATHOM_TRY(take_rules(rules));
  return rows(model_.logits_of(streams, then()));
}

Result<LogitRows> ModelRunner::block_logits(std::int32_t i, std::span<const std::int32_t> previous, Rules rules) {
  FATHOM_TRY(take_rules(rules));
  FATHOM_ASSIGN(const model::Model::BlockLogits block, model_.block_logits(i, previous, then()));
  FATHOM_CHECK(block.confidence.cols == 1 && block.confidence.ld == 1, "one value for each block, close together");
  confidence_.resize(static_cast<std::size_t>(block.confidence.rows));
  model_.backend().copy_out(confidence_.data(), reinterpret_cast<const std::byte*>(block.confidence.data),
                            confidence_.size() * sizeof(float));
  return rows(block.logits);
}

}  // namespace fathom::engine
