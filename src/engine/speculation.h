// Speculation: guessing tokens with the checkpoint's draft block and verifying them in one step.
//
// A guess at output position i is drawn from the draft's distribution with the noise that the model's own choice at i
// will be drawn with (sampler.h). It is accepted if that choice, made from the model's logits as always, is the same
// token. So:
//   - nothing is lost: what comes out is what would have come out, token for token, greedy or sampled, whatever was
//     guessed, how deep, or not at all. Rejection sampling with its own coin keeps the distribution only, and a
//     request's answer would depend on how many guesses the load allowed.
//   - little is given away: for distributions p and q the two races agree with probability at least (1-d)/(1+d), d
//   their
//     total variation distance; the best that any scheme can do is 1-d.
//
// DepthPolicy says how deep it pays. Verifying n guesses costs a larger step, guessing them n steps of the draft block;
// both are measured as the engine runs. Under load a step costs in proportion to its tokens and depth falls to 0.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace fathom::engine {

inline constexpr std::int32_t kMaxDrafts = 8;

struct SpeculationStats {
  std::uint64_t verified = 0;  // guesses
  std::uint64_t accepted = 0;
  std::uint64_t withheld = 0;                           // for want of confidence, with all that would have come after
  std::uint64_t bursts = 0;                             // times that one or more guesses of a request were verified
  std::array<std::uint64_t, kMaxDrafts> verified_at{};  // by place in the burst
  std::array<std::uint64_t, kMaxDrafts> accepted_at{};
};

// What a draft's word on its own guess is worth: how often guesses of about that confidence were right. How confidences
// are calibrated is not published (model.md 10.2), so it is learnt as the engine runs.
class Calibration {
 public:
  void saw(float confidence, bool right);
  // That such a guess is right; 1 until some like it were seen.
  double chance(float confidence) const;

 private:
  struct Bucket {
    double right = 0;
    double all = 0;
  };
  static std::size_t bucket_of(float confidence);
  std::array<Bucket, 16> buckets_{};
};

class DepthPolicy {
 public:
  // max_depth in [0, kMaxDrafts]. fixed: always as deep as that.
  DepthPolicy(std::int32_t max_depth, bool fixed) : max_depth_(max_depth), fixed_(fixed) {}

  // A step that only continued answers took this long; so did a call of the draft block for guesses.
  void saw_step(std::int32_t tokens, double seconds);
  void saw_draft(double seconds);
  // Of a burst of guesses so many were right before the first wrong one.
  void saw_burst(std::int32_t verified, std::int32_t accepted);

  // A verified guess that came with a confidence, those before it right.
  void saw_confidence(float confidence, bool right) { calibration_.saw(confidence, right); }

  // Guesses for each of `answers` requests, so that answers * (1 + depth) <= room.
  std::int32_t depth(std::int32_t answers, std::int32_t room);

  double chance(float confidence) const { return calibration_.chance(confidence); }
  // Whether to verify a guess that is right, with all before it in its burst, with this probability: it makes the step
  // longer for everybody. As of the last depth().
  bool worth(double chance);

  const SpeculationStats& stats() const { return stats_; }
  // Probability that a guess is right if those before it were; 1 before anything was seen.
  double acceptance() const { return acceptance_; }

 private:
  double step_seconds(double tokens) const;

  std::int32_t max_depth_;
  bool fixed_;
  double acceptance_ = 1;
  // Sums over steps, the past fading: of 1, tokens, tokens squared, seconds, tokens * seconds.
  double n_ = 0, t_ = 0, tt_ = 0, s_ = 0, ts_ = 0;
  double draft_seconds_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t asked_ = 0;
  double least_chance_ = 0;
  Calibration calibration_;
  SpeculationStats stats_;
};

}  // namespace fathom::engine
