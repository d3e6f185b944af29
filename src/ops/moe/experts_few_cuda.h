// Experts for a few tokens: two launches at batch 1, each with the routed experts and the shared one.
#pragma once

#include "ops/cuda/context.h"
#include "ops/moe/experts.h"

namespace fathom::ops::cuda {

// Runs the operation and returns true, or returns false where it is not for it: more tokens, other formats, f32 between
// operations. Results are the same to the bit as those of run(c, op) for the same tokens among others.
bool run_few(Context& c, const Experts& op);

}  // namespace fathom::ops::cuda
