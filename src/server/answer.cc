#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "text/turn_memory.h"

namespace fathom::server {

namespace {
using Clock = std::chrono::steady_clock;
}

void TokenGaps::add(double seconds) {
  ++counts[static_cast<std::size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin())];
  sum += seconds;
}

// Where the engine puts the tokens of one prompt.
class Answer::PromptSink final : public engine::Sink {
 public:
  // n choices, of which the engine makes `made`: all, or one that stands for all.
  PromptSink(std::shared_ptr<Answer> answer, std::size_t first_choice, std::size_t n, std::size_t made)
      : answer_(std::move(answer)), first_(first_choice), made_(made) {
    for (std::size_t i = 0; i < n; ++i) parsers_.push_back(answer_->options_.parser());
    last_token_.resize(n);
    if (answer_->options_.scores) scores_ = std::make_shared<std::vector<engine::Sampled>>();
  }

  void prompt_scores(std::span<const engine::Sampled> tokens) override {
    scores_->insert(scores_->end(), tokens.begin(), tokens.end());
  }

  engine::Verdict token(std::int32_t choice, const engine::Sampled& token) override {
    answer_->progress_ = 0;
    tell_scores();
    const auto i = static_cast<std::size_t>(choice);
    const auto now = Clock::now();
    if (last_token_[i] != Clock::time_point()) gaps_.add(std::chrono::duration<double>(now - last_token_[i]).count());
    last_token_[i] = now;
    Note note;
    note.choice = first_ + i;
    const bool complete = parsers_[i]->push(token, note.piece);
    if (!note.piece.events.empty() || !note.piece.tokens.empty()) answer_->notify(std::move(note));
    return complete ? engine::Verdict::kStop : engine::Verdict::kGoOn;
  }

  void choice_done(std::int32_t choice, engine::Finish why) override {
    tell_scores();
    const auto i = static_cast<std::size_t>(choice);
    const std::size_t end = made_ < parsers_.size() ? parsers_.size() : i + 1;
    for (std::size_t c = i; c < end; ++c) {
      Note note;
      note.kind = Note::Kind::kChoiceEnd;
      note.choice = first_ + c;
      note.end = parsers_[c]->finish(why == engine::Finish::kLength, note.piece);
      answer_->notify(std::move(note));
    }
  }

  void prompt_progress(std::int32_t done, std::int32_t total) override {
    answer_->progress_ = static_cast<std::uint64_t>(done) << 32U | static_cast<std::uint32_t>(total);
  }

  void done(Result<engine::Outcome> outcome) override {
    Note note;
    note.kind = Note::Kind::kDone;
    note.outcome = std::move(outcome);
    note.gaps = gaps_;
    answer_->notify(std::move(note));
  }

 private:
  // Once, to every choice.
  void tell_scores() {
    if (scores_ == nullptr) return;
    const PromptScores scores = std::exchange(scores_, nullptr);
    for (std::size_t i = 0; i < parsers_.size(); ++i) {
      Note note;
      note.choice = first_ + i;
      note.piece.scores = scores;
      answer_->notify(std::move(note));
    }
  }

  const std::shared_ptr<Answer> answer_;
  const std::size_t first_;
  const std::size_t made_;
  std::shared_ptr<std::vector<engine::Sampled>> scores_;  // until they are told
  std::vector<std::unique_ptr<ChoiceParser>> parsers_;
  std::vector<Clock::time_point> last_token_;  // by choice
  TokenGaps gaps_;
};

Answer::Answer(std::shared_ptr<Exchange> exchange, std::string request_id, Generator& generator,
               std::unique_ptr<Writer> writer, AnswerOptions options)
    : exchange_(std::move(exchange)),
      request_id_(std::move(request_id)),
      generator_(generator),
      writer_(std::move(writer)),
      options_(std::move(options)) {}

void Answer::start(std::vector<engine::Request> requests, Usage known) {
  const std::size_t n = options_.choices_per_prompt;
  choices_.resize(requests.size() * n);
  undone_ = requests.size();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].sink =
        std::make_unique<PromptSink>(shared_from_this(), i * n, n, static_cast<std::size_t>(requests[i].n));
    auto id = generator_.submit(std::move(requests[i]));
    if (!id) {
      undone_ -= requests.size() - i;
      for (const engine::RequestId earlier : ids_) generator_.cancel(earlier);
      return refuse(refusal_of(id.error(), retry_after()));
    }
    ids_.push_back(*id);
  }
  exchange_->on_gone([self = shared_from_this()] { self->give_up("abort"); });
  if (options_.stream && !ended_) {
    streaming_ = true;
    exchange_->begin_stream([self = shared_from_this()] { return self->keep_alive(); });
    exchange_->write(writer_->begin(known));
  }
}

