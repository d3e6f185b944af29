// A Core, a clock that the test moves, and a record of what requests were told and must be told: EngineWorld over any
// runner, FakeWorld over a model without arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "engine/core.h"
#include "support/fake_runner.h"

namespace fathom::testing {

using Tokens = std::vector<std::int32_t>;

// What a request was told.
struct Told {
  std::map<std::int32_t, std::vector<engine::Sampled>> tokens;
  std::map<std::int32_t, engine::Finish> finishes;
  std::vector<engine::Sampled> scores;  // of the prompt, from its second token on
  int ends = 0;
  bool ok = false;
  Error error;
  engine::Outcome outcome;
};

class Recorder final : public engine::Sink {
 public:
  Recorder(std::shared_ptr<Told> told, std::function<bool(std::int32_t)> stop)
      : told_(std::move(told)), stop_(std::move(stop)) {}
  engine::Verdict token(std::int32_t choice, const engine::Sampled& token) override {
    EXPECT_EQ(told_->ends, 0) << "a token after the end";
    EXPECT_FALSE(told_->finishes.contains(choice)) << "a token after the choice's end";
    told_->tokens[choice].push_back(token);
    return stop_ && stop_(token.id) ? engine::Verdict::kStop : engine::Verdict::kGoOn;
  }
  void choice_done(std::int32_t choice, engine::Finish why) override { told_->finishes[choice] = why; }
  void prompt_scores(std::span<const engine::Sampled> tokens) override {
    for (const auto& [choice, answer] : told_->tokens) EXPECT_TRUE(answer.empty()) << "scores after the answer";
    EXPECT_TRUE(told_->finishes.empty() && told_->ends == 0) << "scores after the end";
    told_->scores.insert(told_->scores.end(), tokens.begin(), tokens.end());
  }
  void done(Result<engine::Outcome> outcome) override {
    ++told_->ends;
    told_->ok = outcome.has_value();
    if (outcome) {
      told_->outcome = *outcome;
    } else {
      told_->error = outcome.error();
    }
  }

 private:
  std::shared_ptr<Told> told_;  // read by the test after the engine has destroyed the sink
  std::function<bool(std::int32_t)> stop_;
};

// Allows ids whose parity is that of the number of tokens chosen so far.
class Parity final : public engine::Constraint {
 public:
  explicit Parity(std::int32_t vocab) : mask_((static_cast<std::size_t>(vocab) + 63) / 64) {}
  Result<std::span<const std::uint64_t>> allowed() override {
    std::fill(mask_.begin(), mask_.end(), n_ % 2 == 0 ? 0x5555555555555555ULL : 0xaaaaaaaaaaaaaaaaULL);
    return std::span<const std::uint64_t>(mask_);
  }
  void accept(std::int32_t id) override {
    EXPECT_EQ(id % 2, n_ % 2);
    ++n_;
  }
  void take_back(std::int32_t n) override {
    n_ -= n;
    EXPECT_GE(n_, 0);
  }
  bool ended() const override { return false; }
  std::unique_ptr<engine::Constraint> fresh() const override { return std::make_unique<Parity>(*this); }
  Parity(const Parity& other) : mask_(other.mask_) {}

 private:
  std::vector<std::uint64_t> mask_;
  int n_ = 0;
};

struct AskedFor {
  std::shared_ptr<Told> told = std::make_shared<Told>();
  std::vector<Expected> expected;
  std::vector<engine::Sampled> scores;  // that it must be told
  engine::RequestId id = 0;
  Tokens prompt;
  bool cancelled = false;
};

struct EngineWorld {
  // runner outlives the world.
  EngineWorld(engine::Runner& model, engine::CoreOptions core_options, unsigned seed)
      : engine_runner(&model), options(std::move(core_options)), rng(seed), vocab(model.facts().vocab) {
    options.clock_us = [this] { return clock; };
    options.notify = [this] {
      const std::lock_guard lock(news_mutex);
      news = true;
      news_came.notify_one();
    };
    while (texts.size() < 5) {
      Tokens t = texts.empty() ? Tokens{} : texts[rng() % texts.size()];
      t.resize(t.empty() ? 0 : rng() % t.size());
      while (t.size() < 500) t.push_back(some_id());
      texts.push_back(t);
    }
  }
  virtual ~EngineWorld() = default;

  // What a choice of a request must get, and what the model found wrong.
  virtual Expected expect(const engine::Request& r, std::int32_t choice, const StopsAt& stop) = 0;
  // And what it must be told of its prompt.
  virtual std::vector<engine::Sampled> scores(const engine::Request& r) = 0;
  virtual std::string complaint() const { return {}; }

