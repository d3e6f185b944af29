// Guesses of Core where the checkpoint has DSpark stages: a whole block from one anchor, the token chosen last. The
// trunk's own steps keep the stages' windows, and a block leaves nothing behind; so there is nothing to follow and
// nothing to take back. model.md 10.2.
#include <algorithm>

#include "base/check.h"
#include "engine/core_state.h"

namespace fathom::engine {

void Core::run_blocks() {
  const std::int32_t block = runner_.facts().block_drafts;
  const std::int32_t depth = std::min(choose_depth(), block);
  if (depth == 0) return;
  const std::int32_t at_once = std::min(runner_.facts().step_tokens, runner_.facts().logit_rows) / block;
  guessing_.clear();
  for (const Part& p : parts_) {
    // Positions of a block that the model does not have would not be guessed but refused.
    if (!wants_guesses(p) || p.start + p.kept + block > runner_.facts().max_positions) continue;
    guessing_.push_back({.answer = p.answer});
    if (static_cast<std::int32_t>(guessing_.size()) < at_once) continue;
    if (!guess_blocks(depth)) return;
  }
  guess_blocks(depth);
}

// For those in guessing_, which are few enough for a call. False where the model failed.
bool Core::guess_blocks(std::int32_t depth) {
  if (guessing_.empty()) return true;
  chunks_.clear();
  previous_.clear();
  for (const Guessing& g : guessing_) {
    const Answer& a = *g.answer;
    chunks_.push_back({.ids = std::span(a.tokens).last(1),
                       .start = a.known() - 1,
                       .slot = a.lane->slot(),
                       .pages = a.lane->pages(),
                       .logits = model::Rows::kNone});
    previous_.push_back(a.tokens.back());
  }
  const std::int64_t began = options_.clock_us();
  if (const auto ran = runner_.draft_block(chunks_); !ran) {
    fail_all(ran.error());
    return false;
  }
  for (std::int32_t d = 0; d < depth; ++d) {
    const auto logits = runner_.block_logits(d, previous_);
    if (!logits) {
      fail_all(logits.error());
      return false;
    }
    for (std::size_t i = 0; i < guessing_.size(); ++i) {
      Answer& a = *guessing_[i].answer;
      // One that could not be guessed, or has no room for more, has no further guesses.
      const bool goes_on = static_cast<std::int32_t>(a.guesses.size()) == d && a.known() + d + 1 < a.limit;
      const auto row = static_cast<std::int64_t>(i);
      if (goes_on && take_guess(a, {logits->row(row), static_cast<std::size_t>(logits->cols)}))
        previous_[i] = a.guesses.back();
    }
  }
  policy_.saw_draft(static_cast<double>(options_.clock_us() - began) * 1e-6 / depth);
  guessing_.clear();
  return true;
}

}  // namespace fathom::engine
