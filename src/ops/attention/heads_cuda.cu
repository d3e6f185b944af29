// Queries in one launch: one warp a head of either kind, or some of the index's; a head alone is the same kernel.
#include "ops/attention/inputs.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/row.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostQuads = 4;  // fours of a head that a lane has

struct Head {
  std::int64_t token;
  int head;
};
__device__ Head head_of(std::int64_t i, int heads) { return {i / heads, static_cast<int>(i % heads)}; }

// The cosines (or sines) of the two pairs at values [i, i + 4) behind those that are not rotated.
__device__ float2 two(const Mat<const float>& table, std::int64_t t, int i) {
  return *reinterpret_cast<const float2*>(table.data + t * table.ld + i / 2);
}

__device__ void query_head(const QueryHeads& op, Head h, int dim) {
  const int plain = dim - 2 * static_cast<int>(op.cos.cols);
  const int lane = threadIdx.x % kWarp;
  float* q = op.q.data + h.token * op.q.ld + static_cast<std::int64_t>(h.head) * dim;
  float4 x[kMostQuads];
  float2 cos[kMostQuads];
  float2 sin[kMostQuads];
#pragma unroll
  for (int k = 0; k < kMostQuads; ++k) {
    const int i = 4 * (k * kWarp + lane);
    x[k] = i < dim ? load4(q + i) : float4{0, 0, 0, 0};
    if (i >= plain && i < dim) {
      cos[k] = two(op.cos, h.token, i - plain);
      sin[k] = two(op.sin, h.token, i - plain);
    }
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kMostQuads; ++k) squares = dot4(x[k], x[k], squares);
  const float rho = rms_scale(warp_sum(squares), dim, op.eps);
#pragma unroll
  for (int k = 0; k < kMostQuads; ++k) {
    const int i = 4 * (k * kWarp + lane);
    if (i >= dim) continue;
    float4 v = carry4(scaled(rho, x[k]), op.carrier);
    if (i >= plain) rotate4(v, cos[k], sin[k], op.carrier);
    store4(q + i, v);
  }
}

// Heads [first, first + n) of all of the step.
template <int n>
__device__ void index_heads(const IndexQuery& op, std::int64_t first, int dim) {
  const int plain = dim - 2 * static_cast<int>(op.cos.cols);
  const int i = 4 * (static_cast<int>(threadIdx.x) % kWarp);
  float4 x[n];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Head h = head_of(first + k, op.heads);
    const float* q = op.q.data + h.token * op.q.ld + static_cast<std::int64_t>(h.head) * dim;
    x[k] = i < dim && h.token < op.q.rows ? load4(q + i) : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Head h = head_of(first + k, op.heads);
    if (h.token >= op.q.rows) return;
    float4 v = x[k];
    if (i >= plain && i < dim) {
      rotate4(v, two(op.cos, h.token, i - plain), two(op.sin, h.token, i - plain), op.carrier);
    }
    v = carry4(hadamard4(v, dim), op.carrier);
    if (op.quantise) v = fp4_round_trip4(v);
    if (i < dim) store4(op.q.data + h.token * op.q.ld + static_cast<std::int64_t>(h.head) * dim + i, v);
  }
}

// kIndexHeads: that a warp has under way.
template <int kIndexHeads>
__global__ void __launch_bounds__(kThreads)
    queries(QueryHeads main, int dim, int main_blocks, IndexQuery index, int index_dim) {
  await_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto block = static_cast<std::int64_t>(blockIdx.x);
  if (block < main_blocks) {
    const Head h = head_of(block * kWarps + warp, main.heads);
    if (h.token < main.q.rows) query_head(main, h, dim);
  } else {
    index_heads<kIndexHeads>(index, ((block - main_blocks) * kWarps + warp) * kIndexHeads, index_dim);
  }
}

template <class Op>
int dim_of(const Op& op) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  FATHOM_CHECK(dim % 4 == 0 && op.q.ld % 4 == 0, "aligned heads");
  FATHOM_CHECK(op.cos.cols % 2 == 0 && op.cos.ld % 2 == 0 && op.sin.ld % 2 == 0, "aligned angles");
  return static_cast<int>(dim);
}

void run_queries(Context& c, const char* name, const QueryHeads* main, const IndexQuery* index) {
  int dim = 0;
  int main_blocks = 0;
  int index_dim = 0;
  int index_blocks = 0;
  // Where they are many, how much a warp has under way is what counts, else how soon it is done.
  constexpr int kSomeHeads = 4;
  const int index_heads = index != nullptr && index->q.rows >= 256 ? kSomeHeads : 1;
  if (main != nullptr) {
    dim = dim_of(*main);
    FATHOM_CHECK(dim <= kMostQuads * 4 * kWarp, "heads of a few dims a lane");
    main_blocks = ceil_div(main->q.rows * main->heads, kWarps);
  }
  if (index != nullptr) {
    index_dim = dim_of(*index);
    FATHOM_CHECK(index_dim <= 4 * kWarp && (index_dim & (index_dim - 1)) == 0,
                 "a Hadamard transform by one warp needs a power of two");
    index_blocks = ceil_div(index->q.rows * index->heads, kWarps * index_heads);
  }
  launch(c, name, index_heads == 1 ? queries<1> : queries<kSomeHeads>, dim3(static_cast<unsigned>(main_blocks + index_blocks)), kThreads, 0,
         main != nullptr ? *main : QueryHeads{}, dim, main_blocks, index != nullptr ? *index : IndexQuery{}, index_dim);
}

}  // namespace

void run(Context& c, const QueryHeads& op) { run_queries(c, "query_heads", &op, nullptr); }

void run(Context& c, const IndexQuery& op) { run_queries(c, "index_query", nullptr, &op); }

void run(Context& c, const Queries& op) { run_queries(c, "queries", &op.heads, op.index ? &*op.index : nullptr); }

}  // namespace fathom::ops::cuda
