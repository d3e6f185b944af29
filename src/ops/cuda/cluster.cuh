// Clusters of blocks (sm_90 on): they run at the same time and write into each other's shared memory.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace fathom::ops::cuda {

#if __CUDA_ARCH__ >= 900
// A barrier over all threads of the cluster in two halves: what was written before the first is seen after the second.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// The first half where nothing but the making of Arrivals went before.
__device__ inline void arrive_at_cluster_early() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Where block `rank` of the cluster has what this one has at p.
__device__ inline std::uint32_t at_rank(const void* p, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}

// Counts the bytes that other blocks write into this one's shared memory, again and again.
class Arrivals {
 public:
  // By one thread, before the cluster's first barrier.
  __device__ void make() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&state_)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // By one thread, once a turn: how many bytes this turn brings. Some may be there already.
  __device__ void expect(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state_)), "r"(bytes)
                 : "memory");
  }
  // Waits for the bytes of a turn; turns count from 0.
  __device__ void await(std::uint32_t turn) {
    asm volatile(
        "{\n .reg .pred done;\n again:\n"
        " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @!done bra again;\n}" ::"r"(
            shared_address(&state_)),
        "r"(turn & 1)
        : "memory");
  }
  // Copies from global memory to here, and counts the bytes; they and the addresses are whole sixteens.
  __device__ void copy(void* to, const void* from, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&state_))
                 : "memory");
  }
  // Writes what block `rank` has where this block has `own`, and counts it there.
  __device__ void send(float* own, float value, int rank) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(at_rank(own, rank)),
                 "r"(__float_as_uint(value)), "r"(at_rank(&state_, rank))
                 : "memory");
  }
  __device__ void send(float4* own, float4 value, int rank) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     at_rank(own, rank)),
                 "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
                 "r"(__float_as_uint(value.w)), "r"(at_rank(&state_, rank))
                 : "memory");
  }

 private:
  std::uint64_t state_;
};
#endif

// How many clusters of `blocks` blocks, more than 8 if need be, of a kernel run at the same time; 0: this device or
// this build has none.
template <class... Parameters>
int clusters_that_fit(Context& c, void (*kernel)(Parameters...), int blocks, int threads, std::size_t shared) {
  cudaFuncAttributes code{};
  if (c.capability < 90 || cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90) return 0;
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(blocks));
  how.blockDim = dim3(static_cast<unsigned>(threads));
  how.dynamicSmemBytes = shared;
  how.attrs = &size;
  how.numAttrs = 1;
  int fit = 0;
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  }
  if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&fit, kernel, &how);
  if (status == cudaSuccess) return fit;
  static_cast<void>(cudaGetLastError());
  return 0;
}

}  // namespace fathom::ops::cuda
