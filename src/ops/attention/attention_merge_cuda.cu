// Adds the sums that blocks left of a token's parts or spans (attention_mma.cuh), and finishes the token.
#include <algorithm>

#include "ops/attention/attention_mma.cuh"
#include "ops/cuda/planes.cuh"

namespace fathom::ops::cuda {
namespace {

// How 4 neighbouring dims of a token are turned back; those that are not rotated are not.
struct Turn {
  float cos[2];
  float sin[2];

  __device__ Turn(const SparseAttention& op, std::int64_t t, int dim) : cos{1, 1}, sin{0, 0} {
    if (dim < kMmaPlain) return;
    const int j = (dim - kMmaPlain) / 2;
    for (int i = 0; i < 2; ++i) {
      cos[i] = op.cos.data[t * op.cos.ld + j + i];
      sin[i] = -op.sin.data[t * op.sin.ld + j + i];
    }
  }
};

// Writes 4 neighbouring dims of one head, bf16 numbers in the order of shared memory: put right and turned back. A warp
// has a block of planes.
__device__ void write_dims(const SparseAttention& op, std::uint16_t* planes, std::int64_t t, int h, int dim,
                           const Turn& turn, float4 v) {
  if (dim < kMmaPlain) {
    v = {v.x, v.z, v.y, v.w};
  } else {
    rotate_pair(v.x, v.y, turn.cos[0], turn.sin[0], Carrier::kBf16);
    rotate_pair(v.z, v.w, turn.cos[1], turn.sin[1], Carrier::kBf16);
  }
  if (planes == nullptr) {
    *reinterpret_cast<float4*>(op.out.data + t * op.out.ld + static_cast<std::int64_t>(h) * kMmaDim + dim) = v;
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t bits[4] = {bf16_bits(v.x), bf16_bits(v.y), bf16_bits(v.z), bf16_bits(v.w)};
  std::uint16_t* const block = planes + (t * op.heads + h) * kMmaDim + dim / kBlock * kBlock;
  store_pairs(block, Order::kHalvesShared, lane, plane_pair(bits, lane));
}

// One block a token and head, 4 dims a thread. What a span needs is asked for together; lane k keeps the weight of its
// k-th unit.
constexpr int kThreads = kMmaDim / 4;
__global__ void __launch_bounds__(kThreads) attend_merge(SparseAttention op, Partials partials, std::uint16_t* planes) {
  await_previous();
  const std::int64_t t = partials.t0 + static_cast<std::int64_t>(blockIdx.y);
  const int h = static_cast<int>(blockIdx.x);
  const int dim = 4 * static_cast<int>(threadIdx.x);
  const int lane = threadIdx.x % kWarp;
  const Turn turn(op, t, dim);
  const float sink_logit = op.sink[h];
  const Visible visible(op, op.batch.segments[op.batch.segment_of[t]], t);
  const int units = (visible.n + partials.rows - 1) / partials.rows;
  const bool spans = partials.rows == kSpanRows;
  if (spans && units <= 1) return;
  const PartWeight* weights = partials.weights + partials.at(t, 0, h);
  const float* sums = partials.sums + partials.at(t, 0, h) * kMmaDim + dim;
  const auto weight_of = [&](int u) { return weights[static_cast<std::int64_t>(u) * partials.heads]; };
  float4 o[kSpanParts];
  PartWeight weight;
  const auto load = [&](int begin) {
    weight = weight_of(min(begin + lane % kSpanParts, units - 1));
#pragma unroll
    for (int k = 0; k < kSpanParts; ++k) {
      const std::int64_t unit = min(begin + k, units - 1);
      o[k] = *reinterpret_cast<const float4*>(sums + unit * partials.heads * kMmaDim);
    }
  };
  load(0);
  const PartWeight sink = sink_weight(sink_logit);
  float top = fmaxf(sink.top, weight.top);
  for (int u = kSpanParts + lane; u < units; u += kWarp) top = fmaxf(top, weight_of(u).top);
  top = warp_max(top);
  float sum = sink.sum * whole_power2(sink.top - top);
  float4 total = {0, 0, 0, 0};
  for (int begin = 0; begin < units; begin += kSpanParts) {
    const float factor_of_lane = whole_power2(weight.top - top);
    float span_sum = 0;
    float4 span = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kSpanParts; ++k) {
      if (begin + k >= units) break;
      const float factor = __shfl_sync(kAll, factor_of_lane, k);
      span_sum = fmaf(__shfl_sync(kAll, weight.sum, k), factor, span_sum);
      span = {fmaf(o[k].x, factor, span.x), fmaf(o[k].y, factor, span.y), fmaf(o[k].z, factor, span.z),
              fmaf(o[k].w, factor, span.w)};
      if (spans || k == kSpanParts - 1 || begin + k == units - 1) {
        sum += span_sum;
        total = {total.x + span.x, total.y + span.y, total.z + span.z, total.w + span.w};
        span_sum = 0;
        span = {0, 0, 0, 0};
      }
    }
    if (begin + kSpanParts < units) load(begin + kSpanParts);
  }
  const float inverse = __frcp_rn(sum);
  write_dims(op, planes, t, h, dim, turn,
             {round_bf16(total.x * inverse), round_bf16(total.y * inverse), round_bf16(total.z * inverse),
              round_bf16(total.w * inverse)});
}

}  // namespace

PartialsPlan::PartialsPlan(const SparseAttention& op, int rows, int heads, Pieces& pieces)
    : rows_(rows), heads_(heads), units_(ceil_div(most_rows(op), rows)), tokens_(op.batch.tokens) {
  if (rows == kSpanRows && units_ == 1) return;
  constexpr std::int64_t kMostFloats = std::int64_t{64} << 20;  // a few tokens at a time where contexts are long
  const std::int64_t each = std::int64_t{units_} * heads_;      // of a token
  tokens_ = static_cast<std::int32_t>(
      std::min<std::int64_t>(tokens_, std::clamp<std::int64_t>(kMostFloats / (each * kMmaDim), 1, 32768)));
  sums_ = pieces.add<float>(each * tokens_ * kMmaDim);
  weights_ = pieces.add<PartWeight>(each * tokens_);
}

Partials PartialsPlan::at(std::byte* memory, std::int32_t t0) const {
  return {.sums = reinterpret_cast<float*>(memory + sums_),
          .weights = reinterpret_cast<PartWeight*>(memory + weights_),
          .units = units_,
          .heads = heads_,
          .rows = rows_,
          .t0 = t0};
}

void merge(Context& c, const SparseAttention& op, const Partials& partials, std::int32_t tokens,
           std::uint16_t* planes) {
  launch(c, "sparse_attention_merge", attend_merge,
         dim3(static_cast<unsigned>(op.heads), static_cast<unsigned>(tokens)), kThreads, 0, op, partials, planes);
}

}  // namespace fathom::ops::cuda
