// Context: what every kernel launch of the plug-in needs. Only files that may see CUDA's headers include this.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "ops/kernel_choice.h"

namespace fathom::ops::cuda {

// The first failure of the device, kept. After it nothing more is launched: a failed context answers every call with
// the same error, and results would be void.
class Fault {
 public:
  bool set() const { return status_ != cudaSuccess; }
  // Keeps `status`, and what was being done, unless it is success or something failed before. `what` outlives the
  // fault.
  void note(cudaError_t status, const char* what) {
    if (status == cudaSuccess || set()) return;
    status_ = status;
    what_ = what;
  }
  cudaError_t status() const { return status_; }
  const char* what() const { return what_; }

 private:
  cudaError_t status_ = cudaSuccess;
  const char* what_ = "";
};

// Memory for the intermediate values of one operation at a time. It grows to what the largest needs; earlier, smaller
// blocks stay allocated, because recorded steps point into them.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  // At least `bytes` of device memory, aligned to 256, void of meaning; valid until the next call. nullptr after a
  // fault, which running out of memory is.
  std::byte* take(std::size_t bytes, Fault& fault);

 private:
  std::vector<void*> blocks_;
  std::size_t capacity_ = 0;  // of the last block
};

// A stream of its own for work that may run beside other work, with scratch memory of its own.
struct Branch {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;  // reached when what the branch needs is there
  cudaEvent_t end = nullptr;    // reached when its work is done
  Scratch scratch;
};

struct Context {
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  // Error: what the driver says.
  cudaError_t open();

  // Before a kernel's first launch: lets it have as much dynamic shared memory as there is. What a kernel may have is
  // the process's, not this context's: were it what a launch needs, contexts would take it from each other.
  void prepare(const void* kernel, const char* name);

  // Backend::beside and meet.
  void beside(const std::function<void()>& work);
  void meet();

  cudaStream_t stream = nullptr;  // where kernels go: the trunk's, within beside() the branch's
  Scratch* scratch = nullptr;     // that stream's
  Fault fault;
  int multiprocessors = 1;
  int capability = 80;          // 10 * major + minor
  int hc_clusters = -1;         // of the hyper-connections' kernel, that run at once; -1: not asked yet
  KernelChoice kernels;         // the leaves to use in place of portable kernels
  bool early_launch = false;    // kernels may begin before the one before them has ended (launch.cuh)
  bool follows_kernel = false;  // what the stream was given last is a kernel
  bool blame = false;           // wait for every kernel, so that a fault is put down to the one that caused it
  std::uint64_t launches = 0;
  const char* last = "nothing";  // the kernel launched last

 private:
  Branch trunk_;
  std::set<const void*> prepared_;
  std::array<Branch, 4> branches_;
  std::size_t used_ = 0;  // branches since the last meet()
};

}  // namespace fathom::ops::cuda
