#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/topology.h"

namespace fathom {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceForAnyThreadCountAndGrain) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const std::int64_t n : {0, 1, 2, 63, 64, 65, 1000}) {
      for (const std::int64_t grain : {1, 3, 64, 1000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
          ASSERT_GE(worker, 0);
          ASSERT_LT(worker, threads);
          ASSERT_LE(end - begin, grain);
          for (std::int64_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
        });
        for (const auto& h : hits) ASSERT_EQ(h.load(), 1) << "n=" << n << " grain=" << grain;
      }
    }
  }
}

TEST(ThreadPool, LoopsFollowEachOtherWithoutLosingWork) {
  ThreadPool pool(4);
  std::int64_t total = 0;
  for (int round = 0; round < 1000; ++round) {
    std::atomic<std::int64_t> sum{0};
    pool.parallel_for(8, 1, [&](std::int64_t begin, std::int64_t, int) { sum.fetch_add(begin); });
    total += sum.load();
  }
  EXPECT_EQ(total, 1000 * 28);
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        pool.parallel_for(10, 2, [&](std::int64_t begin, std::int64_t end, int) { sum.fetch_add(end - begin); });
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 10);
}

// The affinity mask of this thread, put back at the end.
class Mask {
 public:
  Mask() { sched_getaffinity(0, sizeof(before_), &before_); }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;
  ~Mask() { sched_setaffinity(0, sizeof(before_), &before_); }
  static bool stay_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(processor), &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
  }

 private:
  cpu_set_t before_ = {};
};

// Wherever the system puts the caller, no worker runs there.
TEST(ThreadPool, WorkersKeepOutOfTheCallersWay) {
  const std::vector<Processor> processors = usable_processors();
  if (count_cores(processors) < 2) GTEST_SKIP() << "needs two cores";
  ThreadPool pool(count_cores(processors));
  const Mask mask;
  for (int round = 0; round < 3; ++round) {
    for (const Processor& p : processors) {
      if (p.id != p.core) continue;
      ASSERT_TRUE(Mask::stay_on(p.id));
      std::atomic<int> on_mine{0};
      std::atomic<bool> helped{false};
      std::atomic<int> work{0};
      pool.parallel_for(20'000, 1, [&](std::int64_t, std::int64_t, int worker) {
        // In all, longer than the system lets one thread wait for another.
        for (int i = 0; i < 500; ++i) work.fetch_add(1, std::memory_order_relaxed);
        if (worker == 0) return;
        helped = true;
        if (sched_getcpu() == p.id) ++on_mine;
      });
      EXPECT_EQ(on_mine, 0) << "processor " << p.id << (helped ? "" : ", no worker came");
    }
  }
}

// Two threads on each of two nodes that this machine does not have: its own processors are never among them.
std::vector<Processor> two_nodes() {
  std::vector<Processor> all;
  for (int i = 0; i < 4; ++i) all.push_back({.id = 8'000 + i, .core = 8'000 + i, .node = i % 2 * 3});
  return all;
}

TEST(ThreadPoolOfTwoNodes, ThreadsTakeTheirNodesPart) {
  ThreadPool pool(4, two_nodes());
  ASSERT_EQ(pool.parts(), 2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> inside{0};
    std::vector<int> worker_of(4, -1);
    pool.parallel_for(4, 1, [&](std::int64_t i, std::int64_t, int worker) {
      worker_of[static_cast<std::size_t>(i)] = worker;
      ++inside;
      while (inside < 4) std::this_thread::yield();  // so that every thread takes one
    });
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(worker_of[i] % 2, i < 2 ? 0 : 1) << "index " << i;
  }
}

TEST(ThreadPoolOfTwoNodes, ThreadsHelpWithTheOtherPartOnceTheirsIsDone) {
  ThreadPool pool(2, two_nodes());
  ASSERT_EQ(pool.parts(), 2);
  std::atomic<int> done{0};
  std::vector<std::atomic<int>> hits(101);
  pool.parallel_for(101, 3, [&](std::int64_t begin, std::int64_t end, int worker) {
    ASSERT_LE(end - begin, 3);
    for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    const auto n = static_cast<int>(end - begin);
    // The worker holds its first three until all others are done, by the caller.
    while (worker == 1 && done + n < 101) std::this_thread::yield();
    done += n;
  });
  for (const auto& h : hits) EXPECT_EQ(h, 1);
}

TEST(ThreadPoolOfTwoNodes, HasOnePartWhereThreadsHaveNoCoresOfTheirOwn) {
  EXPECT_EQ(ThreadPool(5, two_nodes()).parts(), 1);
  EXPECT_EQ(ThreadPool(1, two_nodes()).parts(), 1);
  EXPECT_EQ(ThreadPool(3, {}).parts(), 1);
}

TEST(UsableCores, AreThoseOfTheMask) {
  EXPECT_GE(usable_cores(), 1);
  const Mask mask;
  ASSERT_TRUE(Mask::stay_on(usable_processors().back().id));
  EXPECT_EQ(usable_processors().size(), 1U);
  EXPECT_EQ(usable_cores(), 1);
}

}  // namespace
}  // namespace fathom
