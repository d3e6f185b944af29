// The one place where kernels are launched: every launch is checked, and a failure carries the kernel's name.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ops/cuda/context.h"

namespace fathom::ops::cuda {

inline int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// A kernel may begin while the one before it in its stream still runs (programmatic dependent launch, sm_90 on). Every
// kernel calls await_previous() before it touches memory that another kernel reads or writes; before that it may read
// weights, which no kernel writes: then it calls allow_next(), which lets the next kernel come that far, and
// await_results(), which is the wait itself.
__device__ inline void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void await_results() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void await_previous() {
  allow_next();
  await_results();
}

// Launches `kernel` on the context's stream. A grid without blocks is legal and does nothing. `shared` is dynamic
// shared memory in bytes. `cluster` blocks in a row form a cluster, where there are clusters.
template <class... Parameters, class... Arguments>
void launch_clusters(Context& c, const char* name, void (*kernel)(Parameters...), dim3 grid, int cluster, int threads,
                     std::size_t shared, const Arguments&... arguments) {
  if (c.fault.set() || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  FATHOM_CHECK(grid.y <= 65535 && grid.z <= 65535, "a grid within the device's limits");
  c.prepare(reinterpret_cast<const void*>(kernel), name);
  if (c.fault.set()) return;
  c.last = name;
  ++c.launches;
  cudaLaunchAttribute attributes[3] = {};
  unsigned n_attributes = 0;
  // The split between shared memory and L1. A multiprocessor that has to change it waits until it is empty, and what
  // streams weights has as much under way as L1 has room for: half each, except where blocks want much shared memory.
  constexpr std::size_t kMuch = std::size_t{40} << 10;
  if (shared <= kMuch) {
    cudaLaunchAttribute& split = attributes[n_attributes++];
    split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    split.val.sharedMemCarveout = 50;
  }
  if (c.follows_kernel && c.early_launch) {
    cudaLaunchAttribute& early = attributes[n_attributes++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& size = attributes[n_attributes++];
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    if (cluster > 8)
      c.fault.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
  }
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = shared;
  how.stream = c.stream;
  how.attrs = attributes;
  how.numAttrs = n_attributes;
  c.fault.note(cudaLaunchKernelEx(&how, kernel, static_cast<Parameters>(arguments)...), name);
  c.follows_kernel = true;
  if (c.blame && !c.fault.set()) c.fault.note(cudaStreamSynchronize(c.stream), name);
}

template <class... Parameters, class... Arguments>
void launch(Context& c, const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t shared,
            const Arguments&... arguments) {
  launch_clusters(c, name, kernel, grid, 1, threads, shared, arguments...);
}

// Hands out pieces of scratch memory: first the sizes, then the memory.
class Pieces {
 public:
  // The offset of `count` values.
  template <class T>
  std::size_t add(std::int64_t count) {
    const std::size_t at = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace fathom::ops::cuda
