#include "ops/cuda/matmul.cuh"

namespace fathom::ops::cuda {

FATHOM_MATMUL_FORMAT(Format::kWide)

}  // namespace fathom::ops::cuda
