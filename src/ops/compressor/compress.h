// The compressor: every `ratio` tokens become one entry, pooled per channel by a softmax over positions. model.md 5.
//
// Takes the projections of this step's tokens, pools every window that ends in this step (rows before the step from the
// ring, the others from kv and score), finishes the entry (norm, rotation at the window's first position, quantisation)
// and stores it in its page; then keeps the rows that later entries need in the ring. Entry w pools
//   ratio 128 (coff 1): tokens 128w .. 128w+127, all columns;
//   ratio 4 (coff 2): tokens 4w-4 .. 4w-1 with their first Dc columns, tokens 4w .. 4w+3 with their last Dc.
// The result does not depend on how the tokens were cut into steps.
#pragma once

#include "ops/batch.h"
#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

// How an entry is finished (model.md 5.2).
enum class EntryKind : std::uint8_t {
  kMain,   // FP8 in blocks of 64 on the dims that are not rotated
  kIndex,  // Hadamard over all dims, then FP4 in blocks of 32
};

struct Compress {
  Mat<float> kv;     // [T, coff*Dc] key/value projections
  Mat<float> score;  // [T, coff*Dc] score projections; void afterwards (the position bias may be added in place)
  const float* ape = nullptr;          // [ratio, coff*Dc]
  const float* norm_weight = nullptr;  // [Dc]
  const float* frequencies = nullptr;  // [R/2], the compressed layers' table
  std::int32_t rope_dim = 0;           // R
  EntryKind kind = EntryKind::kMain;
  float eps = 0;
  bool quantise = false;
  Carrier carrier = Carrier::kF32;
  Batch batch;
  CompressorRing ring;
  EntryPages entries;  // codec.dim = Dc
};

namespace ref {
void run(const Compress& op);
}

}  // namespace fathom::ops
