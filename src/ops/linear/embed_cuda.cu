#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ops.h"

namespace fathom::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block a token.
__global__ void embed(const std::int32_t* ids, const void* table, bool bf16, std::int64_t d, int streams,
                      Mat<float> x) {
  await_previous();
  const std::int64_t t = blockIdx.x;
  const std::int64_t row = ids[t] * d;
  for (std::int64_t i = threadIdx.x; i < d; i += kThreads) {
    const float v = bf16 ? bf16_value(static_cast<const std::uint16_t*>(table)[row + i])
                         : static_cast<const float*>(table)[row + i];
    for (int c = 0; c < streams; ++c) x.data[t * x.ld + c * d + i] = v;
  }
}

}  // namespace

void run(Context& c, const Embed& op) {
  FATHOM_CHECK(op.x.cols == op.streams * op.table.cols, "x holds one copy per stream");
  FATHOM_CHECK(!op.table.quantised(), "embeddings are BF16 or F32");
  launch(c, "embed", embed, dim3(static_cast<unsigned>(op.x.rows)), kThreads, 0, op.ids, op.table.data,
         op.table.dtype == DType::kBf16, op.table.cols, op.streams, op.x);
}

}  // namespace fathom::ops::cuda
