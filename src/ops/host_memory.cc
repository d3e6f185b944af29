#include "ops/host_memory.h"

#include <cstdlib>
#include <cstring>

namespace fathom::ops {

Result<Buffer> allocate_host(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (p == nullptr) return fail(Code::kExhausted, "cannot allocate {} bytes of memory", bytes);
  std::memset(p, 0, rounded);
  return Buffer(p, [](std::byte* memory) { std::free(memory); });
}

}  // namespace fathom::ops
