// Scoring and selection of a V4-Flash ratio-4 layer: 64 index heads of 128 over one key per 4 tokens, the best 512
// taken.
#include "ops/bench_support.h"
#include "ops/test_batch.h"

namespace fathom::ops::bench {
namespace {

void BM_IndexSelect(benchmark::State& state) {
  constexpr std::int32_t kHeads = 64;
  constexpr std::int32_t kDim = 128;
  const auto start = static_cast<std::int32_t>(state.range(0));
  const auto tokens = static_cast<std::int32_t>(state.range(1));
  const EntryPages keys = {.offset = 0, .ratio = 4, .codec = {quant::EntryFormat::kFp4, kDim, 0}};
  const testing::TestBatch batch({{start, tokens}}, 64, 32 * static_cast<std::int64_t>(keys.codec.bytes()));
  testing::Rng rng(1);
  testing::fill_cache(rng, batch, nullptr, &keys);
  std::vector<float> q_memory, weights_memory;
  const Mat<float> q = filled(q_memory, tokens, kHeads * kDim);
  for (std::int64_t t = 0; t < tokens; ++t) quant::fp4_round_trip({q.row(t), static_cast<std::size_t>(q.cols)});
  std::vector<std::int32_t> selected(static_cast<std::size_t>(tokens) * 512);
  const IndexSelect op = {.q = q,
                          .weights = filled(weights_memory, tokens, kHeads),
                          .scale = 0.011F,
                          .heads = kHeads,
                          .batch = batch.batch(),
                          .keys = keys,
                          .selected = mat(selected, tokens, 512)};
  const auto backend = make_cpu_backend({.threads = threads()});
  for (auto _ : state) backend->index_select(op);
  const double n = start / 4;
  report_bytes(state, n * static_cast<double>(keys.codec.bytes()));
  report_flops(state, 2.0 * kHeads * kDim * n * tokens);
}

BENCHMARK(BM_IndexSelect)->Args({32768, 1})->Args({1 << 20, 1})->Args({32768, 16})->Apply(in_microseconds);

}  // namespace
}  // namespace fathom::ops::bench
