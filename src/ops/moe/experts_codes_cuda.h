// Experts whose weights, of the routed ones and the shared one, are packed for codes (cuda/codes.h).
#pragma once

#include "ops/cuda/context.h"
#include "ops/moe/experts.h"

namespace fathom::ops::cuda {

void run_codes(Context& c, const Experts& op);

}  // namespace fathom::ops::cuda
