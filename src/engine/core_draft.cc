// Guesses of Core: the draft block follows the trunk, one position behind what it needs to know the next token, and
// goes ahead of it where guesses are wanted. model.md 10.1.
#include <algorithm>

#include "base/check.h"
#include "engine/core_state.h"

namespace fathom::engine {

std::byte* Core::draft_row(std::int64_t row) const {
  return draft_input_.get() + static_cast<std::size_t>(row) * stream_bytes();
}

// The draft block pairs the trunk's streams of a position with the token after it. It has seen all before a.drafted;
// now the rest up to the lane's new end, the last position too where the token after it is known and will be run.
void Core::gather_streams() {
  if (!drafting()) return;
  const Mat<const float> streams = runner_.streams();
  cache::Memory& memory = runner_.memory();
  std::int64_t row = 0;
  for (Part& p : parts_) {
    Answer& a = *p.answer;
    p.draft_tokens = 0;
    if (a.lane == nullptr) continue;
    const std::int32_t length = p.start + p.kept;
    const std::int32_t end = a.done ? length - 1 : length;
    FATHOM_CHECK(a.drafted == p.start || a.drafted == p.start - 1, "the draft block keeps up");
    p.draft_start = a.drafted;
    p.draft_tokens = std::max(0, end - a.drafted);
    p.draft_row = row;
    for (std::int32_t position = a.drafted; position < end; ++position, ++row) {
      const auto* from =
          position < p.start
              ? a.lane->extra()
              : reinterpret_cast<const std::byte*>(streams.data + (p.first_stream + position - p.start) * streams.ld);
      memory.copy(draft_row(row), from, stream_bytes());
    }
    a.drafted = std::max(a.drafted, end);
  }
  FATHOM_CHECK(row <= draft_rows_, "streams that there is memory for");
}

std::int32_t Core::choose_depth() {
  std::int32_t answers = 0;
  for (const Part& p : parts_) answers += wants_guesses(p) ? 1 : 0;
  return policy_.depth(answers, std::min(budget_.step_tokens, budget_.logit_rows));
}

bool Core::wants_guesses(const Part& p) const {
  const Answer& a = *p.answer;
  return a.lane != nullptr && !a.done && p.chooses && a.asked->request.speculate && a.known() + 1 < a.limit;
}

void Core::run_drafts() {
  if (stages() && options_.max_drafts > 0) run_blocks();
  if (!drafting()) return;
  const std::int32_t depth = choose_depth();
  guessing_.clear();
  // As much at a time as a step of the model holds; restored lanes bring a row more than the trunk's step had.
  std::int32_t room = runner_.facts().step_tokens;
  pieces_.clear();
  for (const Part& p : parts_) {
    for (std::int32_t done = 0; done < p.draft_tokens;) {
      const std::int32_t n = std::min(room, p.draft_tokens - done);
      const bool guess = depth > 0 && done + n == p.draft_tokens && wants_guesses(p);
      pieces_.push_back({.part = &p, .first = done, .tokens = n, .guess = guess});
      done += n;
      room -= n;
      if (room > 0) continue;
      if (!draft_pieces()) return;
      room = runner_.facts().step_tokens;
    }
  }
  if (!draft_pieces()) return;
  for (std::int32_t d = 1; d < depth && !guessing_.empty(); ++d) {
    if (!guess_further(d)) return;
  }
}

bool Core::draft_pieces() {
  if (pieces_.empty()) return true;
  chunks_.clear();
  rules_.clear();
  std::int64_t tokens = 0;
  for (const DraftPiece& piece : pieces_) {
    const Part& p = *piece.part;
    cache::Lane& lane = *p.answer->lane;
    const std::int32_t start = p.draft_start + piece.first;
    const auto ids = std::span(p.answer->tokens)
                         .subspan(static_cast<std::size_t>(start) + 1, static_cast<std::size_t>(piece.tokens));
    chunks_.push_back({.ids = ids,
                       .start = start,
                       .slot = lane.slot(),
                       .pages = lane.pages(),
                       .logits = piece.guess ? model::Rows::kLast : model::Rows::kNone});
    if (piece.guess) add_guess_rule(*p.answer);
    tokens += piece.tokens;
  }
  const auto* streams = reinterpret_cast<const float*>(draft_row(pieces_[0].part->draft_row + pieces_[0].first));
  const std::int64_t began = options_.clock_us();
  const auto logits = runner_.draft(chunks_, mat(streams, tokens, runner_.facts().stream_width), rules_);
  if (!logits) {
    fail_all(logits.error());
    return false;
  }
  if (logits->rows() > 0) policy_.saw_draft(static_cast<double>(options_.clock_us() - began) * 1e-6);
  // The streams that further guesses start from are copied out at once: the next call overwrites them.
  const Mat<const float> left = runner_.draft_streams();
  std::int64_t row = 0;
  std::int64_t stream = 0;
  for (const DraftPiece& piece : pieces_) {
    stream += piece.tokens;
    if (!piece.guess) continue;
    const Part& p = *piece.part;
    if (!take_guess(*p.answer, *logits, row++)) continue;
    runner_.memory().copy(draft_row(p.draft_row),
                          reinterpret_cast<const std::byte*>(left.data + (stream - 1) * left.ld), stream_bytes());
    guessing_.push_back({.answer = p.answer, .row = p.draft_row});
  }
  pieces_.clear();
  return true;
}

// One more guess for each, from the draft block's own streams and its last guess.
bool Core::guess_further(std::int32_t depth) {
  // Far ends have no room: neither positions nor pages beyond what the answer may use.
  std::erase_if(guessing_, [&](const Guessing& g) { return g.answer->known() + depth + 1 >= g.answer->limit; });
  if (guessing_.empty()) return true;
  chunks_.clear();
  rules_.clear();
  for (std::size_t i = 0; i < guessing_.size(); ++i) {
    Answer& a = *guessing_[i].answer;
    const std::int32_t at = a.known() + depth - 2;  // the position before the last guess
    // Pages are not read or written by the draft block's window layer; the table need only be long enough.
    if (!cache_->reserve(*a.lane, at + 1 - a.lane->length())) return true;
    chunks_.push_back({.ids = std::span(a.guesses).last(1),
                       .start = at,
                       .slot = a.lane->slot(),
                       .pages = a.lane->pages(),
                       .logits = model::Rows::kLast});
    add_guess_rule(a);
    // Rows move to the front, in order: none is overwritten before it is read.
    if (guessing_[i].row != static_cast<std::int64_t>(i))
      runner_.memory().copy(draft_row(static_cast<std::int64_t>(i)), draft_row(guessing_[i].row), stream_bytes());
    guessing_[i].row = static_cast<std::int64_t>(i);
  }
  const auto n = static_cast<std::int64_t>(guessing_.size());
  const std::int64_t began = options_.clock_us();
  const auto logits = runner_.draft(
      chunks_, mat(reinterpret_cast<const float*>(draft_input_.get()), n, runner_.facts().stream_width), rules_);
  if (!logits) {
    fail_all(logits.error());
    return false;
  }
  policy_.saw_draft(static_cast<double>(options_.clock_us() - began) * 1e-6);
  const Mat<const float> streams = runner_.draft_streams();
  std::size_t kept = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Guessing g = guessing_[static_cast<std::size_t>(i)];
    if (!take_guess(*g.answer, *logits, i)) continue;
    runner_.memory().copy(draft_row(i), reinterpret_cast<const std::byte*>(streams.data + i * streams.ld),
                          stream_bytes());
    guessing_[kept++] = g;
  }
  guessing_.resize(kept);
  return true;
}

