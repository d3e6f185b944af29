// Tensor units: 16 x 16 bf16 numbers times 16 x 8, sums in f32. Lane (g, t) = (lane / 4, lane % 4) holds of A rows g
// and g + 8 (registers 0, 2 and 1, 3), of B column g, of C rows g and g + 8 in columns 2t and 2t + 1.
#pragma once

#include <cstdint>

#include "ops/cuda/numbers.cuh"

namespace fathom::ops::cuda {

// c += a b.
__device__ inline void multiply_tile(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
// Four 8 x 8 matrices; each lane points at one row of one of them.
__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_matrices_turned(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// Where a lane points for A, and, turned, for B given as 16 inputs x 16 columns ...
__device__ inline int matrix_row(int lane) { return lane % 16; }
__device__ inline int matrix_column(int lane) { return lane / 16 * 8; }
// ... and for B given as 16 columns x 16 inputs. In both, registers 0, 1 are columns 0-7, registers 2, 3 columns 8-15.
__device__ inline int matrix_b_row(int lane) { return lane % 8 + lane / 16 * 8; }
__device__ inline int matrix_b_column(int lane) { return lane / 8 % 2 * 8; }

// ---- Pairs of bf16 numbers.

// Of two floats that are bf16 numbers.
__device__ inline std::uint32_t pack_exact(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}
// Of any two floats, rounded to even.
__device__ inline std::uint32_t pack_rounded(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Products, rounded; adding -0 changes nothing.
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000U));
  return d;
}
// The greater of each and 0; a NaN gives 0.
__device__ inline std::uint32_t positive_pair(std::uint32_t a) {
  std::uint32_t d;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(0U));
  return d;
}

}  // namespace fathom::ops::cuda
