#include "engine/sampling_params.h"

#include <algorithm>
#include <cmath>

namespace fathom::engine {
namespace {

// NaN is in no range.
Result<> in_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return fail(Code::kInvalid, "{} is {}, must be in [{}, {}]", field, value, low, high);
}

Result<> token_in_vocabulary(const char* field, std::int32_t id, std::int32_t vocab) {
  if (id >= 0 && id < vocab) return {};
  return fail(Code::kInvalid, "{} names token {}, the vocabulary has ids 0 to {}", field, id, vocab - 1);
}

Result<> check_biases(const std::vector<LogitBias>& biases, std::int32_t vocab) {
  if (biases.size() > kMaxLogitBiases) {
    return fail(Code::kInvalid, "logit_bias has {} entries, at most {} are taken", biases.size(), kMaxLogitBiases);
  }
  std::vector<std::int32_t> ids;
  ids.reserve(biases.size());
  for (const LogitBias& b : biases) {
    FATHOM_TRY(token_in_vocabulary("logit_bias", b.id, vocab));
    FATHOM_TRY(in_range("logit_bias", b.bias, -100, 100));
    ids.push_back(b.id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) return fail(Code::kInvalid, "logit_bias names token {} more than once", *twice);
  return {};
}

}  // namespace

Result<> validate(const SamplingParams& p, std::int32_t vocab) {
  if (!(p.temperature >= 0) || std::isinf(p.temperature)) {
    return fail(Code::kInvalid, "temperature is {}, must be 0 or a positive number", p.temperature);
  }
  if (p.top_k < 0) return fail(Code::kInvalid, "top_k is {}, must be 0 (all) or positive", p.top_k);
  if (!(p.top_p > 0 && p.top_p <= 1)) return fail(Code::kInvalid, "top_p is {}, must be in (0, 1]", p.top_p);
  FATHOM_TRY(in_range("min_p", p.min_p, 0, 1));
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) {
    return fail(Code::kInvalid, "repetition_penalty is {}, must be in (0, 10]", p.repetition_penalty);
  }
  FATHOM_TRY(in_range("frequency_penalty", p.frequency_penalty, -2, 2));
  FATHOM_TRY(in_range("presence_penalty", p.presence_penalty, -2, 2));
  FATHOM_TRY(check_biases(p.logit_bias, vocab));
  if (p.banned.size() > static_cast<std::size_t>(vocab)) {
    return fail(Code::kInvalid, "banned tokens: {} entries, the vocabulary has {} ids", p.banned.size(), vocab);
  }
  for (const std::int32_t id : p.banned) FATHOM_TRY(token_in_vocabulary("banned tokens", id, vocab));
  if (p.top_logprobs < 0 || p.top_logprobs > kMaxTopLogprobs) {
    return fail(Code::kInvalid, "top_logprobs is {}, must be in [0, {}]", p.top_logprobs, kMaxTopLogprobs);
  }
  if (p.top_logprobs > 0 && !p.logprobs) {
    return fail(Code::kInvalid, "top_logprobs is {} but logprobs is off", p.top_logprobs);
  }
  return {};
}

}  // namespace fathom::engine
