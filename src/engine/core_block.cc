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
  std::int32_t d = 0;
  for (bool goes_on = true; goes_on && d < depth; ++d) {
    rules_.clear();
    for (const Guessing& g : guessing_) add_guess_rule(*g.answer);
    const auto logits = runner_.block_logits(d, previous_, rules_);
    if (!logits) {
      fail_all(logits.error());
      return false;
    }
    goes_on = false;
    for (std::size_t i = 0; i < guessing_.size(); ++i) {
      if (!guess_of_block(guessing_[i], d, *logits, i)) continue;
      previous_[i] = guessing_[i].answer->guesses.back();
      goes_on = true;
    }
  }
  policy_.saw_draft(static_cast<double>(options_.clock_us() - began) * 1e-6 / d);
  guessing_.clear();
  return true;
}

// The guess number d of the block in row i. False where there is none: an earlier one could not be guessed or was not
// worth it, there is no room for more, or the stages are not sure enough of this one.
bool Core::guess_of_block(Guessing& g, std::int32_t d, const LogitRows& rows, std::size_t i) {
  Answer& a = *g.answer;
  if (static_cast<std::int32_t>(a.guesses.size()) != d || a.known() + d + 1 >= a.limit) return false;
  const std::span<const float> sure = runner_.block_confidence();
  if (!sure.empty()) {
    g.chance *= policy_.chance(sure[i]);
    if (!policy_.worth(g.chance)) return false;
  }
  if (!take_guess(a, rows, static_cast<std::int64_t>(i))) return false;
  if (!sure.empty()) a.confidences.push_back(sure[i]);
  return true;
}

}  // namespace fathom::engine
