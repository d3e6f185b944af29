// Core: the engine without its thread. Requests go in, each step() lets the model run one batch, tokens come out at the
// requests' sinks. All mutable state is here and belongs to whoever calls.
//
// A request has one answer for each choice. An answer is waiting or running; running, it has a lane in the cache.
// Giving up a lane is remembering it: an answer that is preempted waits again, and when it starts the longest
// remembered prefix of its tokens, those chosen included, is where it goes on. So there is one way to start, whatever
// came before.
//
// What a request gets depends on the request alone: neither on company, chunks, guesses, preemption nor restarts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/state_cache.h"
#include "engine/end_rate.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"

namespace fathom::engine {

struct CoreOptions {
  std::size_t cache_bytes = std::size_t{1} << 30U;  // of slots and pages
  std::int32_t slots = 16;                          // answers that may run at once
  std::string disk_directory = {};                  // empty: what is remembered is in memory only
  std::size_t disk_bytes = std::size_t{8} << 30U;
  std::size_t write_queue_bytes = std::size_t{256} << 20U;

  std::int32_t max_waiting = 256;            // requests; more are refused
  std::int64_t queue_timeout_ms = 600'000;   // a request that has not run by then ends with an error
  std::int64_t stall_timeout_ms = 300'000;   // as does one that ran and did not get on for so long
  std::int32_t prefill_beside_answers = 64;  // prompt tokens of a step that also continues answers
  // The state of a prompt is remembered at its end, where the request says so, where another one with the same
  // beginning parts from it, and in passing: every `passing_first` tokens up to `passing_every`, then at its multiples.
  std::int32_t passing_first = 256;
  std::int32_t passing_every = 1024;
  std::int32_t least_shared = 32;  // tokens in common that are worth stopping for

  std::int32_t max_drafts = 1;  // guesses a step; 0: none. At most the layout's rollback
  bool fixed_drafts = false;    // always so many, whether or not it pays

  std::function<std::int64_t()> clock_us = {};                           // required; never goes back
  std::function<void(std::string_view)> warn = [](std::string_view) {};  // from any thread
  std::function<void(const Error&)> broke = [](const Error&) {};  // the model failed; before any request is told
  std::function<void()> notify = [] {};  // from another thread: step() has something to do
};

struct CoreStats {
  std::int32_t running = 0;  // answers
  std::int32_t waiting = 0;
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;   // run, not reused
  std::uint64_t answer_tokens = 0;   // chosen
  std::uint64_t queried_tokens = 0;  // of prompts that started
  std::uint64_t reused_tokens = 0;   // and of these, found
  std::uint64_t preemptions = 0;
  std::uint64_t finished = 0;  // requests, by how
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;   // failed for time
  double ends_per_second = 0;  // of requests, however they end; 0: not known
  double acceptance = 0;
  SpeculationStats speculation;
  cache::CacheStats cache;
};

class Core {
 public:
  // The runner outlives the core. Errors: those of StateCache::create; kInvalid for options.
  static Result<std::unique_ptr<Core>> create(Runner& runner, CoreOptions options);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  // Every request that is still here ends with kCancelled.
  ~Core();

  // Whether a request can be answered at all. Safe from any thread. Error: kInvalid, naming the field; kExhausted where
  // the cache can never hold it.
  Result<> validate(const Request& request) const;

  // Tokens of prompt and answer that model and cache have room for. Safe from any thread.
  std::int32_t position_limit() const;

  // Takes over a valid request. Errors, with the request as it was: kExhausted (the queue is full), kUnavailable (the
  // model failed).
  Result<> submit(RequestId id, Request&& request);
  // The request ends with kCancelled; what was computed is remembered. No effect where it has ended.
  void cancel(RequestId id);
  void cancel_all();

  // One step. False where there was nothing to do until something is submitted, the disk has news (options.notify), or
  // next_event_us() has come.
  bool step();
  // When a deadline will have to be looked at next; a time far off where there is none.
  std::int64_t next_event_us() const;
  std::int32_t requests() const { return static_cast<std::int32_t>(asked_.size()); }
  // Not started yet.
  std::int32_t waiting() const;

  // Why the model is of no further use; nullptr while it is.
  const Error* failure() const { return broken_ ? &why_broken_ : nullptr; }

  CoreStats stats() const;
  // What the memory of sequences is spent on, for people; and its sum, which is all taken at the start.
  std::string describe() const;
  std::size_t planned_bytes() const { return cache_->stats().memory_bytes + draft_bytes(); }
  cache::StateCache& cache() { return *cache_; }
  const cache::StateCache& cache() const { return *cache_; }
  // Whether nothing was lost: the cache's check, and lanes are those of running answers. Error: kInternal.
  Result<> check() const;

