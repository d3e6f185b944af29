// How fast this machine reads memory: the limit that decode speed is held against, measured in the same run.
#pragma once

#include "base/thread_pool.h"

namespace fathom {

// Bytes per second of reading a buffer far larger than the caches (512 MiB) with all threads of the pool, the best of a
// few rounds. Takes about half a second. 0 where the memory cannot be had.
double measure_read_bandwidth(ThreadPool& pool);

}  // namespace fathom
