// What the engine itself costs a step: answers that go on, over a model that does nothing.
#include <benchmark/benchmark.h>

#include "engine/core.h"
#include "engine/null_runner.h"

namespace fathom::engine {
namespace {

// Arguments: answers in progress, vocabulary, guesses a step.
void BM_Step(benchmark::State& state) {
  const auto answers = static_cast<std::int32_t>(state.range(0));
  NullRunner runner(static_cast<std::int32_t>(state.range(1)), /*drafts=*/true);
  std::int64_t clock = 0;
  auto core = Core::create(runner, {.cache_bytes = std::size_t{512} << 20U,
                                    .slots = answers,
                                    .max_drafts = static_cast<std::int32_t>(state.range(2)),
                                    .fixed_drafts = true,
                                    .clock_us = [&clock] { return clock += 7; }})
                  .value();
  const auto fill = [&] {
    for (std::int32_t i = core->requests(); i < answers; ++i) {
      Request r;
      for (std::int32_t t = 0; t < 200; ++t) r.prompt.push_back((i * 31 + t * 7) % 64);
      r.sampling.temperature = 0;
      r.max_tokens = 8000;
      r.sink = std::make_unique<NullSink>();
      if (!core->submit(static_cast<RequestId>(i), std::move(r))) state.SkipWithError("not accepted");
    }
    while (core->stats().waiting > 0) core->step();
    for (int i = 0; i < 8; ++i) core->step();
  };
  fill();
  const std::uint64_t tokens = core->stats().answer_tokens;
  for (auto _ : state) {
    core->step();
    if (core->requests() < answers) {
      state.PauseTiming();
      fill();
      state.ResumeTiming();
    }
  }
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(core->stats().answer_tokens - tokens), benchmark::Counter::kAvgIterations);
}
BENCHMARK(BM_Step)
    ->ArgNames({"answers", "vocab", "guesses"})
    ->ArgsProduct({{1, 16, 64, 256}, {64}, {0, 1}})
    ->ArgsProduct({{1, 16}, {129280}, {0}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom::engine
