// Random lives of the engine over a model without arithmetic: arrivals, cancellations, deadlines, priorities, forks,
// too little memory, guesses, a disk, restarts. Each request must get exactly what it would get alone, and end once;
// pages, slots and files stay accounted for at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "support/engine_world.h"

namespace fathom::testing {
namespace {

namespace fs = std::filesystem;
using engine::CoreOptions;

// Longer runs: FATHOM_PROPERTY_SCALE=20.
int scale() {
  const char* s = std::getenv("FATHOM_PROPERTY_SCALE");
  return s != nullptr ? std::max(1, std::atoi(s)) : 1;
}

void live(EngineWorld& w, int events, bool disk) {
  for (int e = 0; e < events; ++e) {
    const unsigned what = w.rng() % 100;
    ++w.events;
    if (what < 25) {
      w.ask(w.random_request());
    } else if (what < 30 && !w.asked.empty()) {
      AskedFor& a = w.asked[w.rng() % w.asked.size()];
      if (a.told->ends == 0) a.cancelled = true;
      w.core->cancel(a.id);
    } else if (what == 30 && disk && w.rng() % 4 == 0) {
      for (AskedFor& a : w.asked) a.cancelled = a.cancelled || a.told->ends == 0;
      w.start();
    } else if (what == 31) {
      w.core->cache().clear(disk && w.rng() % 4 == 0);
    } else {
      w.step();
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  w.finish();
  if (!::testing::Test::HasFatalFailure()) w.verify();
}

// One schedule: its own shape of model, memory, queue and options.
struct Sum : engine::CoreStats {
  std::uint64_t events = 0;
};
void schedule(unsigned seed, int events, const fs::path& disk, Sum& sum) {
  std::mt19937 rng(seed);
  FakeRunnerOptions r;
  r.shape.rollback = static_cast<std::int32_t>(rng() % 6);
  r.shape.draft = rng() % 5 != 0;
  r.shape.window = std::array{4, 16, 128}[rng() % 3];
  r.step_tokens = std::array{1, 7, 32, 200}[rng() % 4];
  r.logit_rows = std::array{1, 5, 200}[rng() % 3];
  r.percent_right = std::array{0, 60, 100}[rng() % 3];
  CoreOptions o;
  o.slots = std::array{1, 3, 8}[rng() % 3];
  o.max_waiting = 30;
  o.prefill_beside_answers = std::array{1, 8, 64}[rng() % 3];
  o.passing_first = std::array{16, 128}[rng() % 2];
  o.passing_every = std::array{128, 200}[rng() % 2];
  o.max_drafts = r.shape.draft ? std::min(r.shape.rollback, static_cast<std::int32_t>(rng() % 5)) : 2;
  o.fixed_drafts = rng() % 2 == 0;
  if (!disk.empty()) {
    o.disk_directory = disk.string();
    o.disk_bytes = std::array<std::size_t, 2>{100'000, 4U << 20U}[rng() % 2];
  }
  FakeWorld w(r, o,
              static_cast<std::int32_t>(std::array{6U, 12U, 30U, 150U}[rng() % 4] + static_cast<unsigned>(o.slots)),
              seed);
  if (::testing::Test::HasFatalFailure()) return;
  live(w, events, !disk.empty());
  const auto s = w.core->stats();
  sum.events += w.events;
  sum.steps += s.steps;
  sum.preemptions += s.preemptions;
  sum.reused_tokens += s.reused_tokens;
  sum.speculation.accepted += s.speculation.accepted;
  sum.cache.evicted_from_memory += s.cache.evicted_from_memory;
  sum.cache.loads += s.cache.loads;
}

TEST(EngineProperty, EachRequestGetsWhatItWouldGetAlone) {
  Sum sum;
  const int schedules = 400 * scale();
  for (int i = 0; i < schedules; ++i) {
    schedule(static_cast<unsigned>(i), 150, {}, sum);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << i;
  }
  std::printf(
      "%d schedules: %lu events, %lu steps, %lu preemptions, %lu evictions, %lu tokens reused, %lu guesses right\n",
      schedules, sum.events, sum.steps, sum.preemptions, sum.cache.evicted_from_memory, sum.reused_tokens,
      sum.speculation.accepted);
  EXPECT_GT(sum.preemptions, 0U);
  EXPECT_GT(sum.cache.evicted_from_memory, 0U);
  EXPECT_GT(sum.reused_tokens, 0U);
  EXPECT_GT(sum.speculation.accepted, 0U);
}

TEST(EngineProperty, AlsoWithADiskAndRestarts) {
  Sum sum;
  const int schedules = 60 * scale();
  for (int i = 0; i < schedules; ++i) {
    std::string name = (fs::temp_directory_path() / "fathom-engine-XXXXXX").string();
    const fs::path dir = ::mkdtemp(name.data());
    schedule(static_cast<unsigned>(10'000 + i), 150, dir, sum);
    fs::remove_all(dir);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << 10'000 + i;
  }
  std::printf("%d schedules: %lu events, %lu steps, %lu loads\n", schedules, sum.events, sum.steps, sum.cache.loads);
  EXPECT_GT(sum.cache.loads, 0U);
}

}  // namespace
}  // namespace fathom::testing
