// Pinned memory: what copies between host and device pass through, so that the host's side of a copy is done when the
// call returns and the device's side keeps its place in the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace fathom::ops::cuda {

// Buffers of one size, by turns: one is filled while others are on their way. One thread.
class PinnedRing {
 public:
  PinnedRing(std::size_t buffers, std::size_t bytes) : buffers_(buffers), bytes_(bytes) {}
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;
  ~PinnedRing();

  std::size_t bytes() const { return bytes_; }
  // Errors, here and below: what the driver says.
  cudaError_t open();
  // Returns when `from` has been read.
  cudaError_t send(std::byte* to, const void* from, std::size_t bytes, cudaStream_t stream);
  // Returns when the data is there.
  cudaError_t fetch(void* to, const std::byte* from, std::size_t bytes, cudaStream_t stream);

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    cudaEvent_t sent = nullptr;  // reached when the device has read it
  };
  std::vector<Buffer> buffers_;
  std::size_t bytes_;  // of each
  std::size_t turn_ = 0;
};

}  // namespace fathom::ops::cuda
