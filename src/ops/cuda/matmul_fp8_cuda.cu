#include "ops/cuda/matmul.cuh"

namespace fathom::ops::cuda {

FATHOM_MATMUL_FORMAT(Format::kFp8)

}  // namespace fathom::ops::cuda
