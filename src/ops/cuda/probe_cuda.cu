#include <cuda_runtime.h>

namespace fathom::ops::cuda {
namespace {

__global__ void probe() {}

}  // namespace

bool has_code();
bool has_code() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, probe) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return found;
}

}  // namespace fathom::ops::cuda
