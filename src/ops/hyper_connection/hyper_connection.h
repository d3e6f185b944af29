// Manifold-constrained hyper-connections: the residual is C streams, mixed before and after every sub-layer by weights
// that depend on the token. model.md 2.
//
// Streams are [T, C*d], stream-major: stream c of token t is row t, columns [c*d, (c+1)*d). All mixing arithmetic is
// f32 or wider; only u, the layer input and the streams are rounded, to the carrier. Rows are independent; T = 0 is a
// no-op.
#pragma once

#include <cstdint>

#include "ops/numerics.h"
#include "tensor/view.h"

namespace fathom::ops {

// The learned part of one site (two sites a layer). Row-major f32.
struct HyperConnection {
  const float* fn = nullptr;     // [2C + C*C, C*d]: pre, post, comb
  const float* base = nullptr;   // [2C + C*C]
  const float* scale = nullptr;  // [3]: pre, post, comb
};

// model.md 2.1, 2.2: weighs the streams into one sub-layer input, and says how to put the result back.
// x = RMSNorm(u) where norm_weight is given, else u itself.
struct HcPre {
  Mat<const float> streams;  // [T, C*d]
  HyperConnection site;
  const float* norm_weight = nullptr;  // [d] or null
  Mat<float> x;                        // [T, d]
  Mat<float> post;                     // [T, C]
  Mat<float> comb;                     // [T, C*C], row-major i, j
  std::int32_t sinkhorn_iters = 20;
  float norm_eps = 0;  // of the norm over all streams and of the sub-layer norm
  float hc_eps = 0;
  Carrier carrier = Carrier::kF32;
};

// model.md 2.3: out[j] = post[j] * y + sum_c comb[c][j] * streams[c]. `out` may be `streams` itself.
struct HcPost {
  Mat<const float> y;        // [T, d]
  Mat<const float> streams;  // [T, C*d], the input of the HcPre of this site
  Mat<const float> post;     // [T, C]
  Mat<const float> comb;     // [T, C*C]
  Mat<float> out;            // [T, C*d]
  Carrier carrier = Carrier::kF32;
};

// model.md 2.5: the HcPost of one site and the HcPre of the next in one. pre.streams is post.out; the same bytes as one
// after the other.
struct HcPostPre {
  HcPost post;
  HcPre pre;
};

// model.md 2.4: the streams weighed into one vector at the end of the trunk or of a draft module.
// fn [C, C*d], base [C], scale [1]. y = RMSNorm of it where norm_weight is given.
struct HcHead {
  Mat<const float> streams;
  HyperConnection site;
  const float* norm_weight = nullptr;
  Mat<float> y;  // [T, d]
  float norm_eps = 0;
  float hc_eps = 0;
  Carrier carrier = Carrier::kF32;
};

// y = mean over the streams: what DSpark taps from a trunk layer (model.md 10.2). y may be columns of a wider matrix.
struct StreamMean {
  Mat<const float> streams;  // [T, C*d]
  Mat<float> y;              // [T, d]
  Carrier carrier = Carrier::kF32;
};

// The 2C + C*C mixing numbers of one token made into weights: pre [C], post [C], comb [C*C] (model.md 2.1, 2.2).
// `mixes` are already scaled by the norm. Exposed for the golden vectors; every HcPre does this.
void split_sinkhorn(const float* mixes, const HyperConnection& site, std::int32_t streams, std::int32_t iters,
                    float hc_eps, float* pre, float* post, float* comb);

namespace ref {
void run(const HcPre& op);
void run(const HcPost& op);
void run(const HcHead& op);
void run(const StreamMean& op);
}  // namespace ref

}  // namespace fathom::ops
