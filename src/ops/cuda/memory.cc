#include "ops/cuda/memory.h"

#include <algorithm>

namespace fathom::ops::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kSlab = std::size_t{32} << 20;        // of the pool
constexpr std::size_t kStoreSlab = std::size_t{256} << 20;  // of the store
constexpr std::size_t kLarge = std::size_t{8} << 20;        // larger pieces do not come from slabs

std::size_t rounded_up(std::size_t bytes) { return (bytes / kAlignment + 1) * kAlignment; }

// Device memory from the driver.
Result<std::byte*> device_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaSuccess) return static_cast<std::byte*>(memory);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not a fault
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    return fail(Code::kExhausted, "the device has no room for {} more bytes ({} of {} are free)", bytes, free, total);
  }
  return fail(Code::kInternal, "device memory: {}", cudaGetErrorString(status));
}

// Cuts pieces off the front of a slab. The rest of the slab before is lost; it is smaller than the piece.
Result<std::byte*> cut(std::size_t rounded, std::size_t slab, std::vector<void*>& slabs, std::byte*& next,
                       std::size_t& left) {
  if (left < rounded) {
    FATHOM_ASSIGN(next, device_memory(std::max(slab, rounded)));
    slabs.push_back(next);
    left = std::max(slab, rounded);
  }
  std::byte* piece = next;
  next += rounded;
  left -= rounded;
  return piece;
}

}  // namespace

Pool::~Pool() {
  for (void* slab : slabs_) cudaFree(slab);
}

Result<std::byte*> Pool::take(std::size_t rounded) {
  if (rounded > kLarge) return device_memory(rounded);
  if (const auto known = free_.find(rounded); known != free_.end() && !known->second.empty()) {
    std::byte* piece = known->second.back();
    known->second.pop_back();
    return piece;
  }
  return cut(rounded, kSlab, slabs_, next_, left_);
}

std::size_t Pool::free_bytes() const {
  std::size_t bytes = left_;
  for (const auto& [size, pieces] : free_) bytes += size * pieces.size();
  return bytes;
}

void Pool::give_back(std::byte* memory, std::size_t rounded) {
  if (rounded > kLarge) {
    cudaFree(memory);
  } else {
    free_[rounded].push_back(memory);
  }
}

Result<Buffer> Pool::allocate(std::size_t bytes, Context& context) {
  const std::size_t rounded = rounded_up(bytes);
  FATHOM_ASSIGN(std::byte* const memory, take(rounded));
  context.follows_kernel = false;
  context.fault.note(cudaMemsetAsync(memory, 0, rounded, context.stream), "clearing memory");
  return Buffer(memory, [this, rounded](std::byte* m) { give_back(m, rounded); });
}

Store::~Store() {
  for (void* slab : slabs_) cudaFree(slab);
}

Result<std::byte*> Store::allocate(std::size_t bytes) {
  return cut(rounded_up(bytes), kStoreSlab, slabs_, next_, left_);
}

}  // namespace fathom::ops::cuda
