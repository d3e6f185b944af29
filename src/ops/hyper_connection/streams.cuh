// What the kernels of the hyper-connections share. Sums run in one order in all of them, whoever computes and however
// many tokens there are: over four neighbouring columns of every stream by a lane, over 128 columns by the butterfly of
// a warp (a slice), over every fourth slice ascending, over those four.
#pragma once

#include "ops/cuda/row.cuh"
#include "ops/hyper_connection/hyper_connection.h"

namespace fathom::ops::cuda {

struct Context;

inline constexpr int kSlice = 4 * kWarp;  // columns of every stream in a slice
inline constexpr int kMostStreams = 4;
inline constexpr int kMostMixes = kMostStreams * (2 + kMostStreams);

// The numbers that put a sub-layer's output back into n streams.
template <int n>
struct PutBack {
  alignas(16) float post[n];
  alignas(16) float comb[n][n];

  __device__ void load(const HcPost& op, std::int64_t t) {
    const float* p = op.post.data + t * op.post.ld;
    const float* m = op.comb.data + t * op.comb.ld;
    if constexpr (n == 4) {
      *reinterpret_cast<float4*>(post) = load4(p);
#pragma unroll
      for (int c = 0; c < n; ++c) *reinterpret_cast<float4*>(comb[c]) = load4(m + c * n);
    } else {
      for (int j = 0; j < n; ++j) post[j] = p[j];
      for (int e = 0; e < n * n; ++e) comb[e / n][e % n] = m[e];
    }
  }
  // Four columns of the output and of all streams; v gets the result.
  __device__ void apply(float4 y, float4 (&v)[n], Carrier carrier) const {
    float4 out[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out[j] = scaled(post[j], y);
#pragma unroll
      for (int c = 0; c < n; ++c) out[j] = fma4(comb[c][j], v[c], out[j]);
    }
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = carry4(out[j], carrier);
  }
};

__device__ inline float reciprocal(float x) {  // within an ulp
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float sigmoid(float x) { return reciprocal(1.0F + expf(-x)); }

// From a mixing number and its scale and base: the weight of a stream, and how much of an output goes to it.
__device__ inline float weight_of(float mix, float scale, float base, float hc_eps) {
  return sigmoid(mix * scale + base) + hc_eps;
}
__device__ inline float post_of(float mix, float scale, float base) { return 2.0F * sigmoid(mix * scale + base); }

// Sinkhorn by one warp: lane i*n + j gives the logit of element i, j and gets its value.
//
// The matrix is always k_ij r_i c_j of the softmax k. A turn divides the rows by their sums and eps: r_i becomes
// r_i / (r_i sum_j k_ij c_j + eps), so 1 / r_i becomes sum_j k_ij c_j + eps / r_i; and so the columns. Every lane does
// all of it: forty exchanges of values would take longer than the sums.
template <int n>
__device__ float sinkhorn(float logit, int iters, float eps) {
  const int lane = threadIdx.x % kWarp;
  const int i = min(lane / n, n - 1);
  const int j = lane % n;
  float top = logit;
  for (int q = 0; q < n; ++q) top = fmaxf(top, __shfl_sync(kAll, logit, i * n + q));
  const float e = expf(logit - top);
  float sum = 0;
  for (int q = 0; q < n; ++q) sum += __shfl_sync(kAll, e, i * n + q);
  const float mine = e * reciprocal(sum) + eps;
  float k[n][n];
  float r[n];
  float c[n];
  float inverse_r[n];
  float inverse_c[n];
#pragma unroll
  for (int a = 0; a < n; ++a) {
    r[a] = c[a] = inverse_r[a] = inverse_c[a] = 1;
#pragma unroll
    for (int b = 0; b < n; ++b) k[a][b] = __shfl_sync(kAll, mine, a * n + b);
  }
  const auto turn_columns = [&] {
#pragma unroll
    for (int b = 0; b < n; ++b) {
      inverse_c[b] *= eps;
#pragma unroll
      for (int a = 0; a < n; ++a) inverse_c[b] = fmaf(k[a][b], r[a], inverse_c[b]);
      c[b] = reciprocal(inverse_c[b]);
    }
  };
  turn_columns();
  for (int turn = 1; turn < iters; ++turn) {
#pragma unroll
    for (int a = 0; a < n; ++a) {
      inverse_r[a] *= eps;
#pragma unroll
      for (int b = 0; b < n; ++b) inverse_r[a] = fmaf(k[a][b], c[b], inverse_r[a]);
      r[a] = reciprocal(inverse_r[a]);
    }
    turn_columns();
  }
  float r_mine = r[0];
  float c_mine = c[0];
#pragma unroll
  for (int a = 1; a < n; ++a) {
    r_mine = i == a ? r[a] : r_mine;
    c_mine = j == a ? c[a] : c_mine;
  }
  return mine * r_mine * c_mine;
}

// HcPre for few tokens of 4 streams of up to 4096 columns, `post` before it unless null, in one launch. False: this
// device or these shapes are not for it, and nothing was done.
bool run_pre_by_clusters(Context& c, const HcPre& op, const HcPost* post);

}  // namespace fathom::ops::cuda
