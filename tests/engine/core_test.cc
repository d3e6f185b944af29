// Cases of the engine, each a behaviour that was asked for or a fault that others had (field-faults.md), over a model
// without arithmetic.
#include <gmock/gmock.h>

#include <limits>

#include "support/engine_world.h"

namespace fathom::testing {
namespace {

using engine::CoreOptions;
using engine::Finish;
using engine::Request;
using ::testing::HasSubstr;

Tokens tokens(std::size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  Tokens t(n);
  for (auto& x : t) x = static_cast<std::int32_t>(rng() % 40);
  return t;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Request request(Tokens prompt, std::int32_t max_tokens = 5) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

struct Case : FakeWorld {
  explicit Case(CoreOptions o = {}, std::int32_t pages = 400, FakeRunnerOptions r = {})
      : FakeWorld(r, std::move(o), pages, 1) {}
  // Submits, and gives back what it will be told.
  std::shared_ptr<Told> ask_for(Request r) {
    ask(std::move(r));
    return asked.back().told;
  }
  std::shared_ptr<Told> run(Request r) {
    auto told = ask_for(std::move(r));
    finish();
    return told;
  }
};

// Only rows of which more is asked than a temperature come to the host; answers are the same.
TEST(Core, TokensAreChosenWhereTheLogitsAreUnlessMoreIsAsked) {
  const auto chosen = [](const std::function<void(Request&)>& change, std::size_t* answered = nullptr) {
    Case w({.max_drafts = 0});
    Request r = request(tokens(20, 3), 12);
    change(r);
    const auto told = w.run(std::move(r));
    if (answered != nullptr) *answered = told->tokens[0].size();
    return w.runner.chosen;
  };
  EXPECT_EQ(chosen([](Request&) {}), 12U);
  EXPECT_EQ(chosen([](Request& r) { r.sampling.temperature = 1; }), 12U);
  EXPECT_EQ(chosen([](Request& r) { r.sampling.top_p = 0.5F; }), 12U) << "greedy takes no notice of filters";
  const auto none = [&](const std::function<void(engine::SamplingParams&)>& change) {
    return chosen([&](Request& r) {
      r.sampling.temperature = 1;
      change(r.sampling);
    });
  };
  EXPECT_EQ(none([](auto& s) { s.top_p = 0.9F; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.top_k = 5; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.min_p = 0.1F; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.presence_penalty = 0.5F; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.logit_bias = {{3, 1.0F}}; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.banned = {3}; }), 0U);
  EXPECT_EQ(none([](auto& s) { s.logprobs = true; }), 0U);
  // Until min_tokens the ends are banned.
  std::size_t answered = 0;
  const auto late = chosen(
      [](Request& r) {
        r.stop_ids = {1};
        r.min_tokens = 5;
      },
      &answered);
  EXPECT_EQ(late, answered - 5);
}

TEST(Core, RefusesWhatCannotBeAnsweredAndNamesTheField) {
  Case w;
  const auto what = [&](Request r) {
    if (r.sink == nullptr) r.sink = std::make_unique<Recorder>(std::make_shared<Told>(), nullptr);
    const auto v = w.core->validate(r);
    return v ? std::string("valid") : v.error().what;
  };
  EXPECT_EQ(what(request({1, 2, 3})), "valid");
  EXPECT_THAT(what(request({})), HasSubstr("prompt is empty"));
  // field-faults.md 4: an id one past the vocabulary, and -1.
  EXPECT_THAT(what(request({1, 40})), HasSubstr("prompt[1] is 40"));
  EXPECT_THAT(what(request({-1})), HasSubstr("prompt[0] is -1"));
  EXPECT_THAT(what(request(Tokens(4096, 1))), HasSubstr("4096 tokens; the model has 4096 positions"));
  EXPECT_EQ(what(request(Tokens(4095, 1))), "valid");
  Request r = request({1});
  r.stop_ids = {99};
  EXPECT_THAT(what(std::move(r)), HasSubstr("stop_ids[0] is 99"));
  r = request({1});
  r.n = 17;
  EXPECT_THAT(what(std::move(r)), HasSubstr("n is 17"));
  r = request({1});
  r.max_tokens = -1;
  EXPECT_THAT(what(std::move(r)), HasSubstr("max_tokens"));
  r = request({1});
  r.sampling.top_p = 7;
  EXPECT_THAT(what(std::move(r)), HasSubstr("top_p"));
  r = request({1});
  r.salt = std::string(300, 'x');
  EXPECT_THAT(what(std::move(r)), HasSubstr("salt"));
  r = request({1});
  r.shared_ends = {5, 3};
  EXPECT_THAT(what(std::move(r)), HasSubstr("shared_ends"));
  Case small({.slots = 1}, 8);
  Request big = request(Tokens(2000, 1));
  big.sink = std::make_unique<Recorder>(std::make_shared<Told>(), nullptr);
  EXPECT_EQ(small.core->validate(big).error().code, Code::kExhausted);
}

TEST(Core, AnswersEndWhereTheyShould) {
  Case w;
  auto told = w.run(request(tokens(50, 1), 7));
  EXPECT_EQ(told->tokens[0].size(), 7U);
  EXPECT_EQ(told->finishes[0], Finish::kLength);
  // No limit: as far as the model has positions. field-faults.md: agents ask for far more than fits; that is no error.
  told = w.run(request(tokens(4090, 1), 0));
  EXPECT_EQ(told->tokens[0].size(), 6U);
  told = w.run(request(tokens(4090, 1), 1'000'000'000));
  EXPECT_EQ(told->tokens[0].size(), 6U);
  EXPECT_EQ(told->finishes[0], Finish::kLength);
  w.verify();
}

TEST(Core, APromptIsScoredWholeWhateverIsRemembered) {
  Case w;
  const Tokens prompt = tokens(300, 1);
  w.run(request(prompt));  // is remembered now
  Request r = request(prompt);
  r.score_prompt = true;
  r.sampling.logprobs = true;
  r.sampling.top_logprobs = 2;
  r.n = 2;
  const auto told = w.run(std::move(r));
  ASSERT_EQ(told->scores.size(), 299U);
  EXPECT_EQ(told->scores[7].id, prompt[8]);
  EXPECT_EQ(told->scores[7].top.size(), 2U);
  EXPECT_EQ(told->outcome.cached_tokens, 0);
  EXPECT_EQ(told->tokens[1].size(), 5U);
  w.verify();
}

TEST(Core, APromptThatIsOnlyScoredHasNoAnswer) {
  for (const std::int32_t rows : {1, 7, 64}) {
    FakeRunnerOptions narrow;
    narrow.logit_rows = rows;
    Case w({}, 400, narrow);
    for (const bool score : {true, false, false}) {  // the last one finds all of it remembered
      Request r = request(tokens(200, 1));
      r.score_prompt = score;
      r.prompt_only = true;
      const auto told = w.run(std::move(r));
      EXPECT_TRUE(told->ok);
      EXPECT_TRUE(told->tokens.empty());
      EXPECT_EQ(told->finishes.at(0), Finish::kLength);
      EXPECT_EQ(told->scores.size(), score ? 199U : 0U);
      EXPECT_EQ(told->outcome.completion_tokens, 0);
    }
    w.verify();
  }
}

TEST(Core, APromptOfOneTokenHasNoScores) {
  Case w;
  Request r = request({3});
  r.score_prompt = true;
  const auto told = w.run(std::move(r));
  EXPECT_TRUE(told->scores.empty());
  EXPECT_EQ(told->tokens[0].size(), 5U);
}

TEST(Core, ARowOfThePromptThatIsNoNumbersEndsItsRequestOnly) {
  Case w;
  const Tokens bad = tokens(70, 1);
  const auto bad_hash = FakeModel::hash(std::span(bad).first(33));
  w.runner.spoil = [=](FakeModel::Hash h, std::span<float> row) {
    if (h == bad_hash) row[3] = std::numeric_limits<float>::quiet_NaN();
  };
  Request r = request(bad);
  r.score_prompt = true;
  const auto failed = w.ask_for(std::move(r));
  const auto other = w.ask_for(request(tokens(50, 2)));
  w.finish();
  EXPECT_FALSE(failed->ok);
  EXPECT_EQ(failed->error.code, Code::kInternal);
  EXPECT_THAT(failed->error.what, HasSubstr("prompt"));
  EXPECT_TRUE(other->ok);
}

TEST(Core, ABadRowEndsItsRequestOnly) {
  for (const bool nan : {true, false}) {
    Case w;
    const Tokens bad = tokens(70, 1);
    const auto bad_hash = FakeModel::hash(bad);
    w.runner.spoil = [=](FakeModel::Hash h, std::span<float> row) {
      if (h != bad_hash) return;
      if (nan) {
        row[3] = std::numeric_limits<float>::quiet_NaN();
      } else {
        std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
      }
    };
    Request r = request(bad);
    r.n = 3;
    auto failed = w.ask_for(std::move(r));
    auto good = w.ask_for(request(tokens(70, 2)));
    w.finish();
    EXPECT_FALSE(failed->ok);
    EXPECT_EQ(failed->ends, 1);
    EXPECT_TRUE(good->ok);
    w.verify();
    EXPECT_TRUE(w.run(request(tokens(10, 3)))->ok);
  }
}

TEST(Core, AFailedModelEndsEveryRequestAndTakesNoMore) {
  Case w;
  std::vector<std::shared_ptr<Told>> all;
  for (unsigned i = 0; i < 30; ++i) all.push_back(w.ask_for(request(tokens(100, i))));
  w.step();
  w.runner.fail_next = true;
  w.step();
  for (const auto& told : all) {
    EXPECT_EQ(told->ends, 1);
    EXPECT_EQ(told->error.code, Code::kUnavailable);
    EXPECT_THAT(told->error.what, HasSubstr("the device is gone"));
  }
  ASSERT_NE(w.core->failure(), nullptr);
  Request r = request({1});
  const auto told = std::make_shared<Told>();
  r.sink = std::make_unique<Recorder>(told, nullptr);
  EXPECT_EQ(w.core->submit(99, std::move(r)).error().code, Code::kUnavailable);
  EXPECT_NE(r.sink, nullptr) << "a refused request is as it was";
  EXPECT_EQ(told->ends, 0);
  EXPECT_EQ(w.core->requests(), 0);
}

TEST(Core, TheQueueIsBounded) {
  Case w({.slots = 1, .max_waiting = 3});
  for (unsigned i = 0; i < 10; ++i) w.ask(request(tokens(100, i)));
  EXPECT_EQ(w.core->requests(), 3);
  w.finish();
  w.verify();
}

TEST(Core, SaysHowManyRequestsEndASecond) {
  Case w({.slots = 1, .max_drafts = 0});
  EXPECT_EQ(w.core->stats().ends_per_second, 0);
  // A prompt and ten tokens, one after another: eleven steps of a millisecond each, or ten.
  for (int i = 0; i < 20; ++i) w.ask_for(request(tokens(3, 7U + static_cast<unsigned>(i)), 10));
  w.finish();
  const double rate = w.core->stats().ends_per_second;
  EXPECT_NEAR(rate, 100, 10);
  // An hour of nothing to do says nothing of how long things take.
  w.clock += 3'600'000'000;
  w.step();
  w.run(request(tokens(3, 1), 10));
  EXPECT_NEAR(w.core->stats().ends_per_second, rate, 10);
}

TEST(Core, ALongPromptStallsNobody) {
  // field-faults.md 6: an input of more than 64K hangs the engine.
  FakeRunnerOptions r;
  r.max_positions = 200'000;
  r.step_tokens = 256;
  Case w({.slots = 4, .prefill_beside_answers = 64}, 4000, r);
  auto answer = w.ask_for(request(tokens(20, 1), 600));
  w.step();
  auto longer = w.ask_for(request(tokens(65'537, 2), 3));
  std::size_t had = answer->tokens[0].size();
  for (int i = 0; i < 300; ++i) {
    w.step();
    ASSERT_GT(answer->tokens[0].size(), had) << "each step gives each answer its next token";
    had = answer->tokens[0].size();
  }
  // A short prompt, of the same client even, does not wait for the long one.
  auto shorter = w.ask_for(request(tokens(60, 3), 1));
  for (int i = 0; i < 3; ++i) w.step();
  EXPECT_EQ(shorter->ends, 1);
  EXPECT_EQ(longer->ends, 0);
  w.finish();
  w.verify();
}

TEST(Core, ClientsAreServedAlike) {
  Case w({.slots = 2, .max_drafts = 0});
  for (unsigned i = 0; i < 12; ++i) {
    Request r = request(tokens(200, i), 10);
    r.client = "many";
    w.ask(std::move(r));
  }
  for (int i = 0; i < 6; ++i) w.step();
  Request r = request(tokens(200, 99), 10);
  r.client = "one";
  auto one = w.ask_for(std::move(r));
  int finished_before = 0;
  while (one->ends == 0) w.step();
  for (const auto& a : w.asked) finished_before += a.told->ends;
  EXPECT_LE(finished_before, 5) << "whoever asks for little is not behind whoever asked for much";
  w.finish();
  w.verify();
}

TEST(Core, AHigherPriorityTakesThePlaceAndTheOtherGoesOn) {
  Case w({.slots = 1});
  Request low = request(tokens(100, 1), 50);
  low.priority = 5;
  auto first = w.ask_for(std::move(low));
  for (int i = 0; i < 10; ++i) w.step();
  Request high = request(tokens(100, 2), 5);
  high.priority = 1;
  auto second = w.ask_for(std::move(high));
  while (second->ends == 0) w.step();
  EXPECT_EQ(first->ends, 0);
  w.finish();
  EXPECT_EQ(first->outcome.preemptions, 1);
  EXPECT_EQ(w.core->stats().prompt_tokens, 200U) << "nothing was computed twice";
  EXPECT_EQ(w.runner.cleared_windows(), 0U);
  w.verify();
}

TEST(Core, TimeRunsOutWithAReason) {
  Case w({.slots = 1, .queue_timeout_ms = 50, .stall_timeout_ms = 100});
  Request running = request(tokens(50, 1), 1000);
  running.priority = 1;
  auto a = w.ask_for(std::move(running));
  w.step();
  Request behind = request(tokens(50, 2), 5);
  behind.priority = 2;
  auto b = w.ask_for(std::move(behind));
  for (int i = 0; i < 60; ++i) w.step();
  EXPECT_EQ(b->ends, 1);
  EXPECT_THAT(b->error.what, HasSubstr("not started within 50 ms: waiting for its turn"));
  Request dead = request(tokens(50, 3), 1000);
  dead.priority = 0;
  dead.deadline_ms = 20;
  auto c = w.ask_for(std::move(dead));
  for (int i = 0; i < 30; ++i) w.step();
  EXPECT_THAT(c->error.what, HasSubstr("20 ms that the request gave itself"));
  EXPECT_GT(c->tokens[0].size(), 0U);
  // The first one was preempted by that; now by one that does not end.
  Request hog = request(tokens(50, 4), 3000);
  hog.priority = 0;
  auto d = w.ask_for(std::move(hog));
  for (int i = 0; i < 150; ++i) w.step();
  EXPECT_EQ(a->ends, 1);
  EXPECT_THAT(a->error.what, HasSubstr("no progress for"));
  EXPECT_THAT(a->error.what, HasSubstr("requests of higher rank"));
  EXPECT_EQ(w.core->stats().expired, 3U);
  w.core->cancel(w.asked.back().id);
  EXPECT_EQ(d->error.code, Code::kCancelled);
}

TEST(Core, ChoicesShareTheirPrompt) {
  Case w({.slots = 8});
  Request r = request(tokens(300, 1), 12);
  r.n = 6;
  r.sampling.temperature = 1;
  r.sampling.seed = 3;
  auto told = w.run(std::move(r));
  EXPECT_EQ(told->outcome.prompt_tokens, 300);
  EXPECT_EQ(told->outcome.completion_tokens, 72);
  EXPECT_EQ(w.core->stats().prompt_tokens, 300U) << "run once";
  EXPECT_NE(told->tokens[0], told->tokens[1]);
  w.verify();
}

TEST(Core, IdenticalRequestsAtOnceAreOneComputation) {
  // field-faults.md 1: identical requests at once gave garbage.
  Case w({.slots = 8});
  for (int i = 0; i < 8; ++i) w.ask(request(tokens(500, 1), 20));
  w.finish();
  EXPECT_EQ(w.core->stats().prompt_tokens, 500U);
  w.verify();
}

TEST(Core, WhatIsSharedIsComputedOnce) {
  Case w;
  const Tokens shared = tokens(600, 1);
  const auto ask = [&](unsigned i, bool told_where) {
    Request r = request(shared + tokens(50, 100 + i));
    if (told_where) r.shared_ends = {600};
    return w.run(std::move(r))->outcome.cached_tokens;
  };
  EXPECT_EQ(ask(1, true), 0);
  EXPECT_EQ(ask(2, false), 600) << "the caller said where the shared part ends";
  w.core->cache().clear(false);
  EXPECT_EQ(ask(3, false), 0);
  EXPECT_GE(ask(4, false), 512) << "remembered in passing";
  EXPECT_GE(ask(5, false), 600) << "seen to be shared";
  w.verify();
}

TEST(Core, ASecondTurnGoesOnWhereTheFirstEnded) {
  // field-faults.md 3: the same prompt twice, a rewritten end, a session resumed after another.
  Case w;
  const Tokens question = tokens(250, 1);
  auto first = w.run(request(question, 40));
  EXPECT_EQ(w.run(request(question, 40))->outcome.cached_tokens, 250) << "the same again: nothing to run";
  EXPECT_EQ(w.asked.back().told->tokens, first->tokens);
  Tokens history = question;
  for (const auto& t : first->tokens[0]) history.push_back(t.id);
  EXPECT_GE(w.run(request(history + tokens(30, 2), 5))->outcome.cached_tokens, 289);
  Tokens rewritten = history;
  rewritten[270] = (rewritten[270] + 1) % 40;
  EXPECT_GE(w.run(request(rewritten + tokens(30, 3), 5))->outcome.cached_tokens, 250);
  w.verify();
}

TEST(Core, WhatACancelledRequestComputedIsKept) {
  // field-faults.md 3: a snapshot taken in the middle of a prompt.
  Case w({.prefill_beside_answers = 64});
  w.ask(request(tokens(1000, 1)));
  for (int i = 0; i < 5; ++i) w.step();
  w.asked[0].cancelled = true;
  w.core->cancel(w.asked[0].id);
  w.core->cancel(w.asked[0].id);
  w.core->cancel(12345);
  EXPECT_EQ(w.asked[0].told->error.code, Code::kCancelled);
  EXPECT_EQ(w.run(request(tokens(1000, 1)))->outcome.cached_tokens, 320);
  w.verify();
}

TEST(Core, AThousandRequestsLeaveNothingBehind) {
  // field-faults.md 4: memory lost with each request.
  Case w({.slots = 4}, 60);
  for (unsigned i = 0; i < 1000; ++i) {
    Request r = request(tokens(20 + i % 200, i % 37), 5);
    r.n = 1 + static_cast<std::int32_t>(i % 3);
    r.client = std::to_string(i);
    w.ask(std::move(r));
    if (i % 20 == 19) w.finish();
  }
  w.finish();
  w.verify();
  w.core->cache().clear(true);
  const auto s = w.core->stats();
  EXPECT_EQ(s.cache.pages_free, s.cache.pages);
  EXPECT_EQ(s.running + s.waiting, 0);
  EXPECT_EQ(s.finished, 1000U);
}

TEST(Core, EveryBatchSizeInTurn) {
  // field-faults.md 1: one to 128 at once, with guesses.
  FakeRunnerOptions r;
  r.step_tokens = 512;
  r.logit_rows = 512;
  Case w({.slots = 130, .max_waiting = 200, .max_drafts = 3, .fixed_drafts = true}, 600, r);
  for (unsigned n = 1; n <= 128; n += n < 20 ? 1 : 9) {
    for (unsigned i = 0; i < n; ++i) w.ask(request(tokens(3 + i % 9, n * 1000 + i), 6));
    w.finish();
  }
  w.verify();
}

TEST(Core, PromptsOfEveryLengthAndEveryChunk) {
  // field-faults.md 2: chunk sizes 1, 3, 4, 127, 128, 129; lengths 1 to 300.
  for (const std::int32_t step : {1, 3, 4, 127, 128, 129, 512}) {
    FakeRunnerOptions r;
    r.step_tokens = step;
    Case w({.slots = 3, .passing_first = 10'000, .passing_every = 10'000}, 400, r);
    for (std::size_t n = step == 1 ? 120 : 1; n <= 300; n += step == 1 ? 60 : 7)
      w.ask(request(tokens(n, static_cast<unsigned>(n)), 3));
    w.finish();
    w.verify();
    ASSERT_FALSE(::testing::Test::HasFailure()) << step;
  }
}

TEST(Core, GuessesAreVerifiedAtEveryPosition) {
  // Rollback at every position modulo 4 and 128, stop ids inside of bursts, several sequences at once.
  for (const std::int32_t right : {0, 50, 80, 100}) {
    FakeRunnerOptions r;
    r.percent_right = right;
    r.shape.rollback = 4;
    Case w({.slots = 6, .max_drafts = 4, .fixed_drafts = true}, 400, r);
    for (unsigned i = 0; i < 40; ++i) {
      Request q = request(tokens(1 + i * 7 % 131, i), 150);
      q.stop_ids = {static_cast<std::int32_t>(i % 40)};
      q.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
      q.speculate = i % 5 != 0;
      w.ask(std::move(q));
      if (i % 6 == 5) w.finish();
    }
    w.finish();
    const auto s = w.core->stats().speculation;
    EXPECT_GT(s.verified, 100U);
    if (right == 0) {
      EXPECT_LT(s.accepted * 5, s.verified);
    } else if (right == 100) {
      EXPECT_EQ(s.accepted, s.verified);
    }
    w.verify();
  }
}

TEST(Core, GuessesCostNoStepsWhenRight) {
  FakeRunnerOptions r;
  r.percent_right = 100;
  Case w({.slots = 1, .max_drafts = 3, .fixed_drafts = true}, 400, r);
  auto told = w.run(request(tokens(10, 1), 100));
  EXPECT_LE(w.runner.steps, 27U);
  EXPECT_EQ(told->outcome.drafted_tokens, told->outcome.accepted_tokens);
  Request no = request(tokens(11, 1), 100);
  no.speculate = false;
  const auto before = w.runner.steps;
  told = w.run(std::move(no));
  EXPECT_EQ(w.runner.steps - before, 100U);
  EXPECT_EQ(told->outcome.drafted_tokens, 0);
  w.verify();
}

TEST(Core, TheDraftBlockKnowsThePrompt) {
  // field-faults.md 4: a drafter that never saw the prompt. Also after a restart, a fork and a preemption; and where it
  // did not see it, because an earlier process did not guess, it begins with nothing, not with somebody else's bytes.
  std::string name = (std::filesystem::temp_directory_path() / "fathom-draft-XXXXXX").string();
  const std::string dir = ::mkdtemp(name.data());
  const Tokens prompt = tokens(300, 1);
  CoreOptions o{.slots = 4, .disk_directory = dir, .max_drafts = 2, .fixed_drafts = true};
  {
    Case w(o);
    Request r = request(prompt, 30);
    r.n = 3;
    w.run(std::move(r));
    EXPECT_EQ(w.runner.cleared_windows(), 0U);
  }
  {
    Case w(o);
    auto told = w.ask_for(request(prompt, 30));
    while (told->ends == 0) w.step();
    EXPECT_EQ(told->outcome.cached_tokens, 300);
    EXPECT_EQ(w.runner.cleared_windows(), 0U);
    w.core->cache().clear(true);
  }
  o.max_drafts = 0;
  {
    Case w(o);
    w.run(request(prompt, 30));
  }
  o.max_drafts = 2;
  {
    Case w(o);
    auto told = w.ask_for(request(prompt, 30));
    while (told->ends == 0) w.step();
    EXPECT_EQ(told->outcome.cached_tokens, 300);
    EXPECT_GT(w.runner.cleared_windows(), 0U);
    w.verify();
  }
  std::filesystem::remove_all(dir);
}

TEST(Core, OptionsThatCannotBeAreRefused) {
  FakeRunner runner;
  const auto refused = [&](CoreOptions o) {
    o.clock_us = [] { return std::int64_t{0}; };
    const auto c = engine::Core::create(runner, std::move(o));
    return !c.has_value() && c.error().code == Code::kInvalid;
  };
  EXPECT_TRUE(refused({.cache_bytes = 1000}));
  EXPECT_TRUE(refused({.slots = 0}));
  EXPECT_TRUE(refused({.max_drafts = 5})) << "more than can be taken back";
  EXPECT_TRUE(refused({.max_waiting = 0}));
}

}  // namespace
}  // namespace fathom::testing