  // Memory for so many pages besides the slots.
  void give_memory(std::int32_t pages) {
    const model::CacheLayout& layout = engine_runner->layout();
    const std::size_t extra = static_cast<std::size_t>(engine_runner->facts().stream_width) * sizeof(float);
    options.cache_bytes = static_cast<std::size_t>(options.slots) * (layout.slot_bytes + (extra + 63) / 64 * 64) +
                          static_cast<std::size_t>(pages) * std::max<std::size_t>(layout.page_bytes, 64);
  }
  void start() {
    core.reset();
    auto c = engine::Core::create(*engine_runner, options);
    ASSERT_TRUE(c.has_value()) << c.error().what;
    core = std::move(c).value();
  }
  std::int32_t position_limit() const {
    return std::min(engine_runner->facts().max_positions, core->cache().pages() * 128 - options.max_drafts - 1);
  }
  std::int32_t some_id() { return static_cast<std::int32_t>(rng() % static_cast<unsigned>(vocab)); }

  // The beginning of a text, or what an earlier request asked and was told, to the end or nearly, and a little more.
  Tokens random_prompt() {
    if (asked.empty() || rng() % 3 != 0) {
      Tokens t = texts[rng() % texts.size()];
      t.resize(1 + rng() % (rng() % 3 == 0 ? 30 : t.size()));
      return t;
    }
    const AskedFor& before = asked[rng() % asked.size()];
    Tokens t = before.prompt;
    for (const auto& token : before.told->tokens[0]) t.push_back(token.id);
    // All but the last token is what is remembered: nothing is left to run.
    const bool exactly = rng() % 2 == 0;
    t.resize(t.size() - std::min<std::size_t>(exactly ? 1 : rng() % 4, t.size() - 1));
    if (exactly) return t;
    for (unsigned more = rng() % 3; more > 0; --more) t.push_back(some_id());
    return t;
  }

  engine::Request random_request() {
    engine::Request r;
    r.prompt = random_prompt();
    r.max_tokens = static_cast<std::int32_t>(1 + rng() % (rng() % 8 == 0 ? 200 : 20));
    r.n = rng() % 6 == 0 ? static_cast<std::int32_t>(1 + rng() % 4) : 1;
    r.priority = static_cast<std::int32_t>(rng() % 3);
    r.client = std::string(1, static_cast<char>('a' + rng() % 3));
    r.salt = rng() % 8 == 0 ? "other" : "";
    r.speculate = rng() % 4 != 0;
    if (rng() % 2 == 0) r.stop_ids = {some_id()};
    while (static_cast<std::int32_t>(r.stop_ids.size()) * 40 < vocab && !r.stop_ids.empty())
      r.stop_ids.push_back(some_id());
    if (rng() % 4 == 0) r.min_tokens = static_cast<std::int32_t>(rng() % 10);
    if (rng() % 4 == 0) r.shared_ends = {static_cast<std::int32_t>(rng() % 300)};
    r.score_prompt = rng() % 8 == 0;
    r.prompt_only = rng() % 16 == 0;
    if (rng() % 6 == 0) r.constraint = std::make_unique<Parity>(vocab);
    engine::SamplingParams& s = r.sampling;
    s.temperature = std::array{0.0F, 0.7F, 1.5F}[rng() % 3];
    s.seed = rng();
    if (rng() % 3 == 0) s.top_k = 5;
    if (rng() % 3 == 0) s.top_p = 0.9F;
    if (rng() % 4 == 0) s.repetition_penalty = 1.2F;
    if (rng() % 4 == 0) s.frequency_penalty = 0.3F;
    if (rng() % 3 == 0) {
      s.logprobs = true;
      s.top_logprobs = static_cast<std::int32_t>(rng() % 4);
    }
    return r;
  }

  void ask(engine::Request r) {
    AskedFor a;
    StopsAt stop;
    if (rng() % 6 == 0) stop = [](std::int32_t id) { return id % 40 == 7; };
    r.sink = std::make_unique<Recorder>(a.told, stop);
    a.prompt = r.prompt;
    if (const auto valid = core->validate(r); !valid) {
      EXPECT_EQ(valid.error().code, Code::kExhausted) << valid.error().what;
      return;
    }
    for (std::int32_t c = 0; c < r.n; ++c) a.expected.push_back(expect(r, c, stop));
    if (r.score_prompt) a.scores = scores(r);
    a.id = next_id++;
    if (const auto accepted = core->submit(a.id, std::move(r)); !accepted) {
      EXPECT_EQ(accepted.error().code, Code::kExhausted);
      return;
    }
    asked.push_back(std::move(a));
  }

