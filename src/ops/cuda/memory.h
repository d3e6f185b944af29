// Device memory: the pool behind Backend::allocate, the store behind Backend::adopt. One thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <vector>

#include "base/result.h"
#include "ops/backend.h"
#include "ops/cuda/context.h"

namespace fathom::ops::cuda {

// Memory that comes and goes, in sizes that recur (pages, slots): what is freed is kept for the next of its size. Large
// pieces are the driver's own.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  // Zeroed in the order of the stream, aligned to 256. The pool outlives the buffer. Errors: kExhausted, kInternal.
  Result<Buffer> allocate(std::size_t bytes, Context& context);
  // Kept for the next of its size.
  std::size_t free_bytes() const;

 private:
  Result<std::byte*> take(std::size_t rounded);
  void give_back(std::byte* memory, std::size_t rounded);

  std::vector<void*> slabs_;
  std::byte* next_ = nullptr;  // what is left of the last slab
  std::size_t left_ = 0;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by rounded size
};

// Memory that stays until the end: weights, one after another.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  // Aligned to 256. Error: kExhausted.
  Result<std::byte*> allocate(std::size_t bytes);

 private:
  std::vector<void*> slabs_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace fathom::ops::cuda