// How the guess is chosen that comes after those guessed already: with that position's noise.
void Core::add_guess_rule(const Answer& a) {
  const bool there = a.constraint == nullptr && a.sampling.only_temperature();
  const std::int64_t index = a.chosen() + static_cast<std::int64_t>(a.guesses.size());
  rules_.push_back(there ? rule_for(a.sampling, index) : ops::ChoiceRule{});
}

// That guess. False where the draft's logits are of no use.
bool Core::take_guess(Answer& a, const LogitRows& rows, std::int64_t row) {
  if (const std::int32_t id = rows.token(row); id >= 0) {
    a.guesses.push_back(id);
    return true;
  }
  SampleInput in{.logits = rows.row(row), .params = a.sampling, .history = &a.history, .report = false};
  if (a.constraint != nullptr) {
    while (a.on_trial < static_cast<std::int32_t>(a.guesses.size()))
      a.constraint->accept(a.guesses[static_cast<std::size_t>(a.on_trial++)]);
    const auto allowed = a.constraint->allowed();
    if (!allowed || a.constraint->ended()) return false;
    in.allowed = *allowed;
  }
  in.index = a.chosen() + static_cast<std::int64_t>(a.guesses.size());
  const auto guess = sampler_.sample(in);
  if (guess) a.guesses.push_back(guess->id);
  return guess.has_value();
}

}  // namespace fathom::engine
