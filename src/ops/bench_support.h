// What the benchmarks of the operations share: the machine's own limits, measured in the same run, as percent of which
// every figure is printed. --instruction_set=NAME limits them: ops/instruction_set.h.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/backend.h"

namespace fathom::ops::bench {

// Threads of every benchmark: the usable cores.
int threads();

// Bytes a second that all threads together read from memory, best of several passes over a buffer no cache can hold.
double read_bandwidth();
// Fused multiply-adds on registers, all threads: 2 operations each, a second.
double fma_peak();

// Counters: GB/s and percent of read_bandwidth() for the bytes that must be read once per iteration.
void report_bytes(benchmark::State& state, double bytes);
// GFLOP/s and percent of fma_peak().
void report_flops(benchmark::State& state, double flops);

// n bytes of noise that are valid codes of every 8-bit and 4-bit format (no NaN).
std::vector<std::byte> noise(std::size_t n, std::uint32_t seed);

// A weight of noise, and enough distinct ones that a pass over them finds none in a cache.
class Weights {
 public:
  Weights(DType dtype, std::int64_t rows, std::int64_t cols, std::size_t at_least_bytes = std::size_t{256} << 20);
  const Weight& next() { return all_[at_++ % all_.size()]; }
  double bytes() const { return bytes_; }  // of one, scales included

 private:
  std::vector<std::byte> data_;
  std::vector<std::byte> scales_;
  std::vector<Weight> all_;
  std::size_t at_ = 0;
  double bytes_ = 0;
};

Mat<float> filled(std::vector<float>& memory, std::int64_t rows, std::int64_t cols);

// Wall-clock time. On a machine that others use too, ask for repetitions and read the median.
void in_microseconds(benchmark::internal::Benchmark* b);

}  // namespace fathom::ops::bench
