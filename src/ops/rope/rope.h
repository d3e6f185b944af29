// Rotary embedding of adjacent pairs in the last dims of a head, with YaRN for compressed layers. model.md 3.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

struct Yarn {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  std::int32_t original_positions = 0;  // 0: no YaRN
};

// The rope_dim/2 pair frequencies, each rounded to f32 where model.md 3.1 rounds: the published tables to the bit.
std::vector<float> rope_frequencies(double theta, std::int32_t rope_dim, const Yarn& yarn);

// cos and sin of fl32(position * f) for one position: the angle is an f32 product (model.md 3.1, "angle precision"),
// its cosine and sine are accurate. n frequencies.
void rope_angles(std::int32_t position, const float* frequencies, std::int64_t n, float* cos, float* sin);

// cos, sin [T, R/2] of a batch's positions; computed once a step for each of the two frequency tables.
struct RopeTable {
  const std::int32_t* positions = nullptr;  // [T]
  const float* frequencies = nullptr;       // [R/2]
  Mat<float> cos;
  Mat<float> sin;
};

// Which way pairs are turned: forward for queries and keys, inverse for attention outputs (model.md 4.4).
enum class Turn : std::uint8_t { kForward, kInverse };

// Rotates the last 2n of the `dim` values at x, in place.
void rotate(float* x, std::int64_t dim, const float* cos, const float* sin, std::int64_t n, Turn turn, Carrier carrier);

namespace ref {
void run(const RopeTable& op);
}

}  // namespace fathom::ops
