// Speculative decoding end to end: the same text with guesses and without, from the trained model and from the micro
// model; tokens taken back at every position modulo 4 and 128; and, over a model without arithmetic, that what comes
// out is distributed as plain sampling.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "base/thread_pool.h"
#include "checkpoint/synthetic.h"
#include "support/engine_world.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

using engine::CoreOptions;
using engine::Request;

// A model's runner that notes where sequences were taken back to.
class WatchedRunner final : public engine::Runner {
 public:
  explicit WatchedRunner(engine::Runner& inner) : inner_(inner) {}
  const engine::RunnerFacts& facts() const override { return inner_.facts(); }
  const model::CacheLayout& layout() const override { return inner_.layout(); }
  cache::Memory& memory() override { return inner_.memory(); }
  Result<engine::LogitRows> forward(std::span<const model::Chunk> chunks, engine::Rules rules) override {
    for (const model::Chunk& c : chunks) {
      auto& end = ends_[c.slot];
      // Further back than guesses go: another sequence has the slot.
      if (c.start < end && c.start >= end - engine::kMaxDrafts) taken_back.insert(c.start);
      end = c.start + c.tokens();
    }
    return inner_.forward(chunks, rules);
  }
  Result<engine::LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> streams,
                                  engine::Rules rules) override {
    return inner_.draft(chunks, streams, rules);
  }
  Result<engine::LogitRows> logits_of(Mat<const float> streams, engine::Rules rules) override {
    return inner_.logits_of(streams, rules);
  }
  Result<> draft_block(std::span<const model::Chunk> anchors) override { return inner_.draft_block(anchors); }
  Result<engine::LogitRows> block_logits(std::int32_t i, std::span<const std::int32_t> previous,
                                         engine::Rules rules) override {
    return inner_.block_logits(i, previous, rules);
  }
  std::span<const float> block_confidence() const override { return inner_.block_confidence(); }
  Mat<const float> streams() const override { return inner_.streams(); }
  Mat<const float> draft_streams() const override { return inner_.draft_streams(); }

  std::set<std::int32_t> taken_back;

 private:
  engine::Runner& inner_;
  std::map<const std::byte*, std::int32_t> ends_;
};

struct ModelOnCpu {
  ModelOnCpu(const std::string& name, std::int32_t rollback)
      : session(name, "cpu", {.max_step_tokens = 256, .max_logit_rows = 256, .rollback = rollback}),
        inner(*session.model, name),
        runner(inner) {}
  Session session;
  engine::ModelRunner inner;
  WatchedRunner runner;
};

// What requests are told by an engine of their own.
struct Answers {
  std::vector<std::vector<engine::Sampled>> tokens;
  engine::CoreStats stats;
  std::int32_t drafted = 0;
  std::vector<std::int32_t> accepted;
};
Answers answers(engine::Runner& runner, const CoreOptions& options, const std::vector<Tokens>& prompts,
                const std::function<void(std::size_t, Request&)>& shape) {
  CoreOptions o = options;
  std::int64_t clock = 0;
  o.clock_us = [&clock] { return clock += 50; };
  o.cache_bytes = std::size_t{64} << 20U;
  o.max_waiting = static_cast<std::int32_t>(prompts.size());
  auto core = engine::Core::create(runner, o);
  EXPECT_TRUE(core.has_value()) << core.error().what;
  std::vector<std::shared_ptr<Told>> told;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request r;
    r.prompt = prompts[i];
    r.sampling.seed = i;
    shape(i, r);
    told.push_back(std::make_shared<Told>());
    r.sink = std::make_unique<Recorder>(told.back(), StopsAt{});
    EXPECT_TRUE((*core)->submit(i, std::move(r)).has_value());
  }
  while ((*core)->requests() > 0) (*core)->step();
  Answers a;
  a.stats = (*core)->stats();
  for (const auto& t : told) {
    EXPECT_TRUE(t->ok) << t->error.what;
    a.tokens.push_back(t->tokens[0]);
    a.drafted += t->outcome.drafted_tokens;
    a.accepted.push_back(t->outcome.accepted_tokens);
  }
  return a;
}

