// One step of Core: what runs, what is chosen, what is kept.
#include <algorithm>

#include "base/check.h"
#include "engine/core_state.h"

namespace fathom::engine {

bool Core::run_step() {
  list_jobs();
  share(jobs_, budget_, resources(), shares_);
  for (const std::size_t i : shares_.preempt) preempt(*answers_[i]);
  parts_.clear();
  ids_.clear();
  for (const Work& w : shares_.work) lay_out(w);
  if (parts_.empty()) return !shares_.preempt.empty();
  ++counters_.steps;
  if (!run_remembered() || !run_chunks()) return true;
  gather_streams();
  keep_streams();
  run_drafts();
  if (broken_) return true;
  for (Part& p : parts_) settle(p);
  return true;
}

// Takes an answer into the step, where its pages can be had after all.
bool Core::lay_out(const Work& work) {
  Answer& a = *answers_[work.job];
  Part part{.answer = &a, .start = a.lane->length(), .tokens = work.tokens, .drafts = work.drafts};
  if (!cache_->reserve(*a.lane, work.tokens + work.drafts)) {
    a.waits_for = "a page of the cache";
    return false;
  }
  part.chooses = part.start + part.tokens == a.known() && !a.asked->request.prompt_only;
  part.scores = a.asked->scoring();
  FATHOM_CHECK(part.drafts == 0 || (part.chooses && part.tokens == 1),
               "guesses follow the one token that is not yet run");
  part.first_id = ids_.size();
  const auto from = a.tokens.begin() + part.start;
  ids_.insert(ids_.end(), from, from + part.tokens);
  ids_.insert(ids_.end(), a.guesses.begin(), a.guesses.begin() + part.drafts);
  parts_.push_back(part);
  return true;
}

// Answers whose every token was remembered: what follows the last one is computed from its streams.
bool Core::run_remembered() {
  const std::int64_t width = runner_.facts().stream_width;
  cache::Memory& memory = runner_.memory();
  std::vector<Part*> asking;
  for (Part& p : parts_) {
    if (p.tokens > 0) continue;
    if (p.chooses) asking.push_back(&p);
    else take_rows(p, {}, 0);
  }
  if (asking.empty()) return true;
  // Not often, and not many: memory is taken when it is needed.
  auto rows = memory.allocate(asking.size() * stream_bytes());
  if (!rows) {
    fail_all(rows.error());
    return false;
  }
  rules_.clear();
  for (std::size_t i = 0; i < asking.size(); ++i) {
    add_rules(*asking[i]->answer, 1);
    memory.copy(rows->get() + i * stream_bytes(), asking[i]->answer->lane->extra(), stream_bytes());
  }
  const auto n = static_cast<std::int64_t>(asking.size());
  const auto logits = runner_.logits_of(mat(reinterpret_cast<const float*>(rows->get()), n, width), rules_);
  if (!logits) {
    fail_all(logits.error());
    return false;
  }
  for (std::int64_t i = 0; i < n; ++i) take_rows(*asking[static_cast<std::size_t>(i)], *logits, i);
  return true;
}

bool Core::run_chunks() {
  chunks_.clear();
  rules_.clear();
  std::int64_t stream = 0;
  bool prompts = false;
  for (Part& p : parts_) {
    if (p.tokens == 0 || p.answer->lane == nullptr) continue;
    p.ran = true;
    const auto n = static_cast<std::size_t>(p.tokens + p.drafts);
    cache::Lane& lane = *p.answer->lane;
    const std::int32_t n_rows = p.rows();
    const model::Rows rows = n_rows == 0 ? model::Rows::kNone : n_rows == 1 ? model::Rows::kLast : model::Rows::kAll;
    chunks_.push_back({.ids = std::span(ids_).subspan(p.first_id, n),
                       .start = p.start,
                       .slot = lane.slot(),
                       .pages = lane.pages(),
                       .logits = rows});
    const std::int32_t chosen = p.chooses ? p.drafts + 1 : 0;
    rules_.insert(rules_.end(), static_cast<std::size_t>(n_rows - chosen), {});
    add_rules(*p.answer, chosen);
    p.first_stream = stream;
    stream += static_cast<std::int64_t>(n);
    prompts = prompts || p.tokens > 1;
  }
  if (chunks_.empty()) return true;
  const std::int64_t began = options_.clock_us();
  const auto logits = runner_.forward(chunks_, rules_);
  if (!logits) {
    fail_all(logits.error());
    return false;
  }
  if (!prompts)
    policy_.saw_step(static_cast<std::int32_t>(stream), static_cast<double>(options_.clock_us() - began) * 1e-6);
  std::int64_t row = 0;
  for (Part& p : parts_) {
    if (!p.ran) continue;
    take_rows(p, *logits, row);
    row += p.rows();
  }
  return true;
}

// How the next tokens of an answer are chosen: where the logits are, unless that takes more than the temperature.
void Core::add_rules(const Answer& a, std::int32_t rows) {
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int64_t index = a.chosen() + i;
    const SamplingParams& p = index < a.asked->request.min_tokens ? a.early : a.sampling;
    const bool there = a.constraint == nullptr && !p.logprobs && p.only_temperature();
    rules_.push_back(there ? rule_for(p, index) : ops::ChoiceRule{});
  }
}

