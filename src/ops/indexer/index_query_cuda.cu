#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// One warp a head, in its own part of shared memory.
__global__ void index_query(IndexQuery op, int dim) {
  await_previous();
  extern __shared__ float rows[];
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t t = head / op.heads;
  if (t >= op.q.rows) return;
  const int lane = threadIdx.x % kWarp;
  float* row = rows + threadIdx.x / kWarp * dim;
  float* q = op.q.data + t * op.q.ld + head % op.heads * dim;
  for (int i = lane; i < dim; i += kWarp) row[i] = q[i];
  __syncwarp();
  const auto n = static_cast<int>(op.cos.cols);
  float* pairs = row + dim - 2 * n;
  for (int j = lane; j < n; j += kWarp) {
    rotate_pair(pairs[2 * j], pairs[2 * j + 1], op.cos.data[t * op.cos.ld + j], op.sin.data[t * op.sin.ld + j],
                op.carrier);
  }
  hadamard_warp(row, dim);
  for (int i = lane; i < dim; i += kWarp) row[i] = carry_to(row[i], op.carrier);
  __syncwarp();
  if (op.quantise) fp4_round_trip_warp(row, dim);
  for (int i = lane; i < dim; i += kWarp) q[i] = row[i];
}

}  // namespace

void run(Context& c, const IndexQuery& op) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  FATHOM_CHECK(dim > 0 && (dim & (dim - 1)) == 0, "a Hadamard transform needs a power of two");
  launch(c, "index_query", index_query, dim3(static_cast<unsigned>(ceil_div(op.q.rows * op.heads, kWarps))), kThreads,
         sizeof(float) * static_cast<std::size_t>(kWarps * dim), op, static_cast<int>(dim));
}

}  // namespace fathom::ops::cuda
