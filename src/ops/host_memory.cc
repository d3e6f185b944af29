#include "ops/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace fathom::ops {
namespace {

// From here on memory comes from the kernel, which zeroes a page when it is first touched: a cache of many GiB costs
// nothing at the start, and only what is used of it. An address sanitizer sees overruns of its own memory only.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMappedFrom = SIZE_MAX;
#else
constexpr std::size_t kMappedFrom = std::size_t{1} << 20U;
#endif

Result<Buffer> map(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return fail(Code::kExhausted, "cannot allocate {} bytes of memory", bytes);
  return Buffer(static_cast<std::byte*>(p), [bytes](std::byte* memory) { ::munmap(memory, bytes); });
}

}  // namespace

Result<Buffer> allocate_host(std::size_t bytes) {
  if (bytes >= kMappedFrom) return map(bytes);
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (p == nullptr) return fail(Code::kExhausted, "cannot allocate {} bytes of memory", bytes);
  std::memset(p, 0, rounded);
  return Buffer(p, [](std::byte* memory) { std::free(memory); });
}

}  // namespace fathom::ops
