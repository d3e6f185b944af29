#include "ops/cuda/matmul.cuh"

namespace fathom::ops::cuda {

FATHOM_MATMUL_FORMAT(Format::kBf16)

}  // namespace fathom::ops::cuda
