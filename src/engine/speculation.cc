#include "engine/speculation.h"

#include <algorithm>

namespace fathom::engine {
namespace {

constexpr double kFade = 0.98;             // of a step's weight at the next one: about fifty steps count
constexpr std::uint64_t kFirstSteps = 16;  // seen before estimates are believed
constexpr double kFirstGuesses = 8;        // of a confidence, before it is believed
constexpr std::uint64_t kLookAgain = 64;   // how often guessing is tried although it seemed not to pay

}  // namespace

void DepthPolicy::saw_step(std::int32_t tokens, double seconds) {
  const double t = tokens;
  for (double* sum : {&n_, &t_, &tt_, &s_, &ts_}) *sum *= kFade;
  n_ += 1;
  t_ += t;
  tt_ += t * t;
  s_ += seconds;
  ts_ += t * seconds;
  ++steps_;
}

void DepthPolicy::saw_draft(double seconds) {
  draft_seconds_ = draft_seconds_ == 0 ? seconds : draft_seconds_ * 0.9 + seconds * 0.1;
}

void DepthPolicy::saw_burst(std::int32_t verified, std::int32_t accepted) {
  if (verified == 0) return;
  ++stats_.bursts;
  stats_.verified += static_cast<std::uint64_t>(verified);
  stats_.accepted += static_cast<std::uint64_t>(accepted);
  for (std::int32_t i = 0; i < std::min(verified, kMaxDrafts); ++i) {
    ++stats_.verified_at[static_cast<std::size_t>(i)];
    if (i < accepted) ++stats_.accepted_at[static_cast<std::size_t>(i)];
  }
  // Those after the first wrong one say nothing of how often a guess is right.
  for (std::int32_t i = 0; i < std::min(verified, accepted + 1); ++i) {
    acceptance_ = acceptance_ * 0.97 + (i < accepted ? 0.03 : 0.0);
  }
}

// Least squares through what was seen; never falling with the number of tokens.
double DepthPolicy::step_seconds(double tokens) const {
  const double spread = n_ * tt_ - t_ * t_;
  const double mean_tokens = t_ / n_;
  const double mean_seconds = s_ / n_;
  // Steps of one size say nothing about others: then half of the cost is taken to grow with the tokens.
  const double slope =
      spread > 1e-9 * tt_ * n_ ? std::max(0.0, (n_ * ts_ - t_ * s_) / spread) : mean_seconds / mean_tokens / 2;
  return std::max(mean_seconds + slope * (tokens - mean_tokens), 1e-9);
}

std::size_t Calibration::bucket_of(float confidence) {
  const float at = (confidence + 4) * 2;  // half a unit each; a NaN is the least
  return at > 0 ? static_cast<std::size_t>(std::min(at, 15.0F)) : 0;
}

void Calibration::saw(float confidence, bool right) {
  Bucket& b = buckets_[bucket_of(confidence)];
  b.right = b.right * kFade + (right ? 1 : 0);
  b.all = b.all * kFade + 1;
}

double Calibration::chance(float confidence) const {
  const Bucket& b = buckets_[bucket_of(confidence)];
  return b.all < kFirstGuesses ? 1 : b.right / b.all;
}

bool DepthPolicy::worth(double chance) {
  if (chance >= least_chance_) return true;
  ++stats_.withheld;
  return stats_.withheld % kLookAgain == 0;  // else nothing would be learnt of such guesses any more
}

std::int32_t DepthPolicy::depth(std::int32_t answers, std::int32_t room) {
  least_chance_ = 0;
  if (answers <= 0 || max_depth_ == 0) return 0;
  const std::int32_t most = std::min(max_depth_, room / answers - 1);
  if (most <= 0) return 0;
  if (fixed_) return most;
  ++asked_;
  if (steps_ < kFirstSteps) return 1;
  std::int32_t best = 0;
  double best_rate = 0;
  double tokens = 0;
  double power = 1;
  for (std::int32_t d = 0; d <= most; ++d) {
    tokens += power;
    power *= acceptance_;
    const double seconds = step_seconds(static_cast<double>(answers) * (1 + d)) + d * draft_seconds_;
    const double rate = tokens / seconds;
    if (rate > best_rate) {
      best_rate = rate;
      best = d;
    }
  }
  // One token more, for one answer, against what all of them get in that time.
  const double tokens_of_step = static_cast<double>(answers) * (1 + best);
  least_chance_ = answers * best_rate * (step_seconds(tokens_of_step + 1) - step_seconds(tokens_of_step));
  return best == 0 && asked_ % kLookAgain == 0 ? 1 : best;
}

}  // namespace fathom::engine
