// X[t, c, :] = table[ids[t]] for each of the C residual streams. model.md 1.
#pragma once

#include "ops/weight.h"
#include "tensor/view.h"

namespace fathom::ops {

struct Embed {
  const std::int32_t* ids = nullptr;  // [T], each in [0, table.rows): whoever accepts ids from outside has checked
  Weight table;                       // [V, d], bf16 or f32
  std::int32_t streams = 1;           // C
  Mat<float> x;                       // [T, C*d]
};

namespace ref {
void run(const Embed& op);
}

}  // namespace fathom::ops
