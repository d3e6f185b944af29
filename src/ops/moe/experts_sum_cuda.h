// The last step of experts: what each computed for a token, added up.
#pragma once

#include <cstdint>

#include "ops/cuda/context.h"
#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops::cuda {

// y[t] = the routed results in order of the experts, then the shared one. results [T*k + T, d]: the sorted choices, choice
// (t, j) at place[t * k + j], or at t * k + j where place is null, then the tokens.
void sum_experts(Context& c, const float* results, const std::int32_t* place, int k, Mat<float> y, Carrier carrier);

}  // namespace fathom::ops::cuda
