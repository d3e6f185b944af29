// ThreadPool: a fixed set of threads that share loops. Which thread does which part never changes a result: every
// output element is computed whole, by one thread, in an order that the element alone decides.
//
// One loop runs at a time (calls from several threads take turns). The calling thread works too, so a pool of 1 starts
// no thread at all. Workers spin briefly between loops, then sleep: a loop costs microseconds while a model is running
// and nothing while it is not.
//
// Where there are as many usable cores as threads, every worker is pinned to one of its own and keeps out of the
// caller's way: a system left to itself was seen to wake a worker on the caller's core and leave it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fathom {

class ThreadPool {
 public:
  // n_threads >= 1, the caller's thread included.
  explicit ThreadPool(int n_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const;

  // Calls body(begin, end, worker) over disjoint ranges that cover [0, n), each at most `grain` long (grain >= 1), with
  // 0 <= worker < size() naming the thread; returns when all are done. Ranges are handed out on demand.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    run(
        n, grain,
        [](const void* b, std::int64_t begin, std::int64_t end, int worker) {
          (*static_cast<const Body*>(b))(begin, end, worker);
        },
        &body);
  }

 private:
  using Call = void (*)(const void* body, std::int64_t begin, std::int64_t end, int worker);
  void run(std::int64_t n, std::int64_t grain, Call call, const void* body);

  struct State;
  std::unique_ptr<State> state_;
};

// Threads worth using here: the cores this process may run on (affinity and cgroup quota respected; a core counts once,
// however many threads of its own it has), at least 1.
int usable_cores();

}  // namespace fathom
