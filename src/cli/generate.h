// One conversation on one sequence: tokens in, tokens out, nothing computed twice.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/sequence.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "model/model.h"

namespace fathom::cli {

// What becomes of a sampled token.
enum class Keep : std::uint8_t {
  kGoOn,
  kStop,  // the turn ends with this token
  kDrop,  // the turn ended before it: it is forgotten
};

struct Turn {
  enum class End : std::uint8_t { kStopped, kMaxTokens, kContextFull, kInterrupted };
  End end = End::kStopped;
  std::int32_t prompt_tokens = 0;  // computed for this turn
  std::int32_t generated = 0;
  double first_token_seconds = 0;  // from the call to the first token
  double decode_seconds = 0;       // from the first token to the last
  double tokens_per_second() const { return generated > 1 ? (generated - 1) / decode_seconds : 0; }
};

class Generator {
 public:
  // The model outlives the generator. Errors: kExhausted.
  static Result<Generator> create(model::Model& model);

  // Appends `ids` and samples up to `max_tokens` tokens (0: as many as fit). `on_token` decides on each; it is called
  // before the token is computed further. Ctrl-C ends the turn after the current token (cli/interrupt.h). `on_prefill`
  // hears of long prompts: tokens done and in all. Errors: kInvalid (the conversation no longer fits the model's
  // positions; nothing was appended), and those of the model and the sampler.
  struct Request {
    std::span<const std::int32_t> ids;
    const engine::SamplingParams& sampling;
    std::int32_t max_tokens = 0;
    std::function<Keep(std::int32_t id)> on_token;
    std::function<void(std::int32_t done, std::int32_t all)> on_prefill;
    engine::Constraint* constraint = nullptr;  // of what is sampled; nullptr: none. It ends the turn where it ends
  };
  Result<Turn> run(const Request& request);

  // The last token of the conversation; -1 at its beginning.
  std::int32_t last_id() const { return last_id_; }
  std::int32_t length() const { return sequence_.length() + static_cast<std::int32_t>(pending_.size()); }
  void restart();

 private:
  Generator(model::Model& model, cache::Sequence sequence)
      : model_(&model), runner_(std::make_unique<engine::ModelRunner>(model, "")), sequence_(std::move(sequence)) {}
  // Leaves what follows the last of `ids` in after_: the logits, or the token where `rule` chooses one.
  Result<> compute(std::span<const std::int32_t> ids, ops::ChoiceRule rule, const Request& request);
  // The token after those computed. Error: the sampler's.
  Result<std::int32_t> next(const Request& request, std::int32_t index);

  model::Model* model_;
  std::unique_ptr<engine::ModelRunner> runner_;
  cache::Sequence sequence_;
  engine::Sampler sampler_;
  engine::TokenHistory history_;
  std::vector<std::int32_t> pending_;  // of the conversation, but not yet in the sequence: the last sampled token
  engine::LogitRows after_;            // the sequence's last token, one row, in the runner's memory
  std::int32_t last_id_ = -1;
};

}  // namespace fathom::cli
