// Checks of what tensors hold, beyond their headers. checkpoint.md 8.3 and 8.6.
#pragma once

#include <functional>

#include "base/thread_pool.h"
#include "checkpoint/schema.h"

namespace fathom::checkpoint {

class Checkpoint;

// Every id of every tid2eid lies in [0, E): the one table whose values are used as addresses.
void check_ids(const Checkpoint& c, Problems& problems);

// Reads every weight: E8M0 codes of 255, FP8 codes of 0x7F and 0xFF, NaN and infinity in BF16 and F32, scales that are
// not positive. One problem per tensor, with the position of the first and the count. `progress` (may be empty) is
// called from the calling thread with bytes done and bytes in all.
void check_values(const Checkpoint& c, ThreadPool& pool, Problems& problems,
                  const std::function<void(std::uint64_t done, std::uint64_t all)>& progress);

}  // namespace fathom::checkpoint
