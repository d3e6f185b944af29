#include "engine/speculation.h"

#include <gtest/gtest.h>

namespace fathom::engine {
namespace {

// A policy that has seen steps of a machine where a step costs `fixed` + `each` * tokens seconds.
DepthPolicy seasoned(double fixed, double each, double draft, double right, std::int32_t max = 4) {
  DepthPolicy p(max, false);
  for (std::int32_t i = 0; i < 400; ++i) {
    const std::int32_t tokens = 1 + i % 8;
    p.saw_step(tokens, fixed + each * tokens);
    p.saw_draft(draft);
    p.saw_burst(1, i % 100 < static_cast<std::int32_t>(right * 100) ? 1 : 0);
  }
  return p;
}

TEST(DepthPolicy, GuessesWhileAStepCostsTheSameAnyway) {
  auto p = seasoned(10e-3, 0.01e-3, 0.2e-3, 0.9);
  EXPECT_GE(p.depth(1, 256), 2);
}

TEST(DepthPolicy, StopsWhenTheBatchIsFull) {
  // field-faults.md 4: guessing halves the throughput of a saturated batch.
  auto p = seasoned(10e-3, 1e-3, 0.2e-3, 0.7);
  EXPECT_GE(p.depth(1, 256), 1);
  EXPECT_EQ(p.depth(120, 256), 0);
}

TEST(DepthPolicy, StopsWhenGuessesAreWrong) {
  auto p = seasoned(10e-3, 1e-3, 2e-3, 0.02);
  int guessed = 0;
  for (int i = 0; i < 640; ++i) guessed += p.depth(1, 256);
  EXPECT_GE(guessed, 1) << "but looks again";
  EXPECT_LE(guessed, 20);
  for (int i = 0; i < 300; ++i) p.saw_burst(1, 1);
  EXPECT_GE(p.depth(1, 256), 1) << "and takes it up again";
}

TEST(DepthPolicy, KeepsToItsLimits) {
  DepthPolicy fixed(3, true);
  EXPECT_EQ(fixed.depth(1, 256), 3);
  EXPECT_EQ(fixed.depth(100, 256), 1);
  EXPECT_EQ(fixed.depth(200, 256), 0);
  EXPECT_EQ(fixed.depth(0, 256), 0);
  EXPECT_EQ(DepthPolicy(0, true).depth(1, 256), 0);
  DepthPolicy fresh(4, false);
  EXPECT_EQ(fresh.depth(1, 256), 1) << "nothing is known yet: look";
  for (int i = 0; i < 50; ++i) fresh.saw_step(1, 1e-3);  // one size only: no slope to be had
  EXPECT_LE(fresh.depth(1, 256), 4);
}

TEST(DepthPolicy, Counts) {
  DepthPolicy p(4, true);
  p.saw_burst(3, 1);
  p.saw_burst(2, 2);
  p.saw_burst(0, 0);
  EXPECT_EQ(p.stats().bursts, 2U);
  EXPECT_EQ(p.stats().verified, 5U);
  EXPECT_EQ(p.stats().accepted, 3U);
  EXPECT_EQ(p.stats().verified_at[2], 1U);
  EXPECT_EQ(p.stats().accepted_at[0], 2U);
}

}  // namespace
}  // namespace fathom::engine
