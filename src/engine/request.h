// What a caller asks of the engine and how it is answered. The engine sees token ids; text, templates and stop strings
// are the caller's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "engine/sampling_params.h"

namespace fathom::engine {

using RequestId = std::uint64_t;

inline constexpr std::int32_t kMaxChoices = 16;

enum class Finish : std::uint8_t {
  kStop,    // a stop id was chosen, or the sink said so
  kLength,  // max_tokens, or the model has no further position
};

// What became of the tokens of a request, and when. Times since submit().
struct Outcome {
  std::vector<Finish> choices;
  std::int32_t prompt_tokens = 0;      // once, whatever n is
  std::int32_t cached_tokens = 0;      // of these, not computed for this request
  std::int32_t completion_tokens = 0;  // of all choices, stop ids included
  std::int32_t drafted_tokens = 0;     // guesses that were verified
  std::int32_t accepted_tokens = 0;    // and right
  std::int32_t preemptions = 0;
  double queued_ms = 0;       // until it first ran
  double first_token_ms = 0;  // until its first token; or the end of a prompt that has no answer
  double total_ms = 0;
};

enum class Verdict : std::uint8_t { kGoOn, kStop };

// Where an answer goes. Called by the engine's thread, which waits for it: hand the value on and return.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  // The next token of a choice. kStop ends that choice with Finish::kStop: for stop strings, which only text can know.
  virtual Verdict token(std::int32_t choice, const Sampled& token) = 0;
  virtual void choice_done(std::int32_t /*choice*/, Finish /*why*/) {}
  // What the model says of the prompt's next tokens, where Request::score_prompt: in order, from the second one on, and
  // all before any token() or choice_done().
  virtual void prompt_scores(std::span<const Sampled> /*tokens*/) {}
  // Of the prompt's tokens so many have been run or were remembered; after every step that leaves some.
  virtual void prompt_progress(std::int32_t /*done*/, std::int32_t /*total*/) {}
  // Once, and last, whatever happens: an outcome, an error or a cancellation (kCancelled).
  virtual void done(Result<Outcome> outcome) = 0;
};

// Owns a sink and sees to it that it is told the end exactly once.
class Reply {
 public:
  Reply() = default;
  explicit Reply(std::unique_ptr<Sink> sink) : sink_(std::move(sink)) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&&) = delete;
  ~Reply() {
    if (sink_ != nullptr) finish(fail(Code::kInternal, "the request was dropped without an answer"));
  }
  Verdict token(std::int32_t choice, const Sampled& t) { return sink_->token(choice, t); }
  void choice_done(std::int32_t choice, Finish why) { sink_->choice_done(choice, why); }
  void prompt_scores(std::span<const Sampled> tokens) { sink_->prompt_scores(tokens); }
  void prompt_progress(std::int32_t done, std::int32_t total) { sink_->prompt_progress(done, total); }
  void finish(Result<Outcome> outcome) { std::exchange(sink_, nullptr)->done(std::move(outcome)); }
  // Gives the sink back untold: the request was never accepted.
  void forget() { sink_.reset(); }

 private:
  std::unique_ptr<Sink> sink_;
};

// Which tokens may come next: a grammar's view of one choice. Used by the engine's thread only.
class Constraint {
 public:
  Constraint() = default;
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;
  virtual ~Constraint() = default;

  // Bit id%64 of word id/64; empty: any token. Valid until the next call. Error: it cannot be told; the request ends
  // with it.
  virtual Result<std::span<const std::uint64_t>> allowed() = 0;
  // The token was chosen, or guessed.
  virtual void accept(std::int32_t id) = 0;
  // The last n that were accepted are as if they had never been; at most kMaxDrafts.
  virtual void take_back(std::int32_t n) = 0;
  // Nothing may follow: the choice ends here.
  virtual bool ended() const = 0;
  // The same, as at its beginning, for another choice.
  virtual std::unique_ptr<Constraint> fresh() const = 0;
};

struct Request {
  std::vector<std::int32_t> prompt;  // at least one id, fewer than the model has positions
  SamplingParams sampling;
  std::int32_t max_tokens = 0;         // 0: as many as there are positions
  std::int32_t min_tokens = 0;         // no stop id is chosen before
  std::vector<std::int32_t> stop_ids;  // chosen, reported, and the end of the choice
  bool prompt_only = false;            // ends when the prompt has been run: nothing is chosen
  // The sink is told the log-probabilities of the prompt's tokens, with sampling.top_logprobs likeliest ones beside
  // each. All of the prompt is run then, whatever is remembered.
  bool score_prompt = false;
  std::int32_t n = 1;            // choices, from one prompt; choice i has seed_of_choice(seed, i)
  std::int32_t priority = 0;     // lower goes first
  std::string client;            // whom to be fair to; any string
  std::string salt;              // nothing is reused between requests of different salts
  std::int64_t deadline_ms = 0;  // ended with an error when it took longer; 0: never
  bool speculate = true;         // may tokens be guessed and verified; changes no answer
  // Positions in the prompt, ascending, that other prompts are likely to share: ends of the system prompt, of tools, of
  // messages. The state is remembered there.
  std::vector<std::int32_t> shared_ends;
  std::unique_ptr<Constraint> constraint;  // nullptr: none
  std::unique_ptr<Sink> sink;
};

}  // namespace fathom::engine
