// Choose: a token for each row of logits, where the logits are. The likeliest, or the winner of a race against counted
// noise (noise.h), which is distributed as the softmax at the row's temperature. Whatever else a request may ask of its
// sampling wants the row itself. kernels.md 2.14.
//
// What is chosen depends on the row, its rule and nothing else; every backend chooses the same.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace fathom::ops {

// Below 0: nothing is chosen from this row, which costs next to nothing.
inline constexpr float kChosenElsewhere = -1;

struct ChoiceRule {
  std::uint64_t key = 0;                 // of the noise
  float temperature = kChosenElsewhere;  // 0: the likeliest, the lowest id among equals
  std::int32_t unused = 0;               // no byte of what is copied to a device is void
};

// Instead of an id: nothing was asked for, or the row holds NaN or +inf, or nothing but -inf.
inline constexpr std::int32_t kNoChoice = -1;

struct Choose {
  Mat<const float> logits;            // [rows, V]
  const ChoiceRule* rules = nullptr;  // [rows]
  std::int32_t* chosen = nullptr;     // [rows], each in [0, V) or kNoChoice
};

namespace ref {
void run(const Choose& op);
}

}  // namespace fathom::ops
