#include "ops/cuda/launch.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 128;

// One thread a position and frequency. The angle is an f32 product; its sine and cosine are rounded from double.
__global__ void rope_table(const std::int32_t* positions, const float* frequencies, Mat<float> cos, Mat<float> sin) {
  await_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t t = i / cos.cols;
  const std::int64_t j = i % cos.cols;
  if (t >= cos.rows) return;
  const float angle = __fmul_rn(static_cast<float>(positions[t]), frequencies[j]);
  double s = 0;
  double c = 0;
  ::sincos(double{angle}, &s, &c);
  cos.data[t * cos.ld + j] = static_cast<float>(c);
  sin.data[t * sin.ld + j] = static_cast<float>(s);
}

}  // namespace

void run(Context& c, const RopeTable& op) {
  FATHOM_CHECK(op.cos.rows == op.sin.rows && op.cos.cols == op.sin.cols, "cos and sin have the same shape");
  launch(c, "rope_table", rope_table, dim3(static_cast<unsigned>(ceil_div(op.cos.rows * op.cos.cols, kThreads))),
         kThreads, 0, op.positions, op.frequencies, op.cos, op.sin);
}

}  // namespace fathom::ops::cuda
