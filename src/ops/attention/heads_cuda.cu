#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/row.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// One warp a head; a lane keeps to its own pairs, so nothing is shared.
__global__ void query_heads(QueryHeads op, int dim) {
  await_previous();
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t t = head / op.heads;
  if (t >= op.q.rows) return;
  const int lane = threadIdx.x % kWarp;
  float* q = op.q.data + t * op.q.ld + head % op.heads * dim;
  float squares = 0;
  for (int i = lane; i < dim; i += kWarp) squares = fmaf(q[i], q[i], squares);
  const float rho = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + op.eps);
  const auto n = static_cast<int>(op.cos.cols);
  const int plain = dim - 2 * n;
  for (int i = lane; i < plain; i += kWarp) q[i] = carry_to(q[i] * rho, op.carrier);
  for (int j = lane; j < n; j += kWarp) {
    float a = carry_to(q[plain + 2 * j] * rho, op.carrier);
    float b = carry_to(q[plain + 2 * j + 1] * rho, op.carrier);
    rotate_pair(a, b, op.cos.data[t * op.cos.ld + j], op.sin.data[t * op.sin.ld + j], op.carrier);
    q[plain + 2 * j] = a;
    q[plain + 2 * j + 1] = b;
  }
}

// One block a token.
__global__ void window_entries(WindowEntries op) {
  await_previous();
  extern __shared__ float row[];
  const auto dim = static_cast<int>(op.kv.cols);
  const auto n = static_cast<int>(op.cos.cols);
  float* kv = op.kv.data + blockIdx.x * op.kv.ld;
  for (int i = threadIdx.x; i < dim; i += kThreads) row[i] = kv[i];
  __syncthreads();
  norm_row<kThreads>(row, dim, op.norm_weight, op.eps, op.carrier);
  rotate_row<kThreads>(row, dim, op.cos.data + blockIdx.x * op.cos.ld, op.sin.data + blockIdx.x * op.sin.ld, n,
                       op.carrier);
  if (op.quantise) {
    // Blocks are shared out over the warps.
    for (int b = threadIdx.x / kWarp * quant::kEntryBlock; b < dim - 2 * n; b += kWarps * quant::kEntryBlock) {
      fp8_round_trip_warp(row + b, min(quant::kEntryBlock, dim - 2 * n - b));
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < dim; i += kThreads) kv[i] = row[i];
}

}  // namespace

void run(Context& c, const QueryHeads& op) {
  const std::int64_t dim = op.q.cols / op.heads;
  FATHOM_CHECK(op.q.cols == dim * op.heads && 2 * op.cos.cols <= dim, "whole heads with a rotated part");
  launch(c, "query_heads", query_heads, dim3(static_cast<unsigned>(ceil_div(op.q.rows * op.heads, kWarps))), kThreads,
         0, op, static_cast<int>(dim));
}

void run(Context& c, const WindowEntries& op) {
  FATHOM_CHECK(2 * op.cos.cols <= op.kv.cols, "a row with a rotated part");
  launch(c, "window_entries", window_entries, dim3(static_cast<unsigned>(op.kv.rows)), kThreads,
         sizeof(float) * static_cast<std::size_t>(op.kv.cols), op);
}

}  // namespace fathom::ops::cuda
