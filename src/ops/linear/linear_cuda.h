// What the two files of linear products share: linear_cuda.cu for weights as they are in the checkpoint and
// linear_codes_cuda.cu for packed ones (cuda/codes.h).
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "ops/cuda/matmul.h"
#include "ops/linear/linear.h"

namespace fathom::ops::cuda {

// Products of few tokens for one launch, FP8 weights first. Inputs that are made into planes before it go to `base`,
// device memory of list_bytes aligned to 256.
std::size_t list_bytes(std::span<const Linear> ops);
std::span<const Product> list_of(Context& c, std::span<const Linear> ops, std::byte* base,
                                 std::array<Product, kListJobs>& products);

// Products of packed weights, at least one.
void run_packed(Context& c, std::span<const Linear> ops);
// The same in one launch with others, which a list takes. False, and nothing done, where they do not meet: other than a
// few tokens, nothing packed, or others than of BF16.
bool run_packed_with(Context& c, std::span<const Linear> ops, std::span<const Linear> others);

}  // namespace fathom::ops::cuda
