// Sampler: from a row of logits to the next token.
//
// Randomness is counted, not drawn from a stream: token i of a request with seed s competes with noise that depends on
// (s, i, id) alone (a Gumbel race: the winner is distributed as the softmax). So neighbours, order of work and restarts
// cannot matter; and two similar distributions, a draft's and the model's, mostly elect the same winner at the same i,
// which is what speculative decoding here rests on (speculation.h).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/sampling_params.h"
#include "ops/sampling/choose.h"

namespace fathom::engine {

// The tokens a request has seen, for penalties. Only worth keeping where SamplingParams::uses_history().
class TokenHistory {
 public:
  struct Seen {
    std::int32_t id = 0;
    std::int32_t in_output = 0;  // how often in the output; 0: only in the prompt
  };
  void add_prompt(std::span<const std::int32_t> ids);
  void add_output(std::int32_t id);
  std::span<const Seen> seen() const { return seen_; }

 private:
  Seen& at(std::int32_t id);
  std::vector<Seen> seen_;
  std::unordered_map<std::int32_t, std::size_t> index_;
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

// Log-probabilities are the model's own: before penalties, bias, temperature and filters.
struct Sampled {
  std::int32_t id = 0;
  float logprob = 0;                   // 0 unless asked for
  std::vector<TokenLogprob> top = {};  // likeliest first, the lower id first among equals
  bool operator==(const Sampled&) const = default;
};

struct SampleInput {
  std::span<const float> logits;                // [V], host memory, not changed
  const SamplingParams& params;                 // valid for this vocabulary
  const TokenHistory* history = nullptr;        // nullptr: nothing seen
  std::int64_t index = 0;                       // of the token in the request's output
  std::span<const std::uint64_t> allowed = {};  // bit id%64 of word id/64: may be chosen; empty: all may
  bool report = true;                           // log-probabilities, where the parameters ask for them
};

// Keeps scratch memory of the size of the vocabulary. One thread at a time.
class Sampler {
 public:
  // The choice is an id in [0, V) that is neither banned nor masked. Time: linear in V, with a logarithm for top-p over
  // a flat distribution. Error, which concerns this request only: kInternal where the row holds NaN or +inf; kInvalid
  // where bans and mask leave no token to choose.
  Result<Sampled> sample(const SampleInput& in);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
  };
  std::span<const float> adjust(const SampleInput& in);
  std::int32_t draw(std::span<const float> x, float max, const SampleInput& in);
  void keep_top_k(std::size_t k);
  void keep_top_p(float p, float max, float temperature);

  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
};

// What the row says of a token that is there already, without regard to how tokens are chosen: its log-probability and
// the n_top likeliest ones. Error: kInternal where the row holds NaN or +inf, or nothing but -inf.
Result<Sampled> score(std::span<const float> logits, std::int32_t id, std::int32_t n_top);

// How token `index` of an answer is chosen, where SamplingParams::only_temperature().
ops::ChoiceRule rule_for(const SamplingParams& params, std::int64_t index);

// The seed of answer `choice` of a request that asked for several. Choice 0 keeps the seed.
std::uint64_t seed_of_choice(std::uint64_t seed, std::int32_t choice);

}  // namespace fathom::engine
