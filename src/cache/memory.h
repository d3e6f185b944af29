// Memory: where pages and slots live, as the cache sees it: bytes that can be had, moved and fetched. A backend's own,
// or plain host memory for tests.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "ops/backend.h"

namespace fathom::cache {

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  // Zeroed, aligned to 64 bytes. Error: kExhausted.
  virtual Result<ops::Buffer> allocate(std::size_t bytes) = 0;
  // From one place of this memory to another. The two do not overlap.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void fetch(std::byte* to_host, const std::byte* from, std::size_t bytes) = 0;
  virtual void store(std::byte* to, const std::byte* from_host, std::size_t bytes) = 0;
};

class HostMemory final : public Memory {
 public:
  Result<ops::Buffer> allocate(std::size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void fetch(std::byte* to_host, const std::byte* from, std::size_t bytes) override;
  void store(std::byte* to, const std::byte* from_host, std::size_t bytes) override;
};

// The memory of a backend, which outlives it.
class BackendMemory final : public Memory {
 public:
  explicit BackendMemory(ops::Backend& backend) : backend_(backend) {}
  Result<ops::Buffer> allocate(std::size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void fetch(std::byte* to_host, const std::byte* from, std::size_t bytes) override;
  void store(std::byte* to, const std::byte* from_host, std::size_t bytes) override;

 private:
  ops::Backend& backend_;
};

}  // namespace fathom::cache