  // False where there is nothing to do until the disk has news.
  bool step() {
    clock += 1000;
    {
      const std::lock_guard lock(news_mutex);
      news = false;
    }
    const bool did = core->step();
    check();
    return did;
  }
  void check() {
    const auto ok = core->check();
    ASSERT_TRUE(ok.has_value()) << ok.error().what;
    ASSERT_EQ(complaint(), "");
  }

  // Until all is answered. The disk is waited for however busy the machine is: it works in a thread of its own, and
  // steps that do nothing meanwhile say nothing.
  void finish() {
    for (int i = 0; core->requests() > 0; ++i) {
      ASSERT_LT(i, 200'000) << "requests that are never answered";
      ++events;
      const bool did = step();
      if (::testing::Test::HasFatalFailure()) return;
      if (did || core->requests() == 0) continue;
      std::unique_lock lock(news_mutex);
      ASSERT_TRUE(news_came.wait_for(lock, std::chrono::minutes(2), [this] { return news; }))
          << "requests that wait, and not for the disk";
    }
  }

  // Everything that was told is what must be told.
  void verify() {
    for (const AskedFor& a : asked) {
      ASSERT_EQ(a.told->ends, 1) << "request " << a.id;
      const bool fails = std::any_of(a.expected.begin(), a.expected.end(), [](const Expected& e) { return e.fails; });
      if (a.told->ok) {
        EXPECT_FALSE(fails);
        const auto prompt = static_cast<std::int32_t>(a.prompt.size());
        EXPECT_EQ(a.told->outcome.prompt_tokens, prompt);
        EXPECT_LE(a.told->outcome.cached_tokens, prompt);
        EXPECT_LE(a.told->outcome.accepted_tokens, a.told->outcome.drafted_tokens);
        std::size_t completion = 0;
        for (const auto& [c, tokens] : a.told->tokens) completion += tokens.size();
        EXPECT_EQ(static_cast<std::size_t>(a.told->outcome.completion_tokens), completion);
      } else if (!a.cancelled) {
        EXPECT_TRUE(fails) << a.told->error.what;
      }
      ASSERT_LE(a.told->scores.size(), a.scores.size()) << "request " << a.id;
      for (std::size_t i = 0; i < a.told->scores.size(); ++i)
        ASSERT_EQ(a.told->scores[i], a.scores[i]) << "request " << a.id << " token " << i + 1 << " of the prompt";
      if (a.told->ok) {
        ASSERT_EQ(a.told->scores.size(), a.scores.size()) << "request " << a.id;
      }
      for (std::size_t c = 0; c < a.expected.size(); ++c) {
        const auto& got = a.told->tokens[static_cast<std::int32_t>(c)];
        const auto& want = a.expected[c].tokens;
        ASSERT_LE(got.size(), want.size()) << "request " << a.id;
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(got[i], want[i]) << "request " << a.id << " choice " << c << " token " << i;
        if (!a.told->ok) continue;
        ASSERT_EQ(got.size(), want.size()) << "request " << a.id << " choice " << c;
        EXPECT_EQ(a.told->finishes.at(static_cast<std::int32_t>(c)), a.expected[c].finish);
      }
    }
    asked.clear();
  }

  engine::Runner* engine_runner;
  engine::CoreOptions options;
  std::mt19937 rng;
  std::int32_t vocab;
  std::int64_t clock = 1'000'000;
  std::mutex news_mutex;
  std::condition_variable news_came;
  bool news = false;  // from the disk; guarded
  std::unique_ptr<engine::Core> core;
  std::vector<Tokens> texts;
  std::vector<AskedFor> asked;
  engine::RequestId next_id = 1;
  std::uint64_t events = 0;  // of a life: arrivals, cancellations, steps, ...; all is checked after each step
};

struct FakeWorldRunner {
  FakeRunner runner;
};
struct FakeWorld : FakeWorldRunner, EngineWorld {
  FakeWorld(const FakeRunnerOptions& runner_options, engine::CoreOptions core_options, std::int32_t pages,
            unsigned seed)
      : FakeWorldRunner{FakeRunner(runner_options)}, EngineWorld(runner, std::move(core_options), seed) {
    give_memory(pages);
    start();
  }
  Expected expect(const engine::Request& r, std::int32_t choice, const StopsAt& stop) override {
    return expected(runner, r, choice, position_limit(), stop);
  }
  std::vector<engine::Sampled> scores(const engine::Request& r) override { return expected_scores(runner, r); }
  std::string complaint() const override { return runner.error(); }
};

}  // namespace fathom::testing