int Answer::retry_after() const {
  const engine::CoreStats stats = generator_.stats();
  return server::retry_after(stats.waiting, stats.ends_per_second);
}

// A comment in front says how far the prompt has been read; whoever does not know it skips it.
std::string Answer::keep_alive() const {
  const std::uint64_t progress = progress_;
  if (progress == 0) return writer_->keep_alive();
  return fmt::format(": prefill {}/{}\n{}", progress >> 32U, progress & 0xFFFFFFFFU, writer_->keep_alive());
}

void Answer::notify(Note note) {
  // An answer that is not streamed is written when it is done; until then nobody need be woken.
  const bool wake = options_.stream || note.kind == Note::Kind::kDone;
  {
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(note));
    if (!wake || posted_) return;
    posted_ = true;
  }
  exchange_->post([self = shared_from_this()] { self->drain(); });
}

void Answer::drain() {
  std::vector<Note> notes;
  {
    const std::lock_guard lock(mutex_);
    notes.swap(notes_);
    posted_ = false;
  }
  for (Note& note : notes) take(note);
}

void Answer::take(Note& note) {
  if (note.kind == Note::Kind::kDone) {
    for (std::size_t i = 0; i < gaps_.counts.size(); ++i) gaps_.counts[i] += note.gaps.counts[i];
    gaps_.sum += note.gaps.sum;
    return prompt_done(note.outcome);
  }
  if (ended_) return;
  Choice& choice = choices_[note.choice];
  add(choice, note.piece);
  if (options_.stream) exchange_->write(writer_->piece(note.choice, choice, note.piece));
  if (note.kind == Note::Kind::kPiece) return;
  for (std::size_t i = 0; i < choice.calls.size(); ++i) {
    choice.calls[i].complete = !note.end.incomplete_call || i + 1 < choice.calls.size();
  }
  usage_.reasoning += note.end.reasoning_tokens;
  const bool half_a_call = note.end.incomplete_call && note.end.by_turn;
  choice.end = std::move(note.end);
  options_.on_choice(choice);
  if (!options_.stream) return;
  if (half_a_call) {
    // The client holds a call that will never be complete, so this is no regular end. prompt-encoding.md 4.5.
    for (const engine::RequestId id : ids_) generator_.cancel(id);
    return refuse(refusal(500, "", "incomplete_tool_call", "the model ended its turn in the middle of a tool call"));
  }
  exchange_->write(writer_->choice_end(note.choice, choice));
}

void Answer::add(Choice& choice, const Piece& piece) {
  using Kind = text::ParserEvent::Kind;
  if (piece.scores != nullptr) choice.scores = piece.scores;
  for (const text::ParserEvent& event : piece.events) {
    switch (event.kind) {
      case Kind::kReasoning: choice.reasoning += event.text; break;
      case Kind::kContent: choice.content += event.text; break;
      case Kind::kToolStart:
        choice.calls.push_back({text::new_call_id(writer_->call_prefix()), event.text, "", false});
        break;
      case Kind::kToolArgs: choice.calls.back().arguments += event.text; break;
    }
  }
  choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
}

void Answer::prompt_done(const Result<engine::Outcome>& outcome) {
  --undone_;
  if (ended_) return;
  if (!outcome) {
    for (const engine::RequestId id : ids_) generator_.cancel(id);
    return refuse(failure_of(outcome.error(), retry_after()));
  }
  usage_.prompt += outcome->prompt_tokens;
  usage_.cached += outcome->cached_tokens;
  usage_.completion += outcome->completion_tokens;
  last_outcome_ = *outcome;
  if (undone_ == 0) finish();
}

void Answer::finish() {
  ended_ = true;
  if (options_.stream) {
    exchange_->write(writer_->end(choices_, usage_));
    exchange_->end_stream();
  } else {
    HttpAnswer answer;
    answer.body = writer_->whole(choices_, usage_);
    exchange_->send(std::move(answer));
  }
  bool length = true;
  for (const Choice& c : choices_) length = length && c.end && c.end->reason == text::FinishReason::kLength;
  report(length ? "length" : "stop", 200);
}

void Answer::refuse(const Refusal& r) {
  if (ended_) return;
  ended_ = true;
  if (streaming_) {
    exchange_->write(writer_->error(r));
    exchange_->end_stream();
  } else {
    exchange_->send(error_answer(r, options_.messages_dialect, request_id_));
  }
  report("error", streaming_ ? 200 : r.status);
}

void Answer::give_up(std::string_view reason) {
  if (ended_) return;
  ended_ = true;
  for (const engine::RequestId id : ids_) generator_.cancel(id);
  report(reason, streaming_ ? 200 : 499);
}

void Answer::report(std::string_view reason, int status) {
  options_.on_end({reason, status, usage_, last_outcome_, gaps_, static_cast<std::int32_t>(choices_.size())});
}

}  // namespace fathom::server
