// Packed experts for 1 to 64 tokens: products that read weights as fast as memory gives them.
#pragma once

#include "ops/cuda/context.h"
#include "ops/moe/experts.h"

namespace fathom::ops::cuda {

// Whether it was done: the routed experts are FP4, the shared one FP8, and there are no more than 64 tokens.
bool run_codes_few(Context& c, const Experts& op);

}  // namespace fathom::ops::cuda
