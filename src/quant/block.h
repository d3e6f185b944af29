// Block quantisers: a power-of-two scale per block of consecutive channels. model.md 9.2, 9.5, 9.6.
#pragma once

#include <cstdint>
#include <span>

namespace fathom::quant {

inline constexpr int kActBlock = 128;     // activations in front of FP8 and FP4 weights
inline constexpr int kEntryBlock = 64;    // cache entries
inline constexpr int kFp4Block = 32;      // index queries and keys; also the scale block of FP4 weights
inline constexpr int kWeightBlock = 128;  // FP8 weights: 128 x 128

// The E8M0 code of the scale of one block of FP8 values: smallest power of two that brings max|x| (floored at 1e-4)
// to at most 448.
std::uint8_t fp8_block_scale(std::span<const float> x);

// The same for FP4: floored at 6 * 2^-126, at most 6. A block with a NaN gives 255, the NaN scale.
std::uint8_t fp4_block_scale(std::span<const float> x);

// Quantise and de-quantise in place, block by block; the last block may be short. The result is exact in bf16.
// A NaN stays a NaN (FP8: that element; FP4, which has no NaN: its block). Applying it twice changes nothing.
void fp8_round_trip(std::span<float> x, int block);
void fp4_round_trip(std::span<float> x);

// y = H x / sqrt(n), Sylvester order, in place; n a power of two. f32, butterfly strides 1, 2, 4, ... model.md 6.
void hadamard(std::span<float> x);

}  // namespace fathom::quant
