#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/sampling/noise.h"

namespace fathom::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// exp of less adds nothing to a sum that holds a 1, even a hundred thousand times.
constexpr double kNoWeight = -60;

// The race of noise.h.
class Race {
 public:
  Race(const SampleInput& in, float max)
      : key_(ops::noise::key(in.params.seed, in.index)), max_(max), temperature_(in.params.temperature) {}

  void enter(float logit, std::int32_t id) {
    const double without = ops::tempered(logit, max_, temperature_);
    const std::uint64_t bits = ops::noise::bits(key_, id);
    if (without + ops::noise::bound(bits) < leader_.worth) return;
    const double worth = without + ops::noise::value(bits);
    if (leader_.beaten_by(worth, id)) leader_ = {worth, id};
  }
  std::int32_t winner() const { return leader_.id; }

 private:
  std::uint64_t key_;
  float max_;
  float temperature_;
  ops::Leader leader_{-std::numeric_limits<double>::infinity(), -1};
};

// Words that forbid or allow all of their 64 ids, nearly all of a grammar's, are dealt with at once.
void mask(std::span<const std::uint64_t> allowed, std::span<float> x) {
  for (std::size_t begin = 0; begin < x.size(); begin += 64) {
    const std::uint64_t word = allowed[begin / 64];
    const std::span<float> part = x.subspan(begin, std::min<std::size_t>(64, x.size() - begin));
    if (word == 0) {
      std::fill(part.begin(), part.end(), -kInfinity);
    } else if (~word != 0) {
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (((word >> i) & 1U) == 0) part[i] = -kInfinity;
      }
    }
  }
}

// Likelier first, the lower id among equals.
struct Likelier {
  template <class C>
  bool operator()(const C& a, const C& b) const {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
};

// The index of the largest value, the lowest among equals; -1 where all are -inf.
std::int32_t argmax(std::span<const float> x) {
  float best = -kInfinity;
  std::int32_t at = -1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > best) {
      best = x[i];
      at = static_cast<std::int32_t>(i);
    }
  }
  return at;
}

bool has_nan_or_infinity(std::span<const float> x) {
  int bad = 0;
  for (const float v : x) bad |= static_cast<int>(!(v < kInfinity));
  return bad != 0;
}

void add_logprobs(std::span<const float> logits, std::int32_t n_top, Sampled& out) {
  struct Top {
    float logit;
    std::int32_t id;
  };
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  std::vector<Top> top;  // sorted, at most n_top
  if (n_top > 0) top.reserve(static_cast<std::size_t>(n_top) + 1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double x = double{logits[i]} - max;
    if (x > kNoWeight) sum += std::exp(x);
    const bool full = static_cast<std::int32_t>(top.size()) == n_top;
    if (n_top == 0 || (full && !(logits[i] > top.back().logit))) continue;
    const Top entry{logits[i], static_cast<std::int32_t>(i)};
    top.insert(std::upper_bound(top.begin(), top.end(), entry, Likelier{}), entry);
    if (full) top.pop_back();
  }
  const double log_sum = max + std::log(sum);
  out.logprob = static_cast<float>(logits[static_cast<std::size_t>(out.id)] - log_sum);
  out.top.reserve(top.size());
  for (const Top& t : top) out.top.push_back({t.id, static_cast<float>(t.logit - log_sum)});
}

}  // namespace

TokenHistory::Seen& TokenHistory::at(std::int32_t id) {
  const auto [it, is_new] = index_.try_emplace(id, seen_.size());
  if (is_new) seen_.push_back({.id = id});
  return seen_[it->second];
}

void TokenHistory::add_prompt(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) at(id);
}

void TokenHistory::add_output(std::int32_t id) { ++at(id).in_output; }

Result<Sampled> Sampler::sample(const SampleInput& in) {
  if (has_nan_or_infinity(in.logits)) {
    return fail(Code::kInternal, "the model's logits for token {} of the answer are not numbers", in.index);
  }
  const std::span<const float> x = adjust(in);
  const std::int32_t likeliest = argmax(x);
  if (likeliest < 0) {
    return fail(Code::kInvalid,
                "no token may be chosen as token {} of the answer: all are banned, masked or impossible", in.index);
  }
  Sampled out{.id = in.params.temperature == 0 ? likeliest : draw(x, x[static_cast<std::size_t>(likeliest)], in)};
  FATHOM_CHECK(out.id >= 0 && out.id < static_cast<std::int32_t>(in.logits.size()),
               "a chosen token is in the vocabulary");
  if (in.params.logprobs && in.report) add_logprobs(in.logits, in.params.top_logprobs, out);
  return out;
}

