// Two ways of reading memory once, for stream_read and l2_prefetch.
#pragma once

#include "microbench.cuh"

namespace fathom::microbench {

__device__ inline void end_of_previous(bool early) {
  if (early) asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void let_next_begin(bool early) {
  if (early) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// 16-byte loads, kAhead of them under way in every thread.
template <int kAhead>
__global__ void __launch_bounds__(256)
    read_plain(const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
  let_next_begin(early);
  const std::size_t threads = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t n = bytes / 16;
  std::uint32_t seen = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n; i += kAhead * threads) {
    uint4 v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      v[j] = {};
      if (i + j * threads >= n) continue;
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w)
                   : "l"(from + 16 * (i + j * threads)));
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) seen ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  end_of_previous(early);
  if (seen == 0x12345678U) *sink = seen;
}

constexpr int kPiece = 8192;
__device__ inline void wait_for(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{ .reg .pred p; again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again%=; }" ::"r"(
          barrier),
      "r"(phase)
      : "memory");
}

// One thread keeps kRing copies of kPiece bytes under way, all threads look at what came.
template <int kRing>
__global__ void __launch_bounds__(256) read_bulk(const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
  extern __shared__ __align__(128) char ring[];
  __shared__ std::uint64_t full[kRing];
  const auto address = [](const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); };
  if (threadIdx.x == 0) {
    for (auto& f : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&f)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  let_next_begin(early);
  const std::size_t pieces = bytes / kPiece;
  const auto ask = [&](std::size_t i) {  // the i-th of this block
    const std::size_t piece = blockIdx.x + i * gridDim.x;
    if (piece >= pieces || threadIdx.x != 0) return;
    const std::uint32_t barrier = address(&full[i % kRing]);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kPiece) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(ring + i % kRing * kPiece)),
                 "l"(from + piece * kPiece), "r"(kPiece), "r"(barrier)
                 : "memory");
  };
  for (int i = 0; i < kRing; ++i) ask(i);
  std::uint32_t seen = 0;
  for (std::size_t i = 0; blockIdx.x + i * gridDim.x < pieces; ++i) {
    wait_for(address(&full[i % kRing]), i / kRing % 2);
    const auto* piece = reinterpret_cast<const uint4*>(ring + i % kRing * kPiece);
    for (int j = threadIdx.x; j < kPiece / 16; j += 256) seen ^= piece[j].x ^ piece[j].y ^ piece[j].z ^ piece[j].w;
    __syncthreads();
    ask(i + kRing);
  }
  end_of_previous(early);
  if (seen == 0x12345678U) *sink = seen;
}

struct Reading {
  const char* name;
  void (*launch)(cudaStream_t, const char*, std::size_t, std::uint32_t*, bool early);
};
inline constexpr Reading kReadings[] = {
    {"4 loads of 16 B a thread, 4 blocks an SM",
     [](cudaStream_t s, const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
       launch(s, {.blocks = 528, .early = early}, read_plain<4>, from, bytes, sink, early);
     }},
    {"8 loads of 16 B a thread, 2 blocks an SM",
     [](cudaStream_t s, const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
       launch(s, {.blocks = 264, .early = early}, read_plain<8>, from, bytes, sink, early);
     }},
    {"bulk ring of 12 x 8 KB, 1 block an SM",
     [](cudaStream_t s, const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
       launch(s, {.blocks = 132, .shared = 12 * kPiece, .early = early}, read_bulk<12>, from, bytes, sink, early);
     }},
    {"bulk ring of 12 x 8 KB, 2 blocks an SM",
     [](cudaStream_t s, const char* from, std::size_t bytes, std::uint32_t* sink, bool early) {
       launch(s, {.blocks = 264, .shared = 12 * kPiece, .early = early}, read_bulk<12>, from, bytes, sink, early);
     }},
};

}  // namespace fathom::microbench
