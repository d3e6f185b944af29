// Experts for more tokens than a few, of which each has a few: batches of 9 to some hundred.
#pragma once

#include "ops/cuda/context.h"
#include "ops/moe/experts.h"

namespace fathom::ops::cuda {

// Runs the operation and returns true, or returns false where it is not for it: other formats, more tokens an expert,
// f32 between operations, another GPU. Results are those of run(c, op) to the bit.
bool run_some(Context& c, const Experts& op);

}  // namespace fathom::ops::cuda
