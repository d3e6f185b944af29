// Products of packed FP8 weights for 1 to 8 tokens.
#pragma once

#include <cstddef>
#include <span>

#include "ops/cuda/codes.h"

namespace fathom::ops::cuda {

inline constexpr std::size_t kFewJobs = 8;

// Whether this is for them: FP8, up to 8 tokens whose codes fit a block's shared memory.
bool takes_codes_few(const Weight& w, Mat<const float> x);

// Whether two such products can be in one launch: as many inputs, as many segments, scales of one type.
bool meet_in_codes_few(const Weight& a, const Weight& b);

// Up to kFewJobs products that meet, of the same inputs x, in one launch. Puts x through FP8 itself; Matmul::x is not read,
// and there is one group.
// others: products of BF16 matrices for the same number of tokens, to be computed beside, or none.
void run_codes_few(Context& c, const char* name, std::span<const Matmul> products, Mat<const float> x,
                   std::span<const Product> others = {});

}  // namespace fathom::ops::cuda
