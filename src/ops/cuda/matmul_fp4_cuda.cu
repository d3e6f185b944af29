#include "ops/cuda/matmul.cuh"

namespace fathom::ops::cuda {

FATHOM_MATMUL_FORMAT(Format::kFp4)

}  // namespace fathom::ops::cuda
