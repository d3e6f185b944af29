// Products of packed FP8 weights for 9 to 64 tokens.
#pragma once

#include <span>

#include "ops/cuda/codes.h"

namespace fathom::ops::cuda {

inline constexpr std::size_t kSomeJobs = 8;

// Whether this is for them: FP8, and a segment of that many tokens' codes fits a block's shared memory.
bool takes_codes_some(const Weight& w, std::int64_t rows);

// Up to kSomeJobs products of the same codes and the same number of segments, in one launch.
void run_codes_some(Context& c, const char* name, std::span<const CodesProduct> products);

}  // namespace fathom::ops::cuda
