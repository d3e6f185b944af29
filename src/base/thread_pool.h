// ThreadPool: a fixed set of threads that share loops. Which thread does which part never changes a result: every
// output element is computed whole, by one thread, in an order that the element alone decides.
//
// One loop runs at a time (calls from several threads take turns). The calling thread works too, so a pool of 1 starts
// no thread at all. Workers spin briefly between loops, then sleep: a loop costs microseconds while a model is running
// and nothing while it is not.
//
// Where there are as many usable cores as threads, every worker is pinned to one of its own and keeps out of the
// caller's way: a system left to itself was seen to wake a worker on the caller's core and leave it there.
//
// On machines of several nodes every loop is cut into as many parts, and threads take from their own node's part before
// they help with others'. A loop over the rows of a weight thus has the same node read the same rows every time, and
// pages that a worker is the first to touch lie on its own node: those of a file not yet in the page cache come to lie
// where they are used, every expert and every other weight alike, whichever experts a token names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/topology.h"

namespace fathom {

class ThreadPool {
 public:
  // n_threads >= 1, the caller's thread included.
  explicit ThreadPool(int n_threads);
  // On these processors, in the order of read_processors(): the caller on the first, workers on the following.
  ThreadPool(int n_threads, std::vector<Processor> processors);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const;

  // How many nodes the threads are on: part p of a loop over [0, n) is [n * p / parts(), n * (p + 1) / parts()).
  int parts() const;

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
