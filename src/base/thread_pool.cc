#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/numa.h"

namespace fathom {
namespace {

// Long enough to bridge the gaps between the operations of one step and between steps, short enough not to heat an idle
// machine.
constexpr std::chrono::microseconds kSpin{200};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits a little for done(); the caller then sleeps if it has to.
template <class Done>
void spin(const Done& done) {
  constexpr int kLooks = 32;  // at done() for one at the clock
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
}

// Only a wish: where it cannot be had, the system places the thread as it likes.
void pin(std::thread& thread, int processor) {
  cpu_set_t* set = CPU_ALLOC(processor + 1);
  if (set == nullptr) return;
  const std::size_t size = CPU_ALLOC_SIZE(processor + 1);
  CPU_ZERO_S(size, set);
  CPU_SET_S(static_cast<std::size_t>(processor), size, set);
  (void)pthread_setaffinity_np(thread.native_handle(), size, set);
  CPU_FREE(set);
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

  // What is left of one node's part of the loop.
  struct alignas(64) Part {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::vector<Part> parts = std::vector<Part>(1);

  // Apart from one another: each is hammered by all threads.
  alignas(64) std::atomic<std::uint32_t> gate{kClosed};  // kClosed, and how many workers are inside
  alignas(64) std::atomic<std::uint32_t> epoch{0};       // counts loops; idle workers wait for it to change
  std::atomic<bool> stop{false};
  std::mutex callers;
  std::vector<std::thread> threads;

  // Every worker has a core of its own and one is left, for the caller. The caller is not pinned, because it is not
  // this pool's thread; the system moves it seldom, and then the worker whose core it came to takes the one it left.
  std::vector<Processor> processors;  // one of each core first; empty: nobody is pinned
  std::vector<std::size_t> place;     // of each worker, in processors
  std::size_t left = 0;               // in processors
  int caller_processor = -1;          // where the caller was last
  std::vector<int> nodes;             // that threads are on, ascending; empty: nobody is pinned

  // Before the workers start: n_threads with the caller's.
  void place_threads(std::size_t n_threads, std::vector<Processor> usable) {
    if (n_threads < 2 || static_cast<int>(n_threads) > count_cores(usable)) return;
    processors = std::move(usable);
    for (std::size_t i = 0; i < n_threads; ++i) {
      if (i > 0) place.push_back(i);
      nodes.push_back(processors[i].node);
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    parts = std::vector<Part>(nodes.size());
  }

  // The part that a worker takes first.
  std::size_t home(int worker) const {
    if (parts.size() == 1) return 0;
    const std::size_t at = worker == 0 ? left : place[static_cast<std::size_t>(worker - 1)];
    return static_cast<std::size_t>(std::lower_bound(nodes.begin(), nodes.end(), processors[at].node) - nodes.begin());
  }

  void make_way() {
    const int here = sched_getcpu();
    if (here == caller_processor || processors.empty()) return;
    caller_processor = here;
    const auto mine =
        std::find_if(processors.begin(), processors.end(), [&](const Processor& p) { return p.id == here; });
    if (mine == processors.end()) return;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      if (processors[place[i]].core != mine->core) continue;
      std::swap(place[i], left);
      return pin(threads[i], processors[place[i]].id);
    }
  }

  void deal_out() {
    const auto count = static_cast<std::int64_t>(parts.size());
    for (std::int64_t p = 0; p < count; ++p) {
      Part& part = parts[static_cast<std::size_t>(p)];
      part.next.store(n * p / count, std::memory_order_relaxed);
      part.end = n * (p + 1) / count;
    }
  }

  void work(int worker) {
    const std::size_t first = home(worker);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[(first + i) % parts.size()];
      for (;;) {
        const std::int64_t begin = part.next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= part.end) break;
        call(body, begin, std::min(begin + grain, part.end), worker);
      }
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
    if (parts.size() > 1) use_near_memory();
    std::uint32_t seen = 0;
    for (;;) {
      spin([&] { return epoch.load(std::memory_order_acquire) != seen; });
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      if (!enter()) continue;
      work(worker);
      leave();
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : ThreadPool(n_threads, usable_processors()) {}

ThreadPool::ThreadPool(int n_threads, std::vector<Processor> processors) : state_(std::make_unique<State>()) {
  FATHOM_CHECK(n_threads >= 1, "a thread pool needs at least the caller's thread");
  State& s = *state_;
  s.place_threads(static_cast<std::size_t>(n_threads), std::move(processors));
  for (int i = 1; i < n_threads; ++i) {
    s.threads.emplace_back([&s, i] { s.worker_main(i); });
  }
  for (std::size_t i = 0; i < s.place.size(); ++i) pin(s.threads[i], s.processors[s.place[i]].id);
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_relaxed);
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& t : state_->threads) t.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }
int ThreadPool::parts() const { return static_cast<int>(state_->parts.size()); }

void ThreadPool::run(std::int64_t n, std::int64_t grain, Call call, const void* body) {
  FATHOM_CHECK(grain >= 1, "the grain of a parallel loop is at least 1");
  if (n <= 0) return;
  const std::lock_guard<std::mutex> one_at_a_time(state_->callers);
  State& s = *state_;
  if (s.threads.empty() || n <= grain) {
    for (std::int64_t begin = 0; begin < n; begin += grain) call(body, begin, std::min(begin + grain, n), 0);
    return;
  }
  s.make_way();
  s.call = call;
  s.body = body;
  s.n = n;
  s.grain = grain;
  s.deal_out();
  s.gate.store(0, std::memory_order_release);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.work(0);
  s.gate.fetch_or(State::kClosed, std::memory_order_acquire);
  spin([&] { return s.gate.load(std::memory_order_acquire) == State::kClosed; });
  for (std::uint32_t g = s.gate.load(std::memory_order_acquire); g != State::kClosed;
       g = s.gate.load(std::memory_order_acquire)) {
    s.gate.wait(g, std::memory_order_acquire);
  }
}

int usable_cores() {
  int cores = count_cores(usable_processors());
  std::ifstream groups("/proc/self/cgroup");
  const std::string text{std::istreambuf_iterator<char>(groups), {}};
  if (const double quota = cgroup_cores("/sys/fs/cgroup", text); quota > 0) {
    cores = std::min(cores, static_cast<int>(std::ceil(std::min(quota, 1e6))));
  }
  return std::max(cores, 1);
}

}  // namespace fathom
