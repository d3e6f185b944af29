// How fast this machine multiplies and adds: the limit that prompts are held against, measured in the same run.
#pragma once

#include "base/thread_pool.h"

namespace fathom::ops {

// f32 operations per second, two for each fused multiply-add (on targets without it, for a product and a sum), of
// registers alone on all threads of the pool, by the instruction set that kernels use; the best of a few rounds. Takes
// a quarter of a second. Products of 8-bit integers, or of bf16 where the processor has them, may exceed it.
double measure_fma_peak(ThreadPool& pool);

}  // namespace fathom::ops
