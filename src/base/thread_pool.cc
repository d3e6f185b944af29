#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

// Long enough to bridge the gaps between the operations of one step, short enough not to heat an idle machine.
constexpr int kSpins = 2'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The quota of the control group, in cores; 0 where there is none. (cgroup v2, then v1.)
double cgroup_quota_cores() {
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    std::string quota;
    double period = 0;
    if (v2 >> quota >> period && quota != "max" && period > 0) return std::atof(quota.c_str()) / period;
    return 0;
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

}  // namespace

struct ThreadPool::State {
  // One loop. Written by the caller while no worker is inside a loop, published by `epoch`.
  Call call = nullptr;
  const void* body = nullptr;
  std::int64_t n = 0;
  std::int64_t grain = 1;

  std::atomic<std::int64_t> next{0};
  std::atomic<int> busy{0};             // workers that have not finished the current epoch
  std::atomic<std::uint32_t> epoch{0};  // counts loops; workers wait for it to change
  std::atomic<bool> stop{false};
  std::mutex callers;
  std::vector<std::thread> threads;

  void work(int worker) {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      call(body, begin, std::min(begin + grain, n), worker);
    }
  }

  void worker_main(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && epoch.load(std::memory_order_acquire) == seen; ++i) relax();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      work(worker);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : state_(std::make_unique<State>()) {
  FATHOM_CHECK(n_threads >= 1, "a thread pool needs at least the caller's thread");
  for (int i = 1; i < n_threads; ++i) {
    state_->threads.emplace_back([s = state_.get(), i] { s->worker_main(i); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_relaxed);
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& t : state_->threads) t.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(std::int64_t n, std::int64_t grain, Call call, const void* body) {
  FATHOM_CHECK(grain >= 1, "the grain of a parallel loop is at least 1");
  if (n <= 0) return;
  const std::lock_guard<std::mutex> one_at_a_time(state_->callers);
  State& s = *state_;
  if (s.threads.empty() || n <= grain) {
    for (std::int64_t begin = 0; begin < n; begin += grain) call(body, begin, std::min(begin + grain, n), 0);
    return;
  }
  s.call = call;
  s.body = body;
  s.n = n;
  s.grain = grain;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(static_cast<int>(s.threads.size()), std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.work(0);
  for (int i = 0; i < kSpins && s.busy.load(std::memory_order_acquire) != 0; ++i) relax();
  for (int left = s.busy.load(std::memory_order_acquire); left != 0; left = s.busy.load(std::memory_order_acquire)) {
    s.busy.wait(left, std::memory_order_acquire);
  }
}

int usable_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  if (const double quota = cgroup_quota_cores(); quota > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  }
  return std::max(cores, 1);
}

}  // namespace fathom
