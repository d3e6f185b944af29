// Random lives of the engine over a real model, tests/data's two of random weights: arrivals, cancellations, priorities
// and preemption, forks, evictions, guesses, a disk whose files may be damaged, and restarts with other limits and
// other numbers of threads. Every request must get, to the bit, what it gets alone: tokens, log-probabilities, reason
// to end.
//
// Alone is told twice: by the model and the sampler without any engine, and, once a life, by a fresh engine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "support/engine_world.h"
#include "support/golden.h"

namespace fathom::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kStepTokens = 300;  // of the models; each life has fewer

int scale() {
  const char* s = std::getenv("FATHOM_PROPERTY_SCALE");
  return s != nullptr ? std::max(1, std::atoi(s)) : 1;
}

// A runner with less room in a step.
class NarrowRunner final : public engine::Runner {
 public:
  NarrowRunner(engine::Runner& wide, std::int32_t step_tokens, std::int32_t logit_rows) : wide_(wide) {
    facts_ = wide.facts();
    facts_.step_tokens = step_tokens;
    facts_.logit_rows = logit_rows;
  }
  const engine::RunnerFacts& facts() const override { return facts_; }
  const model::CacheLayout& layout() const override { return wide_.layout(); }
  cache::Memory& memory() override { return wide_.memory(); }
  Result<engine::LogitRows> forward(std::span<const model::Chunk> chunks, engine::Rules rules) override {
    return wide_.forward(chunks, rules);
  }
  Result<engine::LogitRows> draft(std::span<const model::Chunk> chunks, Mat<const float> streams,
                                  engine::Rules rules) override {
    return wide_.draft(chunks, streams, rules);
  }
  Result<engine::LogitRows> logits_of(Mat<const float> streams, engine::Rules rules) override {
    return wide_.logits_of(streams, rules);
  }
  Mat<const float> streams() const override { return wide_.streams(); }
  Mat<const float> draft_streams() const override { return wide_.draft_streams(); }

 private:
  engine::Runner& wide_;
  engine::RunnerFacts facts_;
};

struct Loaded {
  Loaded(const std::string& name, const std::string& backend, ops::Numerics numerics, std::int32_t rollback,
         int threads)
      : session(
            name, backend,
            {.numerics = numerics, .max_step_tokens = kStepTokens, .max_logit_rows = kStepTokens, .rollback = rollback},
            threads),
        runner(*session.model, name) {}
  Session session;
  engine::ModelRunner runner;
};

// One model as two programs would load it: what differs must change no answer. A third one, alone, is the oracle.
struct Family {
  Family(const std::string& name, const std::string& backend, ops::Numerics numerics)
      : few(name, backend, numerics, 1, 1),
        many(name, backend, numerics, 4, 2),
        oracle(name, backend, numerics, 0, 1) {}
  Loaded few;
  Loaded many;
  Loaded oracle;
};

class ModelWorld final : public EngineWorld {
 public:
  ModelWorld(Family& family, fs::path disk, unsigned seed)
      : EngineWorld(family.many.runner, {}, seed), family_(family), disk_(std::move(disk)) {
    restart();
  }

  // A new engine on the same folder, with other limits.
  void restart() {
    core.reset();
    Loaded& program = rng() % 2 == 0 ? family_.few : family_.many;
    const std::int32_t rollback = &program == &family_.few ? 1 : 4;
    narrow_.emplace(program.runner, std::array{1, 9, 64, kStepTokens}[rng() % 4], std::array{1, 6, 64}[rng() % 3]);
    engine_runner = &*narrow_;
    options.slots = std::array{1, 2, 6}[rng() % 3];
    options.max_waiting = 30;
    options.prefill_beside_answers = std::array{1, 8, 64}[rng() % 3];
    options.passing_first = std::array{16, 100, 256}[rng() % 3];
    options.passing_every = std::array{128, 200, 1024}[rng() % 3];
    options.max_drafts = std::min(rollback, static_cast<std::int32_t>(rng() % 5));
    options.fixed_drafts = rng() % 4 != 0;
    options.disk_directory = disk_.string();
    options.disk_bytes = std::array<std::size_t, 2>{1U << 20U, 64U << 20U}[rng() % 2];
    give_memory(static_cast<std::int32_t>(std::array{7U, 14U, 40U}[rng() % 3] + static_cast<unsigned>(options.slots)));
    start();
  }

