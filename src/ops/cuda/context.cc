#include "ops/cuda/context.h"

#include <algorithm>

#include "base/check.h"

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

namespace {

cudaError_t open_branch(Branch& b) {
  cudaError_t status = cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking);
  for (cudaEvent_t* event : {&b.begin, &b.end}) {
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  }
  return status;
}

void close_branch(Branch& b) {
  for (cudaEvent_t event : {b.begin, b.end}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (b.stream == nullptr) return;
  static_cast<void>(cudaStreamSynchronize(b.stream));
  cudaStreamDestroy(b.stream);
}

}  // namespace

cudaError_t Context::open() {
  cudaError_t status = open_branch(trunk_);
  for (Branch& b : branches_) {
    if (status == cudaSuccess) status = open_branch(b);
  }
  stream = trunk_.stream;
  scratch = &trunk_.scratch;
  return status;
}

Context::~Context() {
  for (Branch& b : branches_) close_branch(b);
  close_branch(trunk_);
}

void Context::prepare(const void* kernel, const char* name) {
  if (!prepared_.insert(kernel).second) return;
  int device = 0;
  int most = 0;
  cudaFuncAttributes own{};
  fault.note(cudaGetDevice(&device), name);
  fault.note(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name);
  fault.note(cudaFuncGetAttributes(&own, kernel), name);
  const int dynamic = most - static_cast<int>(own.sharedSizeBytes);
  fault.note(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic), name);
}

void Context::beside(const std::function<void()>& work) {
  FATHOM_CHECK(stream == trunk_.stream, "branches leave the trunk");
  if (used_ == branches_.size()) meet();
  Branch& b = branches_[used_++];
  if (!fault.set()) {
    fault.note(cudaEventRecord(b.begin, stream), "beginning a branch");
    fault.note(cudaStreamWaitEvent(b.stream, b.begin), "beginning a branch");
  }
  const bool trunk_follows = follows_kernel;
  follows_kernel = false;
  stream = b.stream;
  scratch = &b.scratch;
  work();
  follows_kernel = trunk_follows;
  stream = trunk_.stream;
  scratch = &trunk_.scratch;
  if (!fault.set()) fault.note(cudaEventRecord(b.end, b.stream), "ending a branch");
}

void Context::meet() {
  if (used_ > 0) follows_kernel = false;
  for (std::size_t i = 0; i < used_; ++i) {
    if (!fault.set()) fault.note(cudaStreamWaitEvent(stream, branches_[i].end), "meeting a branch");
  }
  used_ = 0;
}

}  // namespace fathom::ops::cuda
