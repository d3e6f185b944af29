// A shape of bf16 wgmma that the product does not use: 8 tokens.
#pragma once

#include "ops/cuda/wgmma.cuh"

namespace fathom::ops::cuda {
#if FATHOM_WGMMA

template <>
struct Wgmma<8> {
  static __device__ void run(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t tokens, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %9, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens), "r"(add));
  }
};

#endif
}  // namespace fathom::ops::cuda
