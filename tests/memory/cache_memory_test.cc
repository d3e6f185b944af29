// What the engine holds for sequences, of a published geometry, against what it announced at its start: to 2 %.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/memory.h"
#include "checkpoint/synthetic.h"
#include "engine/core.h"
#include "engine/null_runner.h"

namespace fathom {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which have memory of their own
#else
constexpr bool kSanitized = false;
#endif

// Writes to all the memory that it is given, as a model does.
class WritingRunner final : public engine::NullRunner {
 public:
  using NullRunner::NullRunner;
  Result<engine::LogitRows> forward(std::span<const model::Chunk> chunks, engine::Rules rules) override {
    for (const model::Chunk& c : chunks) {
      std::memset(c.slot, c.start & 0xff, layout().slot_bytes);
      const auto needed = static_cast<std::size_t>(model::CacheLayout::pages_for(c.start + c.tokens()));
      for (auto page = static_cast<std::size_t>(c.start) / 128; page < needed; ++page)
        std::memset(c.pages[page], c.start & 0xff, layout().page_bytes);
    }
    return NullRunner::forward(chunks, rules);
  }
};

TEST(CacheMemory, IsWhatWasAnnounced) {
  const checkpoint::ModelConfig config = checkpoint::published("v4-flash")->config;
  WritingRunner runner(config, ops::kOfficialBf16, 256);
  constexpr std::size_t kBudget = std::size_t{300} << 20U;
  std::int64_t clock = 0;
  const std::uint64_t before = anonymous_bytes();
  auto created = engine::Core::create(
      runner,
      {.cache_bytes = kBudget, .slots = 8, .fixed_drafts = true, .clock_us = [&clock] { return clock += 1000; }});
  ASSERT_TRUE(created.has_value()) << created.error().what;
  engine::Core& core = **created;
  const std::size_t planned = core.planned_bytes();
  // The start does not wait for memory that nobody has used yet.
  if (!kSanitized && before != 0) {
    EXPECT_LT(anonymous_bytes() - before, kBudget / 50);
  }
  EXPECT_LE(core.stats().cache.memory_bytes, kBudget);
  EXPECT_GE(core.stats().cache.memory_bytes, kBudget * 98 / 100);
  EXPECT_THAT(core.describe(), testing::HasSubstr("each: 3."));

  // Far more than fits, so that every page is used and snapshots come and go.
  for (std::int32_t i = 0; i < 60; ++i) {
    engine::Request r;
    for (std::int32_t t = 0; t < 3000 + i; ++t) r.prompt.push_back((t * 31 + i * (t + 7)) % config.vocab);
    r.max_tokens = 10;
    r.sampling.temperature = 0;
    r.sink = std::make_unique<engine::NullSink>();
    ASSERT_TRUE(core.submit(static_cast<engine::RequestId>(i), std::move(r)).has_value());
  }
  while (core.requests() > 0) core.step();
  EXPECT_GT(core.stats().cache.evicted_from_memory, 50U);
  const double page_tokens = static_cast<double>(core.cache().page_bytes()) / 128;
  std::printf("planned %.1f MiB, held %.1f MiB more than before; %.0f bytes a token\n",
              static_cast<double>(planned) / (1 << 20), static_cast<double>(anonymous_bytes() - before) / (1 << 20),
              page_tokens);
  EXPECT_LT(page_tokens, 3700) << "V4-Flash: about 3.5 KB a token";
  if (kSanitized || before == 0) GTEST_SKIP() << "memory cannot be compared here";
  EXPECT_NEAR(static_cast<double>(anonymous_bytes() - before), static_cast<double>(planned),
              0.02 * static_cast<double>(planned));
}

}  // namespace
}  // namespace fathom
