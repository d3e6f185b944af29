// Weights on their way to the device: threads read them (from a mapped file, mostly) into pinned buffers and send them
// off, while the caller goes on naming more. One reader alone is slower than the bus.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/cuda/context.h"

namespace fathom::ops::cuda {

class Upload {
 public:
  Upload() = default;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  ~Upload();

  // The device and how many threads read.
  void open(int device, int readers);

  // Sends `bytes` from host memory, which stays as it is until wait(). Returns at once unless much is under way.
  void add(std::byte* to, const std::byte* from, std::size_t bytes);

  bool under_way() const { return !readers_.empty(); }

  // Returns when everything is on the device, or has failed, which `fault` learns. Threads and buffers are gone then.
  void wait(Fault& fault);

 private:
  struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kPieceBytes = std::size_t{8} << 20;
  static constexpr std::size_t kMostPieces = 64;  // waiting

  void read();
  bool next(Piece& piece);

  int device_ = 0;
  int n_readers_ = 1;
  std::vector<std::thread> readers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;  // under mutex_, as what follows
  bool last_ = false;         // nothing more will come
  cudaError_t status_ = cudaSuccess;
};

}  // namespace fathom::ops::cuda
