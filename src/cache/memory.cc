#include "cache/memory.h"

#include "ops/host_memory.h"

namespace fathom::cache {

Result<ops::Buffer> HostMemory::allocate(std::size_t bytes) { return ops::allocate_host(bytes); }
void HostMemory::copy(std::byte* to, const std::byte* from, std::size_t bytes) { ops::copy_host(to, from, bytes); }
void HostMemory::fetch(std::byte* to_host, const std::byte* from, std::size_t bytes) {
  ops::copy_host(to_host, from, bytes);
}
void HostMemory::store(std::byte* to, const std::byte* from_host, std::size_t bytes) {
  ops::copy_host(to, from_host, bytes);
}

Result<ops::Buffer> BackendMemory::allocate(std::size_t bytes) { return backend_.allocate(bytes); }
void BackendMemory::copy(std::byte* to, const std::byte* from, std::size_t bytes) { backend_.copy(to, from, bytes); }
void BackendMemory::fetch(std::byte* to_host, const std::byte* from, std::size_t bytes) {
  backend_.copy_out(to_host, from, bytes);
}
void BackendMemory::store(std::byte* to, const std::byte* from_host, std::size_t bytes) {
  backend_.copy_in(to, from_host, bytes);
}

}  // namespace fathom::cache
