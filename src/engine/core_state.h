// What Core keeps of requests and steps. For core*.cc only.
#pragma once

#include "engine/core.h"

namespace fathom::engine {

// One choice of a request.
struct Core::Answer {
  Asked* asked = nullptr;
  std::int32_t choice = 0;
  SamplingParams sampling;  // with the choice's own seed
  SamplingParams early;     // with the stop ids banned, for the first min_tokens; empty seed 0 where there are none
  std::vector<std::int32_t> tokens;  // prompt, then what was chosen
  std::int32_t prompt = 0;
  std::int32_t limit = 0;  // tokens.size() at which it ends
  TokenHistory history;
  std::unique_ptr<Constraint> constraint;

  std::uint64_t arrival = 0;
  std::uint64_t served = 0;
  std::uint64_t last_step = 0;
  std::int64_t progress_us = 0;        // when it last got on
  const char* waits_for = "its turn";  // why it does not
  bool started = false;                // ever
  bool done = false;
  std::int32_t scored = 0;  // of the prompt's tokens, the first one not counted, the sink has been told

  std::unique_ptr<cache::Lane> lane;  // while running
  std::int32_t drafted = 0;  // positions the draft block has seen with the token after each: length or one less
  std::vector<std::int32_t> guesses;  // of the tokens after the last known one
  std::vector<float> confidences;     // of these, where the draft says how sure it is; else none
  std::int32_t on_trial = 0;          // of these, accepted by the constraint to guess further
  std::vector<std::int32_t> cuts;     // where to remember, ascending, each above the lane's length when planned

  const Answer* leader = nullptr;  // runs the beginning they have in common; this one waits for it
  std::int32_t leader_until = 0;   // to have come so far
  std::int32_t followed = 0;       // leaders it has had
  std::uint64_t load = 0;          // the disk is fetching its beginning
  bool load_tried = false;
  std::int32_t shared_pages = 0;  // Job::pages, while waiting

  std::int32_t known() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t chosen() const { return known() - prompt; }
  // Its prompt is done.
  bool answering() const { return lane != nullptr && lane->length() >= prompt; }
};

struct Core::Asked {
  explicit Asked(Reply r) : reply(std::move(r)) {}
  RequestId id = 0;
  Request request;  // without sink and prompt
  Reply reply;
  Outcome outcome;
  std::int64_t submitted_us = 0;
  std::int32_t open = 0;  // choices not done
  bool ended = false;
  std::vector<std::unique_ptr<Answer>> answers;

  // Logits are wanted for each token of the prompt still: its first choice runs them, the others wait.
  bool scoring() const { return request.score_prompt && answers[0]->scored + 1 < answers[0]->prompt; }
};

struct Core::Part {
  Answer* answer = nullptr;
  std::int32_t start = 0;         // the lane's length before
  std::int32_t tokens = 0;        // known ones run
  std::int32_t drafts = 0;        // guesses run after them
  std::int32_t kept = 0;          // of all these, what the lane keeps
  bool ran = false;               // it is in the step's batch
  bool chooses = false;           // its last known token is run, or remembered: the next one is chosen
  bool scores = false;            // a row of logits comes for each of its tokens
  std::size_t first_id = 0;       // in ids_
  std::int64_t first_stream = 0;  // row of the step's streams
  // For the draft block: positions [start of the chunk, + ids) and where their streams are gathered.
  std::int32_t draft_start = 0;
  std::int32_t draft_tokens = 0;
  std::int64_t draft_row = 0;

  std::int32_t rows() const {  // of logits
    return scores || drafts > 0 ? tokens + drafts : chooses ? 1 : 0;
  }
};

}  // namespace fathom::engine
