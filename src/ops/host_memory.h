// Zeroed host memory for the backends that run on the CPU.
#pragma once

#include "ops/backend.h"

namespace fathom::ops {

// Aligned to 64 bytes. Error: kExhausted. bytes = 0 gives a valid empty buffer.
Result<Buffer> allocate_host(std::size_t bytes);

}  // namespace fathom::ops
