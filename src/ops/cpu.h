// The CPU backend from within: the operations as Highway kernels shared out over threads. For *_cpu.cc and their tests.
//
// Every operation here takes Carrier::kF32; backend_cpu.cc sends official-bf16 to the plain reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "ops/backend.h"

namespace fathom::ops::cpu {

// Memory of one operation: taken piece by piece, all given back by reset(). It grows to the largest operation seen and
// stays, so that a running model allocates nothing. What is taken is not initialised.
class Scratch {
 public:
  // Forgets everything taken; where the last operation needed several blocks, makes one of them.
  void reset();

  // n values of a trivial type, aligned to 64 bytes.
  template <class T>
  T* take(std::int64_t n) {
    return reinterpret_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T)));
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    std::size_t bytes = 0;
  };
  std::byte* take_bytes(std::size_t n);
  void add_block(std::size_t bytes);

  std::vector<Block> blocks_;
  std::size_t used_ = 0;  // of the last block
};

struct Context {
  ThreadPool& pool;
  Scratch& scratch;
  bool bf16_dot = true;  // CpuOptions
};

void run(const Embed& op, Context& ctx);
void run(const Linear& op, Context& ctx);
void run(const RmsNorm& op, Context& ctx);
void run(const RopeTable& op, Context& ctx);
void run(const HcPre& op, Context& ctx);
void run(const HcPost& op, Context& ctx);
void run(const HcHead& op, Context& ctx);
void run(const StreamMean& op, Context& ctx);
void run(const QueryHeads& op, Context& ctx);
void run(const WindowEntries& op, Context& ctx);
void run(const SparseAttention& op, Context& ctx);
void run(const StoreWindow& op, Context& ctx);
void run(const Compress& op, Context& ctx);
void run(const IndexQuery& op, Context& ctx);
void run(const IndexSelect& op, Context& ctx);
void run(const Route& op, Context& ctx);
void run(const Experts& op, Context& ctx);
void run(const MtpInput& op, Context& ctx);
void run(const Choose& op, Context& ctx);

// Rows per turn of a loop over n rows that cost about `cost` multiply-adds each: few turns for small loops (handing one
// out costs about a microsecond), several per thread for large ones, always a multiple of `step`.
std::int64_t grain(std::int64_t n, std::int64_t cost, std::int64_t step, const Context& ctx);

}  // namespace fathom::ops::cpu
