#include "ops/cuda/pinned.h"

#include <algorithm>
#include <cstring>

namespace fathom::ops::cuda {

PinnedRing::~PinnedRing() {
  for (const Buffer& b : buffers_) {
    if (b.sent != nullptr) cudaEventDestroy(b.sent);
    if (b.memory != nullptr) cudaFreeHost(b.memory);
  }
}

cudaError_t PinnedRing::open() {
  cudaError_t status = cudaSuccess;
  for (Buffer& b : buffers_) {
    void* memory = nullptr;
    if (status == cudaSuccess) status = cudaMallocHost(&memory, bytes_);
    b.memory = static_cast<std::byte*>(memory);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming);
  }
  return status;
}

cudaError_t PinnedRing::send(std::byte* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  for (std::size_t at = 0; at < bytes && status == cudaSuccess; at += bytes_) {
    const std::size_t n = std::min(bytes_, bytes - at);
    const Buffer& b = buffers_[turn_++ % buffers_.size()];
    status = cudaEventSynchronize(b.sent);
    if (status != cudaSuccess) break;
    std::memcpy(b.memory, static_cast<const std::byte*>(from) + at, n);
    status = cudaMemcpyAsync(to + at, b.memory, n, cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess) status = cudaEventRecord(b.sent, stream);
  }
  return status;
}

cudaError_t PinnedRing::fetch(void* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  for (std::size_t at = 0; at < bytes && status == cudaSuccess; at += bytes_) {
    const std::size_t n = std::min(bytes_, bytes - at);
    const Buffer& b = buffers_[turn_++ % buffers_.size()];
    status = cudaEventSynchronize(b.sent);
    if (status == cudaSuccess) status = cudaMemcpyAsync(b.memory, from + at, n, cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    if (status == cudaSuccess) std::memcpy(static_cast<std::byte*>(to) + at, b.memory, n);
  }
  return status;
}

}  // namespace fathom::ops::cuda