  engine::Request ask_something() {
    engine::Request r = random_request();
    // The model costs something: most prompts are short, some cross borders of 128.
    const std::size_t most = rng() % 4 == 0 ? 300 : 60;
    if (r.prompt.size() > most) r.prompt.resize(most);
    r.max_tokens = std::min(r.max_tokens, 24);
    // Random weights guess at random; among three tokens they are often right.
    if (rng() % 2 == 0) {
      const std::int32_t id = some_id();
      for (const std::int32_t more : {0, 11, 29}) r.sampling.logit_bias.push_back({(id + more) % vocab, 40.0F});
      // One of them ends the answer: it comes inside bursts of guesses, and where a guess was wrong.
      if (rng() % 2 == 0) {
        r.stop_ids = {id};
        r.min_tokens = static_cast<std::int32_t>(rng() % 12);
      }
    }
    return r;
  }

  Expected expect(const engine::Request& r, std::int32_t choice, const StopsAt& stop) override {
    Session& s = family_.oracle.session;
    s.restart();
    std::vector<float> row;
    const auto run = [&](std::span<const std::int32_t> next) -> std::span<const float> {
      row = s.run(next, model::Rows::kLast);
      return row;
    };
    return expected(run, r, choice, position_limit(), stop);
  }

  std::vector<engine::Sampled> scores(const engine::Request& r) override {
    Session& s = family_.oracle.session;
    s.restart();
    std::vector<float> row;
    const auto run = [&](std::span<const std::int32_t> next) -> std::span<const float> {
      row = s.run(next, model::Rows::kLast);
      return row;
    };
    return expected_scores(run, r);
  }

  // The same choice from an engine that has seen nothing else.
  std::vector<engine::Sampled> from_fresh_engine(engine::Request r) {
    engine::CoreOptions o;
    o.slots = r.n;
    o.cache_bytes = std::size_t{8} << 20U;
    o.max_drafts = 0;
    o.clock_us = [this] { return clock; };
    auto fresh = engine::Core::create(family_.oracle.runner, o);
    EXPECT_TRUE(fresh.has_value());
    const auto told = std::make_shared<Told>();
    r.sink = std::make_unique<Recorder>(told, StopsAt{});
    EXPECT_TRUE((*fresh)->submit(1, std::move(r)).has_value());
    while ((*fresh)->step()) {
    }
    EXPECT_TRUE(told->ok);
    return told->tokens[0];
  }

  // One byte of one file is not what it was.
  void damage() {
    std::vector<fs::path> files;
    for (const auto& e : fs::directory_iterator(disk_)) {
      if (e.is_regular_file() && e.file_size() > 0) files.push_back(e.path());
    }
    if (files.empty()) return;
    std::sort(files.begin(), files.end());
    const fs::path& path = files[rng() % files.size()];
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(rng() % fs::file_size(path));
    f.seekg(at);
    const int byte = f.get();
    f.seekp(at);
    f.put(static_cast<char>(byte ^ 0x10));
    ++damaged;
  }

