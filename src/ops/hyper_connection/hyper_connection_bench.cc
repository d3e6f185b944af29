// One site of V4-Flash: 4 streams of 4096, 24 mixing rows. For one token bound by reading those rows, 1.5 MB of f32.
#include "ops/bench_support.h"

namespace fathom::ops::bench {
namespace {

void BM_HyperConnection(benchmark::State& state) {
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kStreams = 4;
  constexpr std::int64_t kMixes = 2 * kStreams + kStreams * kStreams;
  const std::int64_t tokens = state.range(0);
  Weights fn(DType::kF32, kMixes, kStreams * kHidden);
  std::vector<float> streams_memory, x_memory, post_memory, comb_memory, y_memory;
  const Mat<float> streams = filled(streams_memory, tokens, kStreams * kHidden);
  const Mat<float> x = filled(x_memory, tokens, kHidden);
  const Mat<float> y = filled(y_memory, tokens, kHidden);
  const Mat<float> post = filled(post_memory, tokens, kStreams);
  const Mat<float> comb = filled(comb_memory, tokens, kStreams * kStreams);
  const std::vector<float> base(kMixes, 0.1F);
  const std::vector<float> scale(3, 0.5F);
  const std::vector<float> norm(kHidden, 1.0F);
  const auto backend = make_cpu_backend({.threads = threads()});
  for (auto _ : state) {
    const HyperConnection site = {
        .fn = reinterpret_cast<const float*>(fn.next().data), .base = base.data(), .scale = scale.data()};
    backend->hc_pre({.streams = streams,
                     .site = site,
                     .norm_weight = norm.data(),
                     .x = x,
                     .post = post,
                     .comb = comb,
                     .sinkhorn_iters = 20,
                     .norm_eps = 1e-6F,
                     .hc_eps = 1e-6F});
    backend->hc_post({.y = y, .streams = streams, .post = post, .comb = comb, .out = streams});
  }
  report_bytes(state, fn.bytes());
}

BENCHMARK(BM_HyperConnection)->Arg(1)->Arg(8)->Arg(256)->Apply(in_microseconds);

}  // namespace
}  // namespace fathom::ops::bench
