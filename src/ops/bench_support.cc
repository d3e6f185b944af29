#include "ops/bench_support.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string_view>

#include "base/thread_pool.h"
#include "ops/fma_peak.h"
#include "ops/instruction_set.h"
#include "ops/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/bench_support.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

float ReadLoop(const float* x, std::int64_t n) {
  V acc[4];
  for (V& v : acc) v = hn::Zero(D());
  for (std::int64_t i = 0; i + 4 * kWidth <= n; i += 4 * kWidth) {
    FATHOM_UNROLL for (int j = 0; j < 4; ++j) acc[j] = hn::Add(acc[j], hn::LoadU(D(), x + i + j * kWidth));
  }
  return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]))));
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops::bench {
namespace {

HWY_EXPORT(ReadLoop);

// The shortest of `times` runs of body, in seconds.
template <class Body>
double best(int times, const Body& body) {
  double shortest = 1e30;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    shortest = std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return shortest;
}

double measure_read_bandwidth() {
  const std::int64_t n = std::int64_t{128} << 20;  // floats: 512 MB
  std::vector<float> x(static_cast<std::size_t>(n), 1.0F);
  ThreadPool pool(threads());
  const double seconds = best(8, [&] {
    pool.parallel_for(n, 1 << 20, [&](std::int64_t begin, std::int64_t end, int) {
      benchmark::DoNotOptimize(HWY_DYNAMIC_DISPATCH(ReadLoop)(x.data() + begin, end - begin));
    });
  });
  return 4.0 * static_cast<double>(n) / seconds;
}

}  // namespace

int threads() { return usable_cores(); }

double read_bandwidth() {
  static const double bytes_per_second = measure_read_bandwidth();
  return bytes_per_second;
}

double fma_peak() {
  static const double flops_per_second = [] {
    ThreadPool pool(threads());
    return measure_fma_peak(pool);
  }();
  return flops_per_second;
}

namespace {
// Counters that Google Benchmark divides by the time itself.
void rate(benchmark::State& state, const char* name, double amount) {
  state.counters[name] =
      benchmark::Counter(amount * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
}  // namespace

void report_bytes(benchmark::State& state, double bytes) {
  rate(state, "GB/s", bytes * 1e-9);
  rate(state, "%read", 100 * bytes / read_bandwidth());
}

void report_flops(benchmark::State& state, double flops) {
  rate(state, "GFLOP/s", flops * 1e-9);
  rate(state, "%fma", 100 * flops / fma_peak());
}

std::vector<std::byte> noise(std::size_t n, std::uint32_t seed) {
  std::minstd_rand rng(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) {
    const auto code = static_cast<std::uint8_t>(rng() >> 8);
    b = std::byte{(code & 0x7fU) == 0x7fU ? std::uint8_t{0x38} : code};
  }
  return bytes;
}

Weights::Weights(DType dtype, std::int64_t rows, std::int64_t cols, std::size_t at_least_bytes) {
  Weight w = {.dtype = dtype, .rows = rows, .cols = cols};
  const auto size = static_cast<std::size_t>(rows * w.row_bytes());
  const std::size_t copies = (at_least_bytes + size - 1) / size;
  const std::int64_t n_scales = dtype == DType::kFp4x2 ? rows * cols / 32 : (rows + 127) / 128 * ((cols + 127) / 128);
  data_ = noise(size * copies, 1);
  if (!w.quantised()) {  // small numbers instead of any bits
    if (dtype == DType::kBf16) {
      for (std::size_t i = 1; i < data_.size(); i += 2) data_[i] = (data_[i] & std::byte{0x80}) | std::byte{0x3c};
    } else {
      for (std::size_t i = 3; i < data_.size(); i += 4) data_[i] = (data_[i] & std::byte{0x80}) | std::byte{0x3c};
    }
  }
  scales_.assign(static_cast<std::size_t>(n_scales) * copies, std::byte{119});
  for (std::size_t i = 0; i < copies; ++i) {
    w.data = data_.data() + i * size;
    w.scales = scales_.data() + i * static_cast<std::size_t>(n_scales);
    all_.push_back(w);
  }
  bytes_ = static_cast<double>(size) + (w.quantised() ? static_cast<double>(n_scales) : 0);
}

Mat<float> filled(std::vector<float>& memory, std::int64_t rows, std::int64_t cols) {
  std::minstd_rand rng(5);
  memory.resize(static_cast<std::size_t>(rows * cols));
  for (float& v : memory) v = static_cast<float>(rng() % 2001) / 1000.0F - 1.0F;
  return mat(memory, rows, cols);
}

void in_microseconds(benchmark::internal::Benchmark* b) { b->UseRealTime()->Unit(benchmark::kMicrosecond); }

}  // namespace fathom::ops::bench

// Google Benchmark's flags, and --instruction_set=NAME (ops/instruction_set.h).
int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  constexpr std::string_view kFlag = "--instruction_set=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto limited = arg.starts_with(kFlag) ? fathom::ops::limit_instruction_set(arg.substr(kFlag.size()))
                                                : fathom::fail(fathom::Code::kInvalid, "no flag \"{}\"", arg);
    if (limited) continue;
    std::fprintf(stderr, "%s\n", limited.error().what.c_str());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
#endif
