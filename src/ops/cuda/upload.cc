#include "ops/cuda/upload.h"

#include <algorithm>

#include "ops/cuda/pinned.h"

namespace fathom::ops::cuda {
namespace {

// A reader's own way to the device: one piece is read while another is on its way.
class Lane {
 public:
  explicit Lane(std::size_t piece_bytes) : buffers_(2, piece_bytes) {
    note(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (status_ == cudaSuccess) note(buffers_.open());
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void send(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (status_ == cudaSuccess) note(buffers_.send(to, from, bytes, stream_));
  }
  void finish() {
    if (stream_ != nullptr) note(cudaStreamSynchronize(stream_));
  }
  cudaError_t status() const { return status_; }

 private:
  void note(cudaError_t status) {
    if (status_ == cudaSuccess) status_ = status;
  }

  cudaStream_t stream_ = nullptr;
  PinnedRing buffers_;
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
  Lane lane(kPieceBytes);
  for (Piece piece; next(piece);) lane.send(piece.to, piece.from, piece.bytes);
  lane.finish();
  const std::lock_guard lock(mutex_);
  for (const cudaError_t s : {chosen, lane.status()}) {
    if (status_ == cudaSuccess) status_ = s;
  }
}

}  // namespace fathom::ops::cuda
