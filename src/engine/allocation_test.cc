// A step that only continues answers takes no memory. This program counts every `new`.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/core.h"
#include "engine/null_runner.h"

namespace {
std::atomic<std::uint64_t> allocations = 0;  // NOLINT: `new` belongs to the whole program
}  // namespace

// Not inlined: the compiler would see malloc() on one side and `delete` on the other.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t /*bytes*/) noexcept { std::free(p); }

namespace fathom::engine {
namespace {

class StepMemory : public ::testing::TestWithParam<std::int32_t> {  // guesses a step
 protected:
  static constexpr std::int32_t kAnswers = 16;
  static constexpr std::int32_t kPrompt = 600;

  void SetUp() override {
    auto created = Core::create(runner_, {.cache_bytes = std::size_t{16} << 20U,
                                          .slots = kAnswers,
                                          .max_drafts = GetParam(),
                                          .fixed_drafts = true,
                                          .clock_us = [this] { return clock_ += 7; }});
    ASSERT_TRUE(created.has_value()) << created.error().what;
    core_ = std::move(*created);
    for (std::int32_t i = 0; i < kAnswers; ++i) {
      Request r;
      for (std::int32_t t = 0; t < kPrompt; ++t) r.prompt.push_back((i * 31 + t * 7) % 64);
      r.client = "somebody whose name does not fit into a small string";
      r.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
      r.sampling.top_p = 0.9F;
      r.sampling.logprobs = i % 3 == 0;
      r.sink = std::make_unique<NullSink>();
      ASSERT_TRUE(core_->submit(static_cast<RequestId>(i), std::move(r)).has_value());
    }
    while (core_->stats().answer_tokens < kAnswers * 60) core_->step();
  }

  NullRunner runner_{64, /*drafts=*/true};
  std::int64_t clock_ = 0;
  std::unique_ptr<Core> core_;
};

TEST_P(StepMemory, AStepThatContinuesAnswersTakesNone) {
  // Answers are at about 660 tokens: the next page begins at 768, no list of tokens grows before 1,200.
  const std::uint64_t steps = core_->stats().steps;
  const std::uint64_t tokens = core_->stats().answer_tokens;
  const std::uint64_t before = allocations;
  while (core_->stats().answer_tokens < tokens + kAnswers * 60) core_->step();
  const std::uint64_t taken = allocations - before;
  EXPECT_GE(core_->stats().steps - steps, 15U);
  EXPECT_EQ(taken, 0U);
}

TEST_P(StepMemory, APageTakesAFewAllocationsEvery128Tokens) {
  const std::uint64_t tokens = core_->stats().answer_tokens;
  const std::uint64_t before = allocations;
  constexpr std::uint64_t kPages = 20;
  while (core_->stats().answer_tokens < tokens + kAnswers * kPages * 128) core_->step();
  const std::uint64_t taken = allocations - before;
  std::printf("%lu allocations for %lu pages of %d answers\n", taken, kPages, kAnswers);
  // One for each page, and the lists of tokens and pages that double.
  EXPECT_LE(taken, kAnswers * (kPages + 16));
}

INSTANTIATE_TEST_SUITE_P(Guesses, StepMemory, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace fathom::engine
