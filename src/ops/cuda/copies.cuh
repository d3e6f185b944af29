// Copies from global into shared memory that a thread begins and waits for itself (cp.async), in groups.
//
// What is to be under way for long goes this way and not into registers: where the first of some loads is used the compiler
// waits for all that share its counter, and of counters there are six.
#pragma once

#include <cstdint>

namespace fathom::ops::cuda {

// 16 bytes, past L1.
__device__ inline void copy16(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ inline void copy4(std::uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
// Ends a group. Without copies it is one too, and has ended.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most the last kGroups groups are under way.
template <int kGroups>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace fathom::ops::cuda
