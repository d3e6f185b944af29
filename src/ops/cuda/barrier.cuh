// Barriers in shared memory (mbarrier, sm_90): they end a phase when the arrivals they were made for are there.
#pragma once

#include <cstdint>

namespace fathom::ops::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// By one thread, before the block's barrier.
__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for `bytes` of copies as well.
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Copies `bytes`, a multiple of 16 from and to multiples of 16, from global memory; `barrier` counts them.
__device__ inline void bulk_copy(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// The same from shared memory; the thread's bulk groups count it.
__device__ inline void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}
// Until the phase of this parity has ended: 0 for the first.
__device__ inline void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done; again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again%=; }" ::
          "r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace fathom::ops::cuda
