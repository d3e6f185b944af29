// Which checkpoint this is, for what is kept on disk between runs and is only true of one model.
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"

namespace fathom::checkpoint {

// A hash of what the checkpoint consists of: names, types and shapes of all tensors, sizes and modification times of
// the files, and bytes from the beginning, middle and end of every tensor that is no routed expert. Another checkpoint,
// or a file of this one replaced or rewritten, gives another number; the folder's name does not matter. Reads about a
// page a tensor.
std::uint64_t fingerprint(const Checkpoint& checkpoint);

}  // namespace fathom::checkpoint
