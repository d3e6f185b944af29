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

Result<> Generator::compute(std::span<const std::int32_t> ids, const Request& request) {
  const std::int32_t before = sequence_.length();
  return feed(*model_, sequence_, ids, {}, [&](std::int64_t, Mat<const float> logits) -> Result<> {
    logits_.assign(logits.data, logits.data + logits.rows * logits.cols);
    if (request.on_prefill) request.on_prefill(sequence_.length() - before, static_cast<std::int32_t>(ids.size()));
    return {};
  });
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
  FATHOM_TRY(compute(ids, request));
  pending_.clear();
  last_id_ = ids.back();
  if (request.sampling.uses_history()) history_.add_prompt(request.ids);

  Clock::time_point first = start;
  for (;;) {
    engine::SampleInput in{
        .logits = logits_, .params = request.sampling, .history = &history_, .index = turn.generated};
    if (request.constraint != nullptr) {
      FATHOM_ASSIGN(in.allowed, request.constraint->allowed());
    }
    FATHOM_ASSIGN(const engine::Sampled token, sampler_.sample(in));
    if (request.constraint != nullptr) request.constraint->accept(token.id);
    ++turn.generated;
    if (turn.generated == 1) {
      first = Clock::now();
      turn.first_token_seconds = std::chrono::duration<double>(first - start).count();
    }
    const Keep keep = request.on_token(token.id);
    turn.decode_seconds = seconds_since(first);
    if (keep == Keep::kDrop) return turn;
    pending_ = {token.id};
    last_id_ = token.id;
    if (request.sampling.uses_history()) history_.add_output(token.id);
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
    Request step = {.ids = {},
                    .sampling = request.sampling,
                    .max_tokens = 0,
                    .on_token = {},
                    .on_prefill = {},
                    .constraint = nullptr};
    FATHOM_TRY(compute(pending_, step));
    pending_.clear();
  }
}

}  // namespace fathom::cli
