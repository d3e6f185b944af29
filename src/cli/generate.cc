#include "cli/generate.h"

#include <algorithm>
#include <chrono>

#include "cli/compute.h"
#include "cli/interrupt.h"

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Result<Generator> Generator::create(model::Model& model) {
  FATHOM_ASSIGN(auto sequence, cache::Sequence::create(model.layout(), model.backend()));
  return Generator(model, std::move(sequence));
}

void Generator::restart() {
  sequence_.restart();
  pending_.clear();
  history_ = {};
  last_id_ = -1;
}

Result<> Generator::compute(std::span<const std::int32_t> ids, ops::ChoiceRule rule, const Request& request) {
  std::int32_t done = 0;
  return in_steps(*model_, sequence_, ids, {}, [&](const model::Chunk& chunk, std::size_t) -> Result<> {
    const auto rows = static_cast<std::size_t>(chunk.rows());
    FATHOM_ASSIGN(after_, runner_->forward(std::span(&chunk, 1), std::span(&rule, rows)));
    sequence_.advance(chunk.tokens());
    done += chunk.tokens();
    if (request.on_prefill) request.on_prefill(done, static_cast<std::int32_t>(ids.size()));
    return {};
  });
}

Result<std::int32_t> Generator::next(const Request& request, std::int32_t index) {
  const std::int32_t chosen = after_.token(0);
  if (chosen != ops::kNoChoice) return chosen;
  engine::SampleInput in{.logits = after_.row(0), .params = request.sampling, .history = &history_, .index = index};
  if (request.constraint != nullptr) {
    FATHOM_ASSIGN(in.allowed, request.constraint->allowed());
  }
  FATHOM_ASSIGN(const engine::Sampled token, sampler_.sample(in));
  return token.id;
}

Result<Turn> Generator::run(const Request& request) {
  const Clock::time_point start = Clock::now();
  const std::int32_t positions = model_->config().max_positions;
  std::vector<std::int32_t> ids = pending_;
  ids.insert(ids.end(), request.ids.begin(), request.ids.end());
  const std::int64_t with_prompt = std::int64_t{sequence_.length()} + static_cast<std::int64_t>(ids.size());
  if (ids.empty()) return fail(Code::kInvalid, "there is nothing to continue: the prompt has no tokens");
  if (with_prompt >= positions) {
    return fail(Code::kInvalid, "the conversation is {} tokens long, the model has {} positions", with_prompt,
                positions);
  }
  Turn turn{.prompt_tokens = static_cast<std::int32_t>(ids.size())};
  // Chosen where the logits are, unless that takes more than the temperature.
  const auto rule = [&request](std::int32_t index) {
    const bool there = request.constraint == nullptr && request.sampling.only_temperature();
    return there ? engine::rule_for(request.sampling, index) : ops::ChoiceRule{};
  };
  FATHOM_TRY(compute(ids, rule(0), request));
  pending_.clear();
  last_id_ = ids.back();
  if (request.sampling.uses_history()) history_.add_prompt(request.ids);

  Clock::time_point first = start;
  for (;;) {
    FATHOM_ASSIGN(const std::int32_t token, next(request, turn.generated));
    if (request.constraint != nullptr) request.constraint->accept(token);
    ++turn.generated;
    if (turn.generated == 1) {
      first = Clock::now();
      turn.first_token_seconds = std::chrono::duration<double>(first - start).count();
    }
    const Keep keep = request.on_token(token);
    turn.decode_seconds = seconds_since(first);
    if (keep == Keep::kDrop) return turn;
    pending_ = {token};
    last_id_ = token;
    if (request.sampling.uses_history()) history_.add_output(token);
    if (keep == Keep::kStop || (request.constraint != nullptr && request.constraint->ended())) return turn;
    if (interrupted()) {
      clear_interrupt();
      turn.end = Turn::End::kInterrupted;
      return turn;
    }
    if (turn.generated == request.max_tokens) {
      turn.end = Turn::End::kMaxTokens;
      return turn;
    }
    if (length() >= positions) {
      turn.end = Turn::End::kContextFull;
      return turn;
    }
    const Request silent = {.ids = {},
                            .sampling = request.sampling,
                            .max_tokens = 0,
                            .on_token = {},
                            .on_prefill = {},
                            .constraint = nullptr};
    FATHOM_TRY(compute(pending_, rule(turn.generated), silent));
    pending_.clear();
  }
}

}  // namespace fathom::cli
