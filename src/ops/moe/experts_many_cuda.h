// Experts whose weights are packed for codes (cuda/codes.h), with many tokens each.
#pragma once

#include "ops/cuda/context.h"
#include "ops/moe/experts.h"

namespace fathom::ops::cuda {

// False, and nothing is done, where there are too few tokens.
bool run_many(Context& c, const Experts& op);

}  // namespace fathom::ops::cuda
