// LoadGenerator: made-up clients of an engine. Chats under a few system prompts, agents that come back with longer and
// longer conversations under a long list of tools, and documents that nobody else has; lengths are log-normal. The same
// seed asks the same things at the same times.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "engine/engine.h"

namespace fathom::cli {

struct LoadOptions {
  std::int32_t vocab = 0;
  std::int32_t longest = 0;   // tokens of a prompt and its answer
  std::int32_t requests = 0;  // to be asked, at most
  double seconds = 0;         // none is asked later; 0: until all are
  double rate = 0;            // arrivals a second, Poisson; 0: as many at once as `concurrency`, the next when one ends
  std::int32_t concurrency = 1;
  std::uint32_t seed = 1;
  std::function<void(double share)> progress = [](double) {};  // of what is asked; about once a request
};

struct LoadResult {
  double seconds = 0;  // from the first arrival to the last answer
  std::int32_t finished = 0;
  std::int32_t failed = 0;
  std::int32_t refused = 0;  // by the queue
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of these
  std::int64_t answer_tokens = 0;
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  std::vector<double> first_ms;  // sorted: from arrival to the first token
  std::vector<double> gap_ms;    // sorted: from a token to the next one of the same answer
  std::vector<double> total_ms;  // sorted
};

// What clients of all kinds ask for.
class Workload {
 public:
  explicit Workload(const LoadOptions& options);
  struct Ask {
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t> shared_ends;
    std::int32_t max_tokens = 0;
    std::size_t conversation = 0;
  };
  Ask next();
  // The answer came: the conversation may go on.
  void answered(std::size_t conversation, std::vector<std::int32_t> prompt_and_answer);

 private:
  struct Conversation {
    std::vector<std::int32_t> tokens;
    std::int32_t opening = 0;  // tokens of its system prompt
    std::int32_t median_turn = 0;
    std::int32_t median_answer = 0;
    bool busy = false;
  };
  std::vector<std::int32_t> ids(std::int32_t n);
  std::int32_t about(std::int32_t median, double sigma);
  std::size_t open_conversation();

  LoadOptions options_;
  std::mt19937 rng_;
  std::vector<std::vector<std::int32_t>> systems_;
  std::vector<std::vector<std::int32_t>> tools_;
  std::vector<Conversation> conversations_;
};

LoadResult run_load(engine::Engine& engine, const LoadOptions& options);

// One request, waited for: milliseconds to its first token, and what became of it.
struct SingleAnswer {
  double first_ms = 0;
  engine::Outcome outcome;
  std::vector<std::int32_t> tokens;
};
Result<SingleAnswer> ask_one(engine::Engine& engine, engine::Request request);

// sorted, ascending; the nearest rank. 0 where there is nothing.
double percentile(const std::vector<double>& sorted, double p);

}  // namespace fathom::cli
