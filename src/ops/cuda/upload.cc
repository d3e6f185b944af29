#include "ops/cuda/upload.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace fathom::ops::cuda {
namespace {

// One reader's pinned buffers, filled by turns: one is filled while the other is on its way.
class Buffers {
 public:
  explicit Buffers(std::size_t bytes) {
    note(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (Buffer& b : buffers_) {
      void* memory = nullptr;
      if (status_ == cudaSuccess) note(cudaMallocHost(&memory, bytes));
      b.memory = static_cast<std::byte*>(memory);
      if (status_ == cudaSuccess) note(cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming));
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (const Buffer& b : buffers_) {
      if (b.sent != nullptr) cudaEventDestroy(b.sent);
      if (b.memory != nullptr) cudaFreeHost(b.memory);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void send(std::byte* to, const std::byte* from, std::size_t bytes) {
    const Buffer& b = buffers_[turn_++ % buffers_.size()];
    note(cudaEventSynchronize(b.sent));
    if (status_ != cudaSuccess) return;
    std::memcpy(b.memory, from, bytes);
    note(cudaMemcpyAsync(to, b.memory, bytes, cudaMemcpyHostToDevice, stream_));
    note(cudaEventRecord(b.sent, stream_));
  }
  void finish() {
    if (stream_ != nullptr) note(cudaStreamSynchronize(stream_));
  }
  cudaError_t status() const { return status_; }

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    cudaEvent_t sent = nullptr;
  };
  void note(cudaError_t status) {
    if (status_ == cudaSuccess) status_ = status;
  }

  cudaStream_t stream_ = nullptr;
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace

Upload::~Upload() {
  Fault nobody_asks;
  wait(nobody_asks);
}

void Upload::open(int device, int readers) {
  device_ = device;
  n_readers_ = std::max(1, readers);
}

void Upload::add(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (readers_.empty()) {
    for (int i = 0; i < n_readers_; ++i) readers_.emplace_back([this] { read(); });
  }
  std::unique_lock lock(mutex_);
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    changed_.wait(lock, [this] { return pieces_.size() < kMostPieces; });
    pieces_.push_back({to + at, from + at, std::min(kPieceBytes, bytes - at)});
    changed_.notify_all();
  }
}

void Upload::wait(Fault& fault) {
  {
    const std::lock_guard lock(mutex_);
    last_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : readers_) t.join();
  readers_.clear();
  last_ = false;
  fault.note(status_, "loading the weights");
  status_ = cudaSuccess;
}

bool Upload::next(Piece& piece) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return last_ || !pieces_.empty(); });
  if (pieces_.empty()) return false;
  piece = pieces_.front();
  pieces_.pop_front();
  changed_.notify_all();
  return true;
}

// After a failure the rest is taken and dropped, so that nobody waits for room.
void Upload::read() {
  const cudaError_t chosen = cudaSetDevice(device_);
  Buffers buffers(kPieceBytes);
  for (Piece piece; next(piece);) {
    if (buffers.status() == cudaSuccess) buffers.send(piece.to, piece.from, piece.bytes);
  }
  buffers.finish();
  const std::lock_guard lock(mutex_);
  for (const cudaError_t s : {chosen, buffers.status()}) {
    if (status_ == cudaSuccess) status_ = s;
  }
}

}  // namespace fathom::ops::cuda
