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

// A loop is open to whoever comes in time. The caller works too and closes it once nothing is left to hand out; it then
// waits only for workers that are inside. One that the system has not woken yet costs nothing, so that a busy machine
// slows a loop down by no more than the work its threads hold.
struct ThreadPool::State {
  static constexpr std::uint32_t kClosed = 1U << 31;

  // One loop. Written by the caller while the gate is closed and nobody inside.
  Call call = nullptr;
  const void* body = nullptr;
  std::int64_t n = 0;
  std::int64_t grain = 1;

  // Apart from one another: each is hammered by all threads.
  alignas(64) std::atomic<std::int64_t> next{0};
  alignas(64) std::atomic<std::uint32_t> gate{kClosed};  // kClosed, and how many workers are inside
  alignas(64) std::atomic<std::uint32_t> epoch{0};       // counts loops; idle workers wait for it to change
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

  bool enter() {
    std::uint32_t g = gate.load(std::memory_order_relaxed);
    while ((g & kClosed) == 0) {
      if (gate.compare_exchange_weak(g, g + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  void leave() {
    if (gate.fetch_sub(1, std::memory_order_release) == (kClosed | 1U)) gate.notify_one();
  }

  void worker_main(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && epoch.load(std::memory_order_acquire) == seen; ++i) relax();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      if (!enter()) continue;
      work(worker);
      leave();
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
  s.gate.store(0, std::memory_order_release);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.work(0);
  s.gate.fetch_or(State::kClosed, std::memory_order_acquire);
  for (int i = 0; i < kSpins && s.gate.load(std::memory_order_acquire) != State::kClosed; ++i) relax();
  for (std::uint32_t g = s.gate.load(std::memory_order_acquire); g != State::kClosed;
       g = s.gate.load(std::memory_order_acquire)) {
    s.gate.wait(g, std::memory_order_acquire);
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
