#include "ops/cuda/matmul_alone.cuh"

namespace fathom::ops::cuda {

bool takes_alone(const Context& c, const Weight& w, Values values, std::int64_t rows_each) {
  return format_of(w) == Format::kFp4 && values != Values::kF32 && w.cols % kBlock == 0 &&
         alone_rows(static_cast<int>(w.cols)) >= kAloneTokens && c.kernels.takes(Leaf::kExpertsFp4Alone, rows_each);
}

void run_alone(Context& c, const char* name, const Matmul& m) {
  FATHOM_CHECK(m.items != nullptr && m.tokens_an_item <= kAloneTokens && m.x.planes == 1, "what the kernel takes");
  launch(c, name, m.part == Part::kGate ? alone<true> : alone<false>,
         dim3(static_cast<unsigned>(2 * c.multiprocessors)), kMatmulThreads, kAloneShared, job_of(m));
}

}  // namespace fathom::ops::cuda