// The logits after penalties, bias, bans and mask: the row itself where there are none.
std::span<const float> Sampler::adjust(const SampleInput& in) {
  const SamplingParams& p = in.params;
  const bool penalise = in.history != nullptr && p.uses_history();
  if (!penalise && p.logit_bias.empty() && p.banned.empty() && in.allowed.empty()) return in.logits;
  adjusted_.assign(in.logits.begin(), in.logits.end());
  if (penalise) {
    for (const TokenHistory::Seen& s : in.history->seen()) {
      float& x = adjusted_[static_cast<std::size_t>(s.id)];
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
      if (s.in_output > 0) x -= p.frequency_penalty * static_cast<float>(s.in_output) + p.presence_penalty;
    }
  }
  for (const LogitBias& b : p.logit_bias) adjusted_[static_cast<std::size_t>(b.id)] += b.bias;
  for (const std::int32_t id : p.banned) adjusted_[static_cast<std::size_t>(id)] = -kInfinity;
  if (!in.allowed.empty()) {
    FATHOM_CHECK(in.allowed.size() * 64 >= adjusted_.size(), "the mask covers the vocabulary");
    mask(in.allowed, adjusted_);
  }
  return adjusted_;
}

std::int32_t Sampler::draw(std::span<const float> x, float max, const SampleInput& in) {
  const SamplingParams& p = in.params;
  Race race(in, max);
  const auto vocab = static_cast<std::int32_t>(x.size());
  const bool cut_k = p.top_k > 0 && p.top_k < vocab;
  if (!cut_k && p.top_p == 1 && p.min_p == 0) {
    for (std::int32_t id = 0; id < vocab; ++id) {
      const float logit = x[static_cast<std::size_t>(id)];
      if (logit > -kInfinity) race.enter(logit, id);
    }
    return race.winner();
  }
  candidates_.clear();
  for (std::int32_t id = 0; id < vocab; ++id) {
    const float logit = x[static_cast<std::size_t>(id)];
    if (logit > -kInfinity) candidates_.push_back({logit, id});
  }
  if (cut_k) keep_top_k(static_cast<std::size_t>(p.top_k));
  if (p.top_p < 1) keep_top_p(p.top_p, max, p.temperature);
  for (const Candidate& c : candidates_) {
    if (p.min_p > 0 && std::exp((double{c.logit} - max) / p.temperature) < p.min_p) continue;
    race.enter(c.logit, c.id);
  }
  return race.winner();
}

void Sampler::keep_top_k(std::size_t k) {
  if (k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k), candidates_.end(),
                   Likelier{});
  candidates_.resize(k);
}

// Sorts only as much of the candidates as holds the mass asked for: blocks that grow fourfold, each selected, then
// sorted.
void Sampler::keep_top_p(float p, float max, float temperature) {
  const auto weight = [&](const Candidate& c) {
    const double x = (double{c.logit} - max) / temperature;
    return x > kNoWeight ? std::exp(x) : 0;
  };
  // The order of a sum is part of the answer; selection in keep_top_k leaves an order of its own making, but always the
  // same.
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  const double wanted = double{p} * total;
  double mass = 0;
  std::size_t kept = 0;
  for (std::size_t block = 256; kept < candidates_.size(); block *= 4) {
    const std::size_t end = std::min(candidates_.size(), kept + block);
    const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(kept);
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (end < candidates_.size()) std::nth_element(first, last, candidates_.end(), Likelier{});
    std::sort(first, last, Likelier{});
    while (kept < end) {
      mass += weight(candidates_[kept++]);
      if (mass >= wanted) {
        candidates_.resize(kept);
        return;
      }
    }
  }
}

Result<Sampled> score(std::span<const float> logits, std::int32_t id, std::int32_t n_top) {
  if (has_nan_or_infinity(logits) || argmax(logits) < 0)
    return fail(Code::kInternal, "the model's logits for a token of the prompt are not numbers");
  Sampled out{.id = id};
  add_logprobs(logits, n_top, out);
  return out;
}

ops::ChoiceRule rule_for(const SamplingParams& params, std::int64_t index) {
  return {.key = ops::noise::key(params.seed, index), .temperature = params.temperature};
}

std::uint64_t seed_of_choice(std::uint64_t seed, std::int32_t choice) {
  return choice == 0 ? seed : ops::noise::mix(seed + static_cast<std::uint64_t>(choice) * ops::noise::kGolden);
}

}  // namespace fathom::engine
