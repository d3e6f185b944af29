#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block a token and stream.
__global__ void mtp_input(Mat<const float> e, Mat<const float> h, Mat<float> x, int streams, Carrier carrier) {
  await_previous();
  const std::int64_t t = blockIdx.x / streams;
  const std::int64_t c = blockIdx.x % streams;
  for (std::int64_t i = threadIdx.x; i < e.cols; i += kThreads) {
    x.data[t * x.ld + c * e.cols + i] = carry_to(e.data[t * e.ld + i] + h.data[(t * streams + c) * h.ld + i], carrier);
  }
}

}  // namespace

void run(Context& c, const MtpInput& op) {
  const std::int64_t streams = op.e.cols == 0 ? 0 : op.x.cols / op.e.cols;
  FATHOM_CHECK(op.h.rows == op.e.rows * streams && op.h.cols == op.e.cols, "one h row per stream");
  launch(c, "mtp_input", mtp_input, dim3(static_cast<unsigned>(op.h.rows)), kThreads, 0, op.e, op.h, op.x,
         static_cast<int>(streams), op.carrier);
}

}  // namespace fathom::ops::cuda
