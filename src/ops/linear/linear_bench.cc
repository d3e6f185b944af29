// Matrix products of V4-Flash's shapes: one row (bound by memory) to a prefill chunk (bound by arithmetic).
#include "ops/bench_support.h"

namespace fathom::ops::bench {
namespace {

void run(benchmark::State& state, DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t tokens = state.range(0);
  Weights weights(dtype, rows, cols);
  std::vector<float> x_memory;
  std::vector<float> y_memory;
  const Mat<float> x = filled(x_memory, tokens, cols);
  const Mat<float> y = filled(y_memory, tokens, rows);
  const auto backend = make_cpu_backend({.threads = threads()});
  const bool quantise = dtype == DType::kF8E4M3 || dtype == DType::kFp4x2;
  for (auto _ : state) {
    backend->linear({.x = x, .w = weights.next(), .y = y, .quantise_x = quantise});
    benchmark::ClobberMemory();
  }
  report_bytes(state, weights.bytes());
  report_flops(state, 2.0 * static_cast<double>(tokens * rows * cols));
}

void BM_Fp8(benchmark::State& state) { run(state, DType::kF8E4M3, 8192, 4096); }
void BM_Fp4(benchmark::State& state) { run(state, DType::kFp4x2, 8192, 4096); }
void BM_Bf16(benchmark::State& state) { run(state, DType::kBf16, 8192, 4096); }
void BM_F32(benchmark::State& state) { run(state, DType::kF32, 24, 4 * 4096); }

constexpr std::int64_t kTokens[] = {1, 2, 3, 4, 5, 8, 16, 64, 256};

void tokens(benchmark::internal::Benchmark* b) {
  for (const std::int64_t t : kTokens) b->Arg(t);
  in_microseconds(b);
}

BENCHMARK(BM_Fp8)->Apply(tokens);
BENCHMARK(BM_Fp4)->Apply(tokens);
BENCHMARK(BM_Bf16)->Apply(tokens);
BENCHMARK(BM_F32)->Apply(tokens);

}  // namespace
}  // namespace fathom::ops::bench