// The trained model on text of its own making.
TEST(Guesses, TheTrainedModelSaysTheSameWithThemAndWithoutAndMostAreRight) {
  ModelOnCpu tiny("fathom-tiny", 3);
  const CoreOptions plain{.slots = 4, .max_drafts = 0};
  const CoreOptions guessing{.slots = 4, .max_drafts = 3, .fixed_drafts = true};
  const std::vector<Tokens> begins(4, Tokens{0});
  const auto sampled = [](std::size_t, Request& r) {
    r.max_tokens = 64;
    r.sampling.temperature = 0.8F;
  };
  std::vector<Tokens> texts;
  for (const auto& t : answers(tiny.runner, plain, begins, sampled).tokens) {
    texts.emplace_back(1, 0);
    for (const auto& s : t) texts.back().push_back(s.id);
  }
  for (const float temperature : {0.0F, 0.8F}) {
    const auto shape = [temperature](std::size_t, Request& r) {
      r.max_tokens = 60;
      r.sampling.temperature = temperature;
      r.sampling.logprobs = true;
      r.sampling.top_logprobs = 2;
    };
    const Answers without = answers(tiny.runner, plain, texts, shape);
    const Answers with = answers(tiny.runner, guessing, texts, shape);
    EXPECT_EQ(with.tokens, without.tokens) << "temperature " << temperature;
    EXPECT_LT(with.stats.steps, without.stats.steps);
    const auto& s = with.stats.speculation;
    std::printf("temperature %g: guess 1: %lu of %lu right, 2: %lu of %lu, 3: %lu of %lu; %lu steps instead of %lu\n",
                static_cast<double>(temperature), s.accepted_at[0], s.verified_at[0], s.accepted_at[1],
                s.verified_at[1], s.accepted_at[2], s.verified_at[2], with.stats.steps, without.stats.steps);
    // Trained to guess the next one: more than a third of the first guesses, where chance is 1 in 3712.
    EXPECT_GT(s.accepted_at[0] * 3, s.verified_at[0]);
    EXPECT_EQ(s.accepted_at[0] + s.accepted_at[1] + s.accepted_at[2], s.accepted);
  }
}

TEST(Guesses, ARequestMayOptOut) {
  ModelOnCpu tiny("fathom-tiny", 2);
  const CoreOptions guessing{.slots = 2, .max_drafts = 2, .fixed_drafts = true};
  const Answers a = answers(tiny.runner, guessing, {{0}, {0}}, [](std::size_t, Request& r) {
    r.max_tokens = 20;
    r.speculate = false;
  });
  EXPECT_EQ(a.drafted, 0);
  EXPECT_EQ(a.stats.speculation.verified, 0U);
  EXPECT_TRUE(tiny.runner.taken_back.empty());
}

TEST(Guesses, AreTakenBackAtEveryPositionModulo4And128) {
  ModelOnCpu micro("micro-random", 4);
  std::mt19937 rng(3);
  std::vector<Tokens> prompts;
  Tokens text(140);
  for (auto& id : text) id = static_cast<std::int32_t>(rng() % 128);
  for (std::ptrdiff_t n = 1; n <= 140; ++n) prompts.insert(prompts.end(), 2, Tokens(text.begin(), text.begin() + n));
  const auto shape = [](std::size_t i, Request& r) {
    r.max_tokens = 8;
    r.sampling.temperature = 1;
    // Among three tokens, guesses of random weights are right often enough to be wrong at every depth.
    r.sampling.logit_bias = {{1, 40.0F}, {70, 40.0F}, {static_cast<std::int32_t>(2 + i % 60), 40.0F}};
  };
  const Answers with = answers(micro.runner, {.slots = 5, .max_drafts = 4, .fixed_drafts = true}, prompts, shape);
  const auto back = micro.runner.taken_back;
  const Answers without = answers(micro.runner, {.slots = 1, .max_drafts = 0}, prompts, shape);
  ASSERT_EQ(with.tokens, without.tokens);
  std::set<std::int32_t> modulo;
  for (const std::int32_t p : back) modulo.insert(p % 128);
  for (std::int32_t m = 0; m < 128; ++m) EXPECT_TRUE(modulo.contains(m)) << m;
  EXPECT_GT(with.stats.speculation.accepted_at[1], 0U);
}

// A checkpoint with DSpark stages, of made-up weights: blocks of guesses change no answer, and a restored sequence
// guesses what one that never stopped does.
TEST(Guesses, DsparkBlocksChangeNoAnswerAndAreRestoredWithIt) {
  ThreadPool pool(2);
  auto checkpoint = checkpoint::synthesize(small_dspark(), pool);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().what;
  const auto backend = make_backend("cpu");
  auto model = model::Model::load(*checkpoint, *backend, {.max_step_tokens = 64, .max_logit_rows = 64, .rollback = 4});
  ASSERT_TRUE(model.has_value()) << model.error().what;
  engine::ModelRunner runner(**model, "dspark");
  ASSERT_GE(runner.facts().block_drafts, 4);
  ASSERT_FALSE(runner.facts().drafts);
  std::vector<Tokens> prompts;
  for (std::int32_t n : {1, 3, 20, 127, 128, 150, 20, 150}) {  // the last two are there already
    Tokens t;
    for (std::int32_t i = 0; i < n; ++i) t.push_back((i * 37 + n) % 150);
    prompts.push_back(t);
  }
  const auto shape = [](std::size_t, Request& r) {
    r.max_tokens = 24;
    r.sampling.seed = r.prompt.size();
    r.sampling.temperature = 1;
    r.sampling.logit_bias = {{1, 40.0F}, {70, 40.0F}, {100, 40.0F}};
    r.sampling.logprobs = true;
  };
  const Answers without = answers(runner, {.slots = 1, .max_drafts = 0}, prompts, shape);
  const Answers with = answers(runner, {.slots = 1, .max_drafts = 4, .fixed_drafts = true}, prompts, shape);
  const Answers together = answers(runner, {.slots = 8, .max_drafts = 4, .fixed_drafts = true}, prompts, shape);
  EXPECT_EQ(with.tokens, without.tokens);
  EXPECT_EQ(together.tokens, without.tokens);
  EXPECT_EQ(with.stats.speculation.withheld, 0U) << "a fixed depth is fixed";
  // By its own policy, which counts what guesses cost and looks at how sure the stages are.
  const Answers adaptive = answers(runner, {.slots = 8, .max_drafts = 4}, prompts, shape);
  EXPECT_EQ(adaptive.tokens, without.tokens);
  EXPECT_LT(with.stats.steps, without.stats.steps);
  EXPECT_GT(with.stats.speculation.verified_at[3], 5U);
  EXPECT_GT(with.stats.speculation.accepted_at[1], 0U);
  EXPECT_GT(with.stats.reused_tokens, 0U);
  for (const auto& [first, again] : {std::pair{2U, 6U}, std::pair{5U, 7U}})
    EXPECT_EQ(with.accepted[first], with.accepted[again]) << "prompt " << again;
}

