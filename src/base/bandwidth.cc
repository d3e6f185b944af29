#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>

namespace fathom {
namespace {

constexpr std::int64_t kWords = (std::int64_t{512} << 20) / 8;
constexpr std::int64_t kBlock = (std::int64_t{1} << 20) / 8;
constexpr int kRounds = 5;

// Eight independent sums: plain loads keep several cache lines in flight, which is more than memory delivers to a core.
std::uint64_t sum(const std::uint64_t* p, std::int64_t n) {
  std::uint64_t s[8] = {};
  for (std::int64_t i = 0; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) s[j] += p[i + j];
  }
  return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  const std::unique_ptr<std::uint64_t[]> words(new (std::nothrow) std::uint64_t[kWords]);
  if (words == nullptr) return 0;
  pool.parallel_for(kWords, kBlock, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) words[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(i);
  });
  std::atomic<std::uint64_t> total{0};  // so that no compiler finds the reading useless
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(kWords, kBlock, [&](std::int64_t begin, std::int64_t end, int) {
      total.fetch_add(sum(words.get() + begin, end - begin), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kWords) * 8 / seconds);
  }
  return total.load() != 0 ? best : 0;
}

}  // namespace fathom
