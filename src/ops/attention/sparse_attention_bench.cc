// Attention of V4-Flash layers: 64 heads of 512 over the window of 128 and what the layer compressed. Bound by
// arithmetic: every entry is met by all heads.
#include <algorithm>

#include "ops/bench_support.h"
#include "ops/test_batch.h"

namespace fathom::ops::bench {
namespace {

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kDim = 512;
constexpr std::int32_t kRope = 64;
constexpr std::int32_t kWindow = 128;
constexpr std::int32_t kSelected = 512;

// ratio 128: every entry; ratio 4: the selected ones.
void run(benchmark::State& state, std::int32_t ratio) {
  const auto start = static_cast<std::int32_t>(state.range(0));
  const auto tokens = static_cast<std::int32_t>(state.range(1));
  const quant::EntryCodec codec = {quant::EntryFormat::kFp8RopeF32, kDim, kRope};
  const WindowRing ring = {.offset = 0, .capacity = kWindow, .codec = codec};
  const EntryPages entries = {.offset = 0, .ratio = ratio, .codec = codec};
  const auto bytes = static_cast<std::int64_t>(codec.bytes());
  const testing::TestBatch batch({{start, tokens}}, kWindow * bytes, kPageTokens / ratio * bytes);
  testing::Rng rng(1);
  testing::fill_cache(rng, batch, &ring, &entries);
  std::vector<float> q_memory, kv_memory, out_memory, cos_memory, sin_memory;
  const std::vector<float> sink(kHeads, 0.5F);
  std::vector<std::int32_t> selected(static_cast<std::size_t>(tokens) * kSelected);
  const std::int32_t exist = start / ratio;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    selected[i] = static_cast<std::int32_t>(i % kSelected) * std::max(exist / kSelected, 1);
  }
  const SparseAttention op = {
      .q = filled(q_memory, tokens, kHeads * kDim),
      .kv = filled(kv_memory, tokens, kDim),
      .heads = kHeads,
      .window = kWindow,
      .pattern = Pattern::kCausal,
      .batch = batch.batch(),
      .ring = ring,
      .entries = entries,
      .selected = ratio == 4 ? mat(std::as_const(selected), tokens, kSelected) : Mat<const std::int32_t>{},
      .sink = sink.data(),
      .cos = filled(cos_memory, tokens, kRope / 2),
      .sin = filled(sin_memory, tokens, kRope / 2),
      .out = filled(out_memory, tokens, kHeads * kDim)};
  const auto backend = make_cpu_backend({.threads = threads()});
  for (auto _ : state) backend->sparse_attention(op);
  const double rows = kWindow + (ratio == 4 ? kSelected : exist);
  report_flops(state, 4.0 * kHeads * kDim * rows * tokens);
}

void BM_AttentionRatio4(benchmark::State& state) { run(state, 4); }
void BM_AttentionRatio128(benchmark::State& state) { run(state, 128); }

BENCHMARK(BM_AttentionRatio4)->Args({32768, 1})->Args({32768, 64})->Apply(in_microseconds);
BENCHMARK(BM_AttentionRatio128)->Args({32768, 1})->Args({1 << 20, 1})->Args({32768, 64})->Apply(in_microseconds);

}  // namespace
}  // namespace fathom::ops::bench