// Chooses the tokens that a part's rows of logits give: one, and one more for each guess that was right. Scores those
// of its prompt, where that is asked for.
void Core::take_rows(Part& part, const LogitRows& rows, std::int64_t row) {
  Answer& a = *part.answer;
  part.kept = part.tokens;
  a.last_step = counters_.steps;
  a.progress_us = now_us_;
  a.waits_for = "its turn";
  a.served += static_cast<std::uint64_t>(part.tokens);
  if (!a.asked->ended) ledger_.charge(a.asked->request.client, std::max(1, part.tokens));
  if (part.start < a.prompt) counters_.prompt_tokens += static_cast<std::uint64_t>(part.tokens);
  if (a.done || (part.scores && !score(part, rows, row))) return;
  if (a.asked->request.prompt_only && part.start + part.tokens == a.prompt) return finish_choice(a, Finish::kLength);
  if (!part.chooses) return;
  if (part.scores) row += part.tokens - 1;

  std::vector<std::int32_t>& guesses = verifying_;
  guesses.swap(a.guesses);
  a.guesses.clear();
  confidences_.swap(a.confidences);
  a.confidences.clear();
  if (a.on_trial > 0) a.constraint->take_back(std::exchange(a.on_trial, 0));
  std::int32_t verified = 0;  // guesses after the first wrong one, or after the end, were run for nothing
  std::int32_t accepted = 0;
  for (std::int32_t i = 0; i <= part.drafts && !a.done; ++i) {
    auto token = choose(a, rows, row + i);
    if (!token) {
      end(*a.asked, pass_on(std::move(token)));
      return;
    }
    const bool guessed = i < part.drafts;
    const bool right = guessed && token->id == guesses[static_cast<std::size_t>(i)];
    verified += guessed ? 1 : 0;
    if (guessed && static_cast<std::size_t>(i) < confidences_.size())
      policy_.saw_confidence(confidences_[static_cast<std::size_t>(i)], right);
    take_token(a, *std::move(token));
    if (!right) break;
    ++accepted;
  }
  part.kept = part.tokens + accepted;
  policy_.saw_burst(verified, accepted);
  a.asked->outcome.drafted_tokens += part.drafts;
  a.asked->outcome.accepted_tokens += accepted;
}

// Tells what the model says of the tokens after each of the part's. False where it cannot be told: the request has
// ended.
bool Core::score(const Part& part, const LogitRows& rows, std::int64_t row) {
  Answer& a = *part.answer;
  scores_.clear();
  // One that was preempted runs its prompt again, and has told the beginning.
  for (std::int32_t i = std::max(0, a.scored - part.start); i < part.tokens && part.start + i + 1 < a.prompt; ++i) {
    const std::int32_t next = a.tokens[static_cast<std::size_t>(part.start + i) + 1];
    auto scored = engine::score(rows.row(row + i), next, a.sampling.logprobs ? a.sampling.top_logprobs : 0);
    if (!scored) {
      end(*a.asked, pass_on(std::move(scored)));
      return false;
    }
    scores_.push_back(*std::move(scored));
  }
  a.scored += static_cast<std::int32_t>(scores_.size());
  a.asked->reply.prompt_scores(scores_);
  return true;
}

