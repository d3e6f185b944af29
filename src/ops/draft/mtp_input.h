// X'[t, c] = e[t] + h[t, c]: the input streams of the MTP block. model.md 10.1. Rounded once, to the carrier.
#pragma once

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

struct MtpInput {
  Mat<const float> e;  // [T, d], e_proj of the next token's embedding
  Mat<const float> h;  // [T*C, d], h_proj of every stream
  Mat<float> x;        // [T, C*d]
  Carrier carrier = Carrier::kF32;
};

namespace ref {
void run(const MtpInput& op);
}

}  // namespace fathom::ops
