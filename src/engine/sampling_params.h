// SamplingParams: how the next token of a request is chosen. A value: checked once by validate(), then const.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace fathom::engine {

inline constexpr std::int32_t kMaxTopLogprobs = 20;
inline constexpr std::size_t kMaxLogitBiases = 4096;

struct LogitBias {
  std::int32_t id = 0;
  float bias = 0;  // added to the logit
  bool operator==(const LogitBias&) const = default;
};

// Applied in this order: repetition, frequency and presence penalty, bias, bans, temperature, top-k, top-p, min-p.
struct SamplingParams {
  float temperature = 1;         // >= 0; 0: the likeliest token, the lowest id among equals
  std::int32_t top_k = 0;        // keep the k likeliest; 0: all
  float top_p = 1;               // (0, 1]: keep the fewest likeliest that hold this share of what top-k left
  float min_p = 0;               // [0, 1]: keep those at least this fraction as likely as the likeliest
  float repetition_penalty = 1;  // (0, 10]: over prompt and output: divides positive logits, multiplies others
  float frequency_penalty = 0;   // [-2, 2]: subtracted once for each time a token stands in the output
  float presence_penalty = 0;    // [-2, 2]: subtracted once where a token stands in the output
  std::vector<LogitBias> logit_bias = {};  // each id at most once
  std::vector<std::int32_t> banned = {};   // never chosen
  std::uint64_t seed = 0;                  // the same seed gives the same tokens, whatever else runs
  bool logprobs = false;                   // report the chosen token's log-probability
  std::int32_t top_logprobs = 0;           // and those of the likeliest tokens, at most kMaxTopLogprobs; needs logprobs

  bool operator==(const SamplingParams&) const = default;
  // Whether the token follows from the logits, the seed and the temperature alone.
  bool only_temperature() const {
    const bool filters = top_k > 0 || top_p < 1 || min_p > 0;
    return !(filters && temperature > 0) && !uses_history() && logit_bias.empty() && banned.empty();
  }
  // Whether tokens seen before change what is chosen next.
  bool uses_history() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
};

// Error: kInvalid, naming the field, what was found and what is allowed.
Result<> validate(const SamplingParams& params, std::int32_t vocab);

}  // namespace fathom::engine
