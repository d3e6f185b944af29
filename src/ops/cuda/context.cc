#include "ops/cuda/context.h"

#include <algorithm>

namespace fathom::ops::cuda {

Scratch::~Scratch() {
  for (void* block : blocks_) cudaFree(block);
}

std::byte* Scratch::take(std::size_t bytes, Fault& fault) {
  if (fault.set()) return nullptr;
  if (bytes > capacity_ || blocks_.empty()) {
    constexpr std::size_t kFirst = std::size_t{4} << 20;
    const std::size_t wanted = std::max({bytes, 2 * capacity_, kFirst});
    void* block = nullptr;
    cudaError_t status = cudaMalloc(&block, wanted);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      capacity_ = bytes;
      status = cudaMalloc(&block, bytes);
    } else {
      capacity_ = wanted;
    }
    fault.note(status, "scratch memory of an operation");
    if (fault.set()) return nullptr;
    blocks_.push_back(block);
  }
  return static_cast<std::byte*>(blocks_.back());
}

}  // namespace fathom::ops::cuda
