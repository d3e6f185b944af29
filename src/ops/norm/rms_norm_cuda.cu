#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/row.cuh"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block a row.
__global__ void rms_norm(RmsNorm op) {
  allow_next();
  norm_row<kThreads>(op.x.data + blockIdx.x * op.x.ld, op.w, op.y.data + blockIdx.x * op.y.ld,
                     static_cast<int>(op.x.cols), op.eps, op.carrier);
}

// Rows that are not whole fours.
__global__ void rms_norm_any(RmsNorm op) {
  await_previous();
  const float* in = op.x.data + blockIdx.x * op.x.ld;
  float* out = op.y.data + blockIdx.x * op.y.ld;
  const int n = static_cast<int>(op.x.cols);
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) squares = fmaf(in[i], in[i], squares);
  const float rho = rms_scale(block_sum<kThreads>(squares), n, op.eps);
  for (int i = threadIdx.x; i < n; i += kThreads) out[i] = carry_to(op.w[i] * (in[i] * rho), op.carrier);
}

}  // namespace

void run(Context& c, const RmsNorm& op) {
  FATHOM_CHECK(op.x.rows == op.y.rows && op.x.cols == op.y.cols, "x and y have the same shape");
  const bool fours = op.x.cols % 4 == 0 && op.x.ld % 4 == 0 && op.y.ld % 4 == 0;
  launch(c, "rms_norm", fours ? rms_norm : rms_norm_any, dim3(static_cast<unsigned>(op.x.rows)), kThreads, 0, op);
}

}  // namespace fathom::ops::cuda
