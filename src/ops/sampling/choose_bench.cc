// Tokens from rows of the published vocabulary: the likeliest, and by race.
#include "ops/bench_support.h"
#include "ops/sampling/noise.h"

namespace fathom::ops::bench {
namespace {

void run(benchmark::State& state, float temperature) {
  const std::int64_t rows = state.range(0);
  std::vector<float> memory;
  const Mat<float> logits = filled(memory, rows, 129'280);
  std::vector<ChoiceRule> rules;
  for (std::int64_t r = 0; r < rows; ++r) rules.push_back({.key = noise::key(1, r), .temperature = temperature});
  std::vector<std::int32_t> chosen(rules.size());
  const auto backend = make_cpu_backend({.threads = threads()});
  for (auto _ : state) {
    backend->choose({.logits = logits, .rules = rules.data(), .chosen = chosen.data()});
    benchmark::ClobberMemory();
  }
  report_bytes(state, static_cast<double>(rows * logits.cols) * sizeof(float));
}

void BM_ChooseLikeliest(benchmark::State& state) { run(state, 0); }
void BM_ChooseByRace(benchmark::State& state) { run(state, 1); }

void rows(benchmark::internal::Benchmark* b) {
  for (const std::int64_t n : {1, 16, 64}) b->Arg(n);
  in_microseconds(b);
}

BENCHMARK(BM_ChooseLikeliest)->Apply(rows);
BENCHMARK(BM_ChooseByRace)->Apply(rows);

}  // namespace
}  // namespace fathom::ops::bench
