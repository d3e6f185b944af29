// Index scores and their selection where queries and keys are FP4 numbers and scores bf16 numbers (`official-bf16`).
#pragma once

#include <cstdint>

#include "ops/cuda/context.h"
#include "ops/indexer/index_select.h"

namespace fathom::ops::cuda {

constexpr int kIndexDim = 128;

// Scores in 16 bits that rise as they do: 0 for NaN, both zeros alike. Row r is token t0 + r of the step.
struct ScoreKeys {
  std::uint16_t* data;
  std::int64_t ld;  // a multiple of 8
  std::int32_t t0;
  std::int32_t tokens;
};

inline bool on_tensor_units(const IndexSelect& op) {
  const auto aligned = [](const void* p, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
  };
  return op.carrier == Carrier::kBf16 && op.keys.codec.format == quant::EntryFormat::kFp4 &&
         op.q.cols == std::int64_t{op.heads} * kIndexDim && aligned(op.q.data, op.q.ld) && op.keys.offset % 4 == 0;
}

// The scores of tokens with more entries than are selected; other rows are left as they are.
void score_entries(Context& c, const IndexSelect& op, const ScoreKeys& scores);
// All rows of `selected` for the tokens of `scores`.
void select_entries(Context& c, const IndexSelect& op, const ScoreKeys& scores);

}  // namespace fathom::ops::cuda
