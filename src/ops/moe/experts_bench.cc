// The experts of a V4-Flash layer: 6 of 256 FP4 experts and the FP8 shared one, 4096 x 2048. Decoding is bound by the
// bytes of the distinct experts named, prefill by arithmetic. 32 experts stand for 256, in as many bytes as no cache
// holds.
#include <algorithm>
#include <numeric>
#include <random>

#include "ops/bench_support.h"

namespace fathom::ops::bench {
namespace {

constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kInner = 2048;
constexpr std::int32_t kRouted = 32;
constexpr std::int64_t kActive = 6;

void BM_Experts(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  Weights in(DType::kFp4x2, kInner, kHidden, std::size_t{2} * kRouted * kInner * kHidden / 2);
  Weights out(DType::kFp4x2, kHidden, kInner, std::size_t{kRouted} * kInner * kHidden / 2);
  Weights shared_in(DType::kF8E4M3, kInner, kHidden, std::size_t{2} * kInner * kHidden);
  Weights shared_out(DType::kF8E4M3, kHidden, kInner, 1);
  std::vector<ExpertWeights> routed(kRouted);
  for (ExpertWeights& e : routed) e = {.w1 = in.next(), .w3 = in.next(), .w2 = out.next()};
  const ExpertWeights shared = {.w1 = shared_in.next(), .w3 = shared_in.next(), .w2 = shared_out.next()};

  std::minstd_rand rng(3);
  std::vector<std::int32_t> all(kRouted);
  std::iota(all.begin(), all.end(), 0);
  // A few routings in turn, so that decoding finds other experts than the last time.
  constexpr int kRoutings = 5;
  std::vector<std::int32_t> chosen;
  double experts_read = 0;
  for (int r = 0; r < kRoutings; ++r) {
    std::vector<bool> named(kRouted);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), rng);
      std::sort(all.begin(), all.begin() + kActive);
      chosen.insert(chosen.end(), all.begin(), all.begin() + kActive);
      for (std::int64_t i = 0; i < kActive; ++i)
        named[static_cast<std::size_t>(all[static_cast<std::size_t>(i)])] = true;
    }
    experts_read += static_cast<double>(std::count(named.begin(), named.end(), true)) / kRoutings;
  }
  std::vector<float> x_memory, y_memory;
  const Mat<float> x = filled(x_memory, tokens, kHidden);
  const Mat<float> y = filled(y_memory, tokens, kHidden);
  std::vector<float> weights(static_cast<std::size_t>(tokens * kActive), 0.25F);
  const auto backend = make_cpu_backend({.threads = threads()});
  int turn = 0;
  for (auto _ : state) {
    const std::int32_t* experts = chosen.data() + turn++ % kRoutings * tokens * kActive;
    backend->experts({.x = x,
                      .routed = routed.data(),
                      .n_routed = kRouted,
                      .routed_like = routed.front(),
                      .shared = shared,
                      .experts = mat(experts, tokens, kActive),
                      .weights = mat(weights, tokens, kActive),
                      .swiglu_limit = 10,
                      .quantise = true,
                      .y = y});
  }
  report_bytes(state, experts_read * (2 * in.bytes() + out.bytes()) + 2 * shared_in.bytes() + shared_out.bytes());
  report_flops(state, 2.0 * 3 * kInner * kHidden * static_cast<double>(tokens * (kActive + 1)));
}

BENCHMARK(BM_Experts)->Arg(1)->Arg(2)->Arg(8)->Arg(64)->Arg(512)->Apply(in_microseconds);

}  // namespace
}  // namespace fathom::ops::bench
