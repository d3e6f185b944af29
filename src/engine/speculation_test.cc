#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(Calibration, LearnsWhatConfidenceIsWorth) {
  Calibration c;
  EXPECT_EQ(c.chance(0.3F), 1) << "tried before it is judged";
  for (int i = 0; i < 100; ++i) {
    c.saw(-1.2F, i % 10 == 0);
    c.saw(2.2F, i % 10 != 0);
  }
  EXPECT_NEAR(c.chance(-1.1F), 0.1, 0.05);
  EXPECT_NEAR(c.chance(2.1F), 0.9, 0.05);
  EXPECT_EQ(c.chance(0.3F), 1) << "of these nothing is known still";
  for (int i = 0; i < 100; ++i) c.saw(std::nanf(""), false);
  EXPECT_LT(c.chance(std::nanf("")), 0.1);
  EXPECT_LT(c.chance(-1e30F), 0.1);
  EXPECT_EQ(c.chance(1e30F), 1);
}

TEST(DepthPolicy, WithholdsGuessesThatAreNotWorthTheirTime) {
  // A token more costs a tenth of a step: one that is hardly ever right gives less than that.
  auto p = seasoned(10e-3, 1e-3, 0, 0.9);
  ASSERT_GE(p.depth(1, 256), 1);
  EXPECT_TRUE(p.worth(0.95));
  int let_through = 0;
  for (int i = 0; i < 640; ++i) let_through += p.worth(0.05) ? 1 : 0;
  EXPECT_EQ(let_through, 10) << "to learn whether that has changed";
  EXPECT_EQ(p.stats().withheld, 640U);
  // Where more tokens cost nothing, nothing is withheld; nor at a fixed depth.
  auto free = seasoned(10e-3, 0, 0, 0.9);
  free.depth(1, 256);
  EXPECT_TRUE(free.worth(0.01));
  DepthPolicy fixed(4, true);
  fixed.depth(4, 256);
  EXPECT_TRUE(fixed.worth(0.01));
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
