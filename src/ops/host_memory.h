// Zeroed host memory for the backends that run on the CPU.
#pragma once

#include <cstring>

#include "ops/backend.h"

namespace fathom::ops {

// Aligned to 64 bytes. Of a large buffer only what is touched is ever resident. Error: kExhausted: more than the
// machine could have; less than that may be promised and missed when it is touched, as the kernel does. bytes = 0 gives
// a valid empty buffer.
Result<Buffer> allocate_host(std::size_t bytes);

// What memcpy does, but nothing may also be copied from or to nowhere: an empty vector's data() is null, and memcpy
// may not be given that even for zero bytes.
inline void copy_host(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace fathom::ops