 private:
  struct Asked;
  struct Answer;
  struct Part;  // of a step: one answer's chunk and what came of it

  struct DraftPiece {  // of a part's tokens, as many as fit into a call of the draft block
    const Part* part = nullptr;
    std::int32_t first = 0;
    std::int32_t tokens = 0;
    bool guess = false;
  };
  struct Guessing {  // an answer that wants further guesses, and the row of its streams in draft_input_
    Answer* answer = nullptr;
    std::int64_t row = 0;
    double chance = 1;  // that all its guesses are right
  };

  Core(Runner& runner, CoreOptions options);
  std::size_t stream_bytes() const;
  std::size_t draft_bytes() const { return static_cast<std::size_t>(draft_rows_) * stream_bytes(); }
  std::unique_ptr<Answer> make_answer(Asked& asked, const Request& request, std::int32_t choice);

  // Life of answers: core.cc.
  void list_answers();
  void list_jobs();
  Resources resources() const;
  void poll_cache();
  void expire();
  bool start_and_preempt();
  bool prepare(Answer& a);
  void follow(Answer& a, std::int32_t found);
  void start(Answer& a);
  void plan_cuts(Answer& a, std::int32_t shared);
  void preempt(Answer& a);
  void stop_running(Answer& a);
  void cancel(Asked& asked, const char* why);
  void end(Asked& asked, Result<Outcome> outcome);
  void fail_all(const Error& error);
  void sweep();

  // A step's work: core_step.cc.
  bool run_step();
  bool lay_out(const Work& work);
  bool run_remembered();
  bool run_chunks();
  void add_rules(const Answer& a, std::int32_t rows);
  void take_rows(Part& part, const LogitRows& rows, std::int64_t row);
  bool score(const Part& part, const LogitRows& rows, std::int64_t row);
  Result<Sampled> choose(Answer& a, const LogitRows& rows, std::int64_t row);
  void take_token(Answer& a, Sampled token);
  void note_first_token(Asked& asked) const;
  void finish_choice(Answer& a, Finish why);
  void keep_streams();
  void settle(Part& part);
  // Guesses: core_draft.cc.
  void gather_streams();
  void run_drafts();
  std::int32_t choose_depth();
  bool wants_guesses(const Part& p) const;
  bool draft_pieces();
  bool guess_further(std::int32_t depth);
  void add_guess_rule(const Answer& a);
  bool take_guess(Answer& a, const LogitRows& rows, std::int64_t row);
  void run_blocks();  // core_block.cc
  bool guess_blocks(std::int32_t depth);
  bool guess_of_block(Guessing& g, std::int32_t d, const LogitRows& rows, std::size_t i);
  std::byte* draft_row(std::int64_t row) const;
  // With the MTP block, which follows the trunk; or with DSpark stages, whose windows the trunk keeps itself.
  bool drafting() const { return runner_.facts().drafts && options_.max_drafts > 0; }
  bool stages() const { return runner_.facts().block_drafts > 0; }

  Runner& runner_;
  CoreOptions options_;
  std::unique_ptr<cache::StateCache> cache_;
  Budget budget_;
  ClientLedger ledger_;
  EndRate end_rate_;
  DepthPolicy policy_;
  Sampler sampler_;
  std::vector<std::unique_ptr<Asked>> asked_;  // in order of arrival
  std::vector<Answer*> answers_;               // of asked_, those that are not done
  std::vector<Job> jobs_;                      // as answers_
  Admission admission_;
  Shares shares_;
  std::vector<Part> parts_;
  std::vector<DraftPiece> pieces_;
  std::vector<Guessing> guessing_;
  std::vector<model::Chunk> chunks_;
  std::vector<std::int32_t> ids_;        // of the chunks, one after another
  std::vector<Sampled> scores_;          // of the part that take_rows() is at
  std::vector<ops::ChoiceRule> rules_;   // of the rows of logits of a call
  std::vector<std::int32_t> verifying_;  // guesses of the part that take_rows() is at
  std::vector<float> confidences_;       // and how sure the draft was of them
  std::vector<std::int32_t> previous_;   // the tokens before the next guesses of blocks
  ops::Buffer draft_input_;              // streams gathered for the draft block
  std::int64_t draft_rows_ = 0;          // room in it
  std::int64_t now_us_ = 0;
  bool busy_ = false;  // requests were left after the last step
  std::uint64_t next_arrival_ = 1;
  bool broken_ = false;
  Error why_broken_;
  CoreStats counters_;
};

}  // namespace fathom::engine
