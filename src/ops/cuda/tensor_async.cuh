// Hopper's asynchronous matrix instructions: 64 x 16 bf16 numbers times 16 x 64, by four warps, of which each has 16
// rows of the first and of the result as tensor.cuh says. They give the bits of mma.sync. Code for other GPUs never
// gets here.
//
// Operands in shared memory lie in tiles of 64 rows of 128 bytes, aligned to 1,024 bytes, of which the 16-byte piece p
// of row r is at place p ^ (r % 8). A tile is read along its rows (64 rows x 16 inputs: steps of 32 bytes) or, turned,
// across (16 inputs x 64 columns: steps of 16 rows).
#pragma once

#include <cstdint>

namespace fathom::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FATHOM_ASYNC_PRODUCTS 1
#else
#define FATHOM_ASYNC_PRODUCTS 0
#endif

#if FATHOM_ASYNC_PRODUCTS

#define FATHOM_RESULTS_32                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define FATHOM_REGISTERS_32(d)                                                                                    \
  "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7]), \
      "+f"((d)[8]), "+f"((d)[9]), "+f"((d)[10]), "+f"((d)[11]), "+f"((d)[12]), "+f"((d)[13]), "+f"((d)[14]),      \
      "+f"((d)[15]), "+f"((d)[16]), "+f"((d)[17]), "+f"((d)[18]), "+f"((d)[19]), "+f"((d)[20]), "+f"((d)[21]),    \
      "+f"((d)[22]), "+f"((d)[23]), "+f"((d)[24]), "+f"((d)[25]), "+f"((d)[26]), "+f"((d)[27]), "+f"((d)[28]),    \
      "+f"((d)[29]), "+f"((d)[30]), "+f"((d)[31])

constexpr int kTileBytes = 64 * 128;
constexpr std::uint64_t kAlongStep = 32 >> 4;
constexpr std::uint64_t kAcrossStep = (16 * 128) >> 4;

// A tile, for the instruction.
__device__ inline std::uint64_t tile_at(const void* shared) {
  constexpr std::uint64_t kGroup = 1024 >> 4;  // from 8 rows to the next 8
  constexpr std::uint64_t kSwizzle128 = 1;
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3ffffU) >> 4 | kGroup << 32 | std::uint64_t{1} << 16 | kSwizzle128 << 62;
}

// Before the first of a row of instructions, which read registers written since the last.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last kPending rows of them are done; d was the result of those that are.
template <int kPending = 0>
__device__ inline void await_products(float (&d)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : FATHOM_REGISTERS_32(d) : "n"(kPending) : "memory");
}

// d = a b, plus d where add is not 0; a is read along its rows, b too or, where kTurned is 1, across.
template <int kTurned>
__device__ inline void multiply_shared(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FATHOM_RESULTS_32 "}, %32, %33, p, 1, 1, 0, %35; }"
      : FATHOM_REGISTERS_32(d)
      : "l"(a), "l"(b), "r"(add), "n"(kTurned));
}

// The same with a in registers.
template <int kTurned>
__device__ inline void multiply_registers(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FATHOM_RESULTS_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
      : FATHOM_REGISTERS_32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTurned));
}

#endif

}  // namespace fathom::ops::cuda