  void live(int turns) {
    for (int e = 0; e < turns; ++e) {
      const unsigned what = rng() % 100;
      if (what < 18) {
        ask(ask_something());
      } else if (what < 22 && !asked.empty()) {
        AskedFor& a = asked[rng() % asked.size()];
        if (a.told->ends == 0) a.cancelled = true;
        core->cancel(a.id);
        ++cancelled;
      } else if (what == 22 && rng() % 3 == 0) {
        for (AskedFor& a : asked) a.cancelled = a.cancelled || a.told->ends == 0;
        add_up();
        core.reset();  // before files are damaged: the worker is still writing
        if (rng() % 3 == 0) damage();
        restart();
        ++restarts;
      } else if (what == 23) {
        core->cache().clear(rng() % 4 == 0);
      } else {
        step();
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    finish();
    if (::testing::Test::HasFatalFailure()) return;
    add_up();
    requests += asked.size();
    verify();
  }

  void add_up() {
    const engine::CoreStats s = core->stats();
    sum.steps += s.steps;
    sum.preemptions += s.preemptions;
    sum.reused_tokens += s.reused_tokens;
    sum.answer_tokens += s.answer_tokens;
    sum.speculation.verified += s.speculation.verified;
    sum.speculation.accepted += s.speculation.accepted;
    sum.cache.evicted_from_memory += s.cache.evicted_from_memory;
    sum.cache.evicted_from_disk += s.cache.evicted_from_disk;
    sum.cache.loads += s.cache.loads;
  }

  engine::CoreStats sum;
  std::uint64_t requests = 0;
  std::uint64_t restarts = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t damaged = 0;

 private:
  Family& family_;
  fs::path disk_;
  std::optional<NarrowRunner> narrow_;
};

void compare_with_fresh_engine(ModelWorld& w) {
  engine::Request r = w.ask_something();
  engine::Request same;
  same.prompt = r.prompt;
  same.sampling = r.sampling;
  same.max_tokens = r.max_tokens;
  const Expected want = w.expect(same, 0, {});
  EXPECT_EQ(w.from_fresh_engine(std::move(same)), want.tokens);
}

void lives(const std::string& model, ops::Numerics numerics, unsigned first_seed, int schedules,
           const std::string& backend = "cpu") {
  Family family(model, backend, numerics);
  engine::CoreStats sum;
  std::uint64_t requests = 0;
  std::uint64_t restarts = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t damaged = 0;
  for (int i = 0; i < schedules; ++i) {
    const unsigned seed = first_seed + static_cast<unsigned>(i);
    std::string name = (fs::temp_directory_path() / "fathom-model-engine-XXXXXX").string();
    const fs::path dir = ::mkdtemp(name.data());
    {
      ModelWorld w(family, dir, seed);
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
      compare_with_fresh_engine(w);
      w.live(120);
      requests += w.requests;
      restarts += w.restarts;
      cancelled += w.cancelled;
      damaged += w.damaged;
      sum.steps += w.sum.steps;
      sum.preemptions += w.sum.preemptions;
      sum.reused_tokens += w.sum.reused_tokens;
      sum.answer_tokens += w.sum.answer_tokens;
      sum.speculation.verified += w.sum.speculation.verified;
      sum.speculation.accepted += w.sum.speculation.accepted;
      sum.cache.evicted_from_memory += w.sum.cache.evicted_from_memory;
      sum.cache.loads += w.sum.cache.loads;
    }
    fs::remove_all(dir);
    ASSERT_FALSE(::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) << "seed " << seed;
  }
  std::printf(
      "%d schedules: %lu requests, %lu tokens, %lu steps, %lu tokens reused, %lu preemptions, %lu evictions, %lu loads "
      "from disk, %lu restarts, %lu files damaged, %lu cancelled, %lu of %lu guesses right\n",
      schedules, requests, sum.answer_tokens, sum.steps, sum.reused_tokens, sum.preemptions,
      sum.cache.evicted_from_memory, sum.cache.loads, restarts, damaged, cancelled, sum.speculation.accepted,
      sum.speculation.verified);
  EXPECT_GT(sum.preemptions, 0U);
  EXPECT_GT(sum.reused_tokens, 0U);
  EXPECT_GT(sum.speculation.verified, 0U);
  EXPECT_GT(sum.cache.evicted_from_memory, 0U);
}

// Longer runs: FATHOM_PROPERTY_SCALE=100.
TEST(ModelEngineProperty, EachRequestGetsToTheBitWhatItWouldGetAlone) {
  lives("micro-random", ops::kOfficial, 0, 8 * scale());
}

TEST(ModelEngineProperty, AlsoWithoutQuantisation) { lives("micro-random-fp", ops::kFloat, 100'000, 4 * scale()); }

// Slots, pages and snapshots in device memory, tokens chosen there.
TEST(ModelEngineProperty, AlsoOnADevice) {
  const auto all = backends();
  if (std::find(all.begin(), all.end(), "cuda") == all.end()) GTEST_SKIP() << "no CUDA device";
  lives("micro-random", ops::kOfficialBf16, 200'000, 4 * scale(), "cuda");
}

}  // namespace
}  // namespace fathom::testing