// What is chosen with guesses is distributed as the model's own probabilities say, token after token: pairs of second
// and third tokens, both after guesses that are right half of the time, against their exact probabilities.
class GuessesAndChance : public ::testing::TestWithParam<bool> {};

TEST_P(GuessesAndChance, AnswersAreDistributedAsTheModelSays) {
  constexpr int kSamples = 12'000;
  constexpr std::int32_t kIds = 5;  // vocabulary
  FakeRunnerOptions o;
  o.vocab = kIds;
  o.percent_right = 40;
  o.step_tokens = 256;
  o.logit_rows = 256;
  FakeRunner runner(o);
  const Tokens prompt = {1, 2, 3, 4, 0, 1};

  const auto shares = [&](const Tokens& tokens) {
    std::vector<float> row(kIds);
    runner.logits(FakeModel::hash(tokens), row);
    std::vector<double> p;
    double sum = 0;
    for (const float x : row) sum += p.emplace_back(std::exp(static_cast<double>(x)));
    for (double& x : p) x /= sum;
    return p;
  };
  std::vector<double> expected_share;  // of triples
  const auto first = shares(prompt);
  for (std::int32_t a = 0; a < kIds; ++a) {
    Tokens at = prompt;
    at.push_back(a);
    const auto second = shares(at);
    for (std::int32_t b = 0; b < kIds; ++b) {
      at.push_back(b);
      const auto third = shares(at);
      for (std::int32_t c = 0; c < kIds; ++c)
        expected_share.push_back(first[static_cast<std::size_t>(a)] * second[static_cast<std::size_t>(b)] *
                                 third[static_cast<std::size_t>(c)]);
      at.pop_back();
    }
  }

  std::vector<int> seen(expected_share.size(), 0);
  engine::SpeculationStats guesses;
  for (int done = 0; done < kSamples; done += 500) {
    const std::vector<Tokens> prompts(500, prompt);
    const bool guess = GetParam();
    const Answers a = answers(runner, {.slots = 64, .max_drafts = guess ? 3 : 0, .fixed_drafts = true}, prompts,
                              [done](std::size_t i, Request& r) {
                                r.max_tokens = 5;  // beyond the third, so that it is guessed too
                                r.sampling.seed = static_cast<std::uint64_t>(done) + i;
                              });
    for (const auto& t : a.tokens) ++seen[static_cast<std::size_t>((t[0].id * kIds + t[1].id) * kIds + t[2].id)];
    guesses.verified += a.stats.speculation.verified;
    guesses.accepted += a.stats.speculation.accepted;
  }
  EXPECT_EQ(runner.error(), "");
  if (GetParam()) {
    EXPECT_GT(guesses.accepted * 4, guesses.verified);
    EXPECT_LT(guesses.accepted * 4, guesses.verified * 3);
  }

  // Cells of few expected samples are one.
  double chi = 0;
  int cells = 0;
  double rare_expected = 0;
  double rare_seen = 0;
  const auto add = [&](double want, double got) {
    chi += (got - want) * (got - want) / want;
    ++cells;
  };
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double want = expected_share[i] * kSamples;
    if (want >= 10) {
      add(want, seen[i]);
    } else {
      rare_expected += want;
      rare_seen += seen[i];
    }
  }
  if (rare_expected > 5) add(rare_expected, rare_seen);
  // The value exceeded once in a million, by Wilson and Hilferty.
  const double k = cells - 1;
  const double limit = k * std::pow(1 - 2 / (9 * k) + 4.75 * std::sqrt(2 / (9 * k)), 3);
  std::printf("chi squared %.1f over %d cells, expected %.0f, limit %.1f; %lu of %lu guesses right\n", chi, cells, k,
              limit, guesses.accepted, guesses.verified);
  EXPECT_LT(chi, limit);
}

INSTANTIATE_TEST_SUITE_P(Sampling, GuessesAndChance, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "WithGuesses" : "WithoutGuesses"; });

}  // namespace
}  // namespace fathom::testing
