#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block a row. A thread reads again only what it alone writes, so y may be x.
__global__ void rms_norm(Mat<const float> x, const float* w, Mat<float> y, float eps, Carrier carrier) {
  await_previous();
  const float* in = x.data + blockIdx.x * x.ld;
  float* out = y.data + blockIdx.x * y.ld;
  const int n = static_cast<int>(x.cols);
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) squares = fmaf(in[i], in[i], squares);
  const float rho = 1.0F / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(n) + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) out[i] = carry_to(w[i] * (in[i] * rho), carrier);
}

}  // namespace

void run(Context& c, const RmsNorm& op) {
  FATHOM_CHECK(op.x.rows == op.y.rows && op.x.cols == op.y.cols, "x and y have the same shape");
  launch(c, "rms_norm", rms_norm, dim3(static_cast<unsigned>(op.x.rows)), kThreads, 0, op.x, op.w, op.y, op.eps,
         op.carrier);
}

}  // namespace fathom::ops::cuda
