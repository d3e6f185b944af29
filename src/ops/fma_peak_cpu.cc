#include "ops/fma_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fma_peak_cpu.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

// Twelve chains: more than the latency times the width of any unit.
float FmaLoop(std::int64_t n) {
  V acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = hn::Set(D(), static_cast<float>(i) * 1e-3F);
  const V a = hn::Set(D(), 0.999999F);
  const V b = hn::Set(D(), 1e-7F);
  for (std::int64_t k = 0; k < n; ++k) {
    FATHOM_UNROLL for (int i = 0; i < 12; ++i) acc[i] = hn::MulAdd(acc[i], a, b);
  }
  V sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = hn::Add(sum, acc[i]);
  return hn::GetLane(hn::SumOfLanes(D(), sum));
}
double FmaLoopFlops(std::int64_t n) { return 2.0 * 12 * kWidth * static_cast<double>(n); }

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {
namespace {
HWY_EXPORT(FmaLoop);
HWY_EXPORT(FmaLoopFlops);
}  // namespace

double measure_fma_peak(ThreadPool& pool) {
  constexpr std::int64_t kLoops = 1 << 18;
  constexpr int kRounds = 8;
  const std::int64_t turns = std::int64_t{16} * pool.size();
  std::atomic<float> sum{0};  // so that no compiler finds the loop useless
  double shortest = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(turns, 1, [&](std::int64_t, std::int64_t, int) {
      sum.store(HWY_DYNAMIC_DISPATCH(FmaLoop)(kLoops), std::memory_order_relaxed);
    });
    shortest = std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return sum.load() != 0 ? static_cast<double>(turns) * HWY_DYNAMIC_DISPATCH(FmaLoopFlops)(kLoops) / shortest : 0;
}

}  // namespace fathom::ops
#endif