// The model's choice after the tokens so far.
Result<Sampled> Core::choose(Answer& a, const LogitRows& rows, std::int64_t row) {
  if (const std::int32_t id = rows.token(row); id >= 0) return Sampled{.id = id};
  const std::span<const float> logits = rows.row(row);
  SampleInput in{.logits = logits, .params = a.sampling, .history = &a.history, .index = a.chosen(), .allowed = {}};
  if (a.constraint != nullptr) {
    FATHOM_ASSIGN(in.allowed, a.constraint->allowed());
  }
  if (a.chosen() >= a.asked->request.min_tokens) return sampler_.sample(in);
  const SampleInput early{
      .logits = logits, .params = a.early, .history = &a.history, .index = a.chosen(), .allowed = in.allowed};
  auto token = sampler_.sample(early);
  // Where the constraint leaves nothing but the end, it ends before min_tokens.
  if (!token && token.error().code == Code::kInvalid && !in.allowed.empty()) return sampler_.sample(in);
  return token;
}

void Core::note_first_token(Asked& asked) const {
  if (asked.outcome.first_token_ms == 0)
    asked.outcome.first_token_ms = static_cast<double>(options_.clock_us() - asked.submitted_us) / 1000;
}

void Core::take_token(Answer& a, Sampled token) {
  Asked& asked = *a.asked;
  a.tokens.push_back(token.id);
  if (a.sampling.uses_history()) a.history.add_output(token.id);
  if (a.constraint != nullptr) a.constraint->accept(token.id);
  ++counters_.answer_tokens;
  ++asked.outcome.completion_tokens;
  note_first_token(asked);
  const bool told_to_stop = asked.reply.token(a.choice, token) == Verdict::kStop;
  const auto& stops = asked.request.stop_ids;
  const bool stops_here = told_to_stop || (a.constraint != nullptr && a.constraint->ended()) ||
                          std::find(stops.begin(), stops.end(), token.id) != stops.end();
  if (!stops_here && a.known() < a.limit) return;
  finish_choice(a, stops_here ? Finish::kStop : Finish::kLength);
}

void Core::finish_choice(Answer& a, Finish why) {
  Asked& asked = *a.asked;
  note_first_token(asked);
  a.done = true;
  ledger_.leave(asked.request.client);
  --asked.open;
  asked.outcome.choices[static_cast<std::size_t>(a.choice)] = why;
  asked.reply.choice_done(a.choice, why);
}

// The streams of each lane's last token, from which a restored one goes on.
void Core::keep_streams() {
  const Mat<const float> streams = runner_.streams();
  for (const Part& p : parts_) {
    if (p.kept == 0 || p.answer->lane == nullptr) continue;
    const float* row = streams.data + (p.first_stream + p.kept - 1) * streams.ld;
    runner_.memory().copy(p.answer->lane->extra(), reinterpret_cast<const std::byte*>(row), stream_bytes());
  }
}

// After a step: the lane holds what was kept, remembers where it should, and an answer that is done gives it back.
void Core::settle(Part& part) {
  Answer& a = *part.answer;
  if (a.lane == nullptr) return;  // its request ended within the step
  const std::int32_t length = part.start + part.kept;
  const auto ids =
      std::span(a.tokens).subspan(static_cast<std::size_t>(part.start), static_cast<std::size_t>(part.kept));
  const std::int32_t drafted = stages() ? length : drafting() ? std::max(0, length - 1) : a.lane->reach().drafted;
  cache_->advance(*a.lane, ids, drafted);
  if (length < a.prompt && a.choice == 0) a.asked->reply.prompt_progress(length, a.prompt);
  const bool cut = std::binary_search(a.cuts.begin(), a.cuts.end(), length);
  if (cut && part.start < length) {
    const auto& ends = a.asked->request.shared_ends;
    const bool passing = length != a.prompt && std::find(ends.begin(), ends.end(), length) == ends.end() &&
                         length % options_.passing_first == 0;
    cache_->remember(*a.lane, passing ? cache::Keep::kPassing : cache::Keep::kUsual);
  }
  if (!a.done) return;
  if (!cut) cache_->remember(*a.lane, cache::Keep::kUsual);
  stop_running(a);
  Asked& asked = *a.asked;
  if (asked.open > 0 || asked.ended) return;
  asked.outcome.total_ms = static_cast<double>(options_.clock_us() - asked.submitted_us) / 1000;
  end(asked, asked.outcome);
}

}  // namespace fathom::engine
