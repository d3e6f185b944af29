#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace fathom::engine {
namespace {

Job waiting(std::uint64_t arrival, std::int32_t known) { return {.arrival = arrival, .known = known, .cut = known}; }
Job prompt(std::uint64_t arrival, std::int32_t length, std::int32_t known) {
  return {.arrival = arrival,
          .running = true,
          .length = length,
          .known = known,
          .cut = known,
          .pages = (length + 127) / 128};
}
Job answer(std::uint64_t arrival, std::int32_t length) {
  return {.arrival = arrival,
          .running = true,
          .answering = true,
          .length = length,
          .known = length + 1,
          .cut = length + 1,
          .pages = (length + 127) / 128};
}

Shares shares(const std::vector<Job>& jobs, const Budget& budget, std::int32_t pages = 1000) {
  Shares out;
  share(jobs, budget, {.free_slots = 0, .pages = pages}, out);
  return out;
}
Admission admission(const std::vector<Job>& jobs, std::int32_t slots, std::int32_t pages) {
  Admission out;
  admit(jobs, {}, {.free_slots = slots, .pages = pages}, out);
  return out;
}
std::int32_t tokens_of(const Shares& s, std::size_t job) {
  for (const Work& w : s.work) {
    if (w.job == job) return w.tokens;
  }
  return 0;
}

TEST(Scheduler, AnswersComeFirstAndPromptsGetTheRest) {
  const std::vector<Job> jobs{answer(1, 100), prompt(2, 0, 70'000), answer(3, 200)};
  const auto s = shares(jobs, {.step_tokens = 256, .prefill_beside_answers = 64});
  EXPECT_EQ(tokens_of(s, 0), 1);
  EXPECT_EQ(tokens_of(s, 2), 1);
  EXPECT_EQ(tokens_of(s, 1), 64);
  EXPECT_EQ(tokens_of(shares({jobs[1]}, {.step_tokens = 256, .prefill_beside_answers = 64}), 0), 256);
}

TEST(Scheduler, PromptsAreNotStarvedByAnswers) {
  std::vector<Job> jobs;
  for (std::uint64_t i = 0; i < 100; ++i) jobs.push_back(answer(i + 1, 50));
  jobs.push_back(prompt(200, 0, 500));
  const auto s = shares(jobs, {.step_tokens = 64});
  EXPECT_EQ(tokens_of(s, 100), 8);
  EXPECT_EQ(s.work.size(), 57U);
}

TEST(Scheduler, AnswersThatDoNotFitTakeTurns) {
  std::vector<Job> jobs;
  for (std::uint64_t i = 0; i < 10; ++i) jobs.push_back(answer(i + 1, 50));
  std::vector<int> ran(10, 0);
  for (std::uint64_t step = 1; step <= 30; ++step) {
    const Shares s = shares(jobs, {.step_tokens = 4});
    for (const Work& w : s.work) {
      jobs[w.job].last_step = step;
      ++jobs[w.job].served;
      ++ran[w.job];
    }
  }
  EXPECT_GE(*std::min_element(ran.begin(), ran.end()), 11);
  EXPECT_LE(*std::max_element(ran.begin(), ran.end()), 13);
}

TEST(Scheduler, TheLeastServedPromptIsFirst) {
  std::vector<Job> jobs{prompt(1, 5000, 64'000), prompt(2, 0, 40), prompt(3, 0, 40)};
  jobs[0].served = 5000;
  jobs[1].client_service = 900;  // of a client who had much
  const auto s = shares(jobs, {.step_tokens = 256});
  EXPECT_EQ(tokens_of(s, 2), 40);
  EXPECT_EQ(tokens_of(s, 0), 216) << "a client who had little goes before one who had much";
  jobs[1].priority = -1;
  EXPECT_EQ(tokens_of(shares(jobs, {.step_tokens = 50}), 1), 40);
}

TEST(Scheduler, ChunksEndWhereSnapshotsAreTaken) {
  std::vector<Job> jobs{prompt(1, 100, 5000)};
  jobs[0].cut = 128;
  EXPECT_EQ(tokens_of(shares(jobs, {.step_tokens = 256}), 0), 28);
}

TEST(Scheduler, GuessesTakeWhatIsLeft) {
  std::vector<Job> jobs{answer(1, 10), answer(2, 10), answer(3, 10)};
  for (Job& j : jobs) j.drafts = 4;
  const auto s = shares(jobs, {.step_tokens = 9, .logit_rows = 100});
  std::int32_t sum = 0;
  for (const Work& w : s.work) sum += w.tokens + w.drafts;
  EXPECT_EQ(s.work.size(), 3U);
  EXPECT_EQ(sum, 9);
}

TEST(Scheduler, WhoIsFirstKeepsItsMemoryAndTheLastGivesItUp) {
  std::vector<Job> jobs{answer(5, 128), answer(2, 256), answer(9, 128)};
  const auto s = shares(jobs, {}, 1);
  EXPECT_EQ(s.preempt, std::vector<std::size_t>{2});
  ASSERT_EQ(s.work.size(), 1U);
  EXPECT_EQ(s.work[0].job, 1U) << "the oldest gets the page";
  jobs[1].priority = 7;
  EXPECT_EQ(shares(jobs, {}, 1).preempt, std::vector<std::size_t>{1});
}

TEST(Scheduler, APromptTakesThePagesThereAre) {
  const auto s = shares({prompt(1, 0, 1000)}, {.step_tokens = 512}, 2);
  EXPECT_EQ(tokens_of(s, 0), 256);
  EXPECT_TRUE(s.preempt.empty());
}

TEST(Scheduler, AdmitsInOrderWhatFits) {
  const std::vector<Job> jobs{waiting(1, 1000), waiting(2, 100), waiting(3, 100)};
  EXPECT_EQ(admission(jobs, 3, 100).start, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(admission(jobs, 1, 100).start, (std::vector<std::size_t>{0}));
  EXPECT_EQ(admission(jobs, 3, 12).start, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(admission(jobs, 3, 5).start, (std::vector<std::size_t>{0})) << "alone, it may have all there is";
  std::vector<Job> held = jobs;
  held[0].held = true;
  EXPECT_EQ(admission(held, 1, 100).start, (std::vector<std::size_t>{1}));
}

TEST(Scheduler, NobodyOvertakesOneWhoDoesNotFit) {
  const std::vector<Job> jobs{answer(1, 500), waiting(2, 10'000), waiting(3, 10)};
  EXPECT_TRUE(admission(jobs, 5, 50).start.empty());
}

TEST(Scheduler, OnlyAHigherPriorityTakesAPlace) {
  std::vector<Job> jobs{answer(1, 500), answer(2, 500), waiting(3, 100)};
  EXPECT_TRUE(admission(jobs, 0, 100).preempt.empty());
  jobs[2].priority = -1;
  EXPECT_EQ(admission(jobs, 0, 100).preempt, std::vector<std::size_t>{1});
  jobs[1].priority = -1;
  EXPECT_EQ(admission(jobs, 0, 100).preempt, std::vector<std::size_t>{0});
}

TEST(Scheduler, PlansKeepWithinEveryLimit) {
  std::mt19937 rng(2);
  for (int round = 0; round < 5000; ++round) {
    std::vector<Job> jobs;
    const unsigned n = rng() % 20;
    for (unsigned i = 0; i < n; ++i) {
      const auto length = static_cast<std::int32_t>(rng() % 600);
      Job j = rng() % 2 == 0 ? answer(i + 1, length)
                             : prompt(i + 1, length, length + 1 + static_cast<std::int32_t>(rng() % 500));
      if (rng() % 8 == 0) j.known = j.length;
      j.priority = static_cast<std::int32_t>(rng() % 3);
      j.drafts = j.answering && j.known > j.length ? static_cast<std::int32_t>(rng() % 4) : 0;
      j.running = rng() % 4 != 0;
      jobs.push_back(j);
    }
    const Budget b{.step_tokens = static_cast<std::int32_t>(1 + rng() % 300),
                   .logit_rows = static_cast<std::int32_t>(1 + rng() % 40)};
    const auto pages = static_cast<std::int32_t>(rng() % 10);
    const Shares s = shares(jobs, b, pages);
    std::int32_t tokens = 0;
    std::int32_t rows = 0;
    std::int32_t taken = 0;
    std::vector<bool> seen(jobs.size(), false);
    for (const Work& w : s.work) {
      const Job& j = jobs[w.job];
      ASSERT_TRUE(j.running && !seen[w.job]);
      seen[w.job] = true;
      ASSERT_TRUE(w.tokens > 0 || j.length == j.known);
      ASSERT_LE(j.length + w.tokens, j.known);
      ASSERT_LE(w.drafts, j.drafts);
      tokens += w.tokens + w.drafts;
      rows += j.length + w.tokens == j.known ? 1 + w.drafts : 0;
      taken += std::max(0, (j.length + w.tokens + w.drafts + 127) / 128 - j.pages);
    }
    ASSERT_LE(tokens, b.step_tokens);
    ASSERT_LE(rows, b.logit_rows);
    ASSERT_LE(taken, pages);
    // Somebody gets on, or makes room: no plan stands still.
    const bool anybody = std::any_of(jobs.begin(), jobs.end(), [](const Job& j) { return j.running; });
    ASSERT_EQ(anybody, !s.work.empty() || !s.preempt.empty());
    for (const std::size_t v : s.preempt) ASSERT_TRUE(jobs[v].running && !seen[v]);
  }
}

TEST(ClientLedger, NobodySavesUpAClaim) {
  ClientLedger l;
  l.enter("a");
  l.charge("a", 1000);
  l.enter("b");
  EXPECT_EQ(l.service("b"), 1000);
  l.charge("a", 10);
  EXPECT_LT(l.service("b"), l.service("a"));
  l.enter("b");
  l.leave("b");
  EXPECT_EQ(l.service("b"), 1000);
  l.leave("b");
  EXPECT_EQ(l.clients(), 1U) << "nobody is remembered for ever";
  l.leave("a");
  l.enter("c");
  EXPECT_EQ(l.service("c"), 0);
}

}  // namespace
}  // namespace fathom::engine
