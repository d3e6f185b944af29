// StepMemory: what a step is told besides its weights (ids, positions, segments, page tables), put where the backend
// reads it, in one copy. Nothing else of a step comes from the host, so a step can be recorded once and played again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/chunk.h"
#include "ops/backend.h"

namespace fathom::model {

class StepMemory {
 public:
  explicit StepMemory(ops::Backend& backend) : backend_(&backend) {}

  // The batch of these chunks, valid until the next call. Chunks without tokens leave no trace in it. Where its arrays
  // lie depends on Batch::tokens, Batch::n_segments and generation() alone. Error: kExhausted; only where more memory
  // is needed than ever before.
  Result<ops::Batch> upload(std::span<const Chunk> chunks);

  // Rises whenever the memory had to move.
  std::uint32_t generation() const { return generation_; }

 private:
  ops::Backend* backend_;
  ops::Buffer memory_;
  std::size_t capacity_ = 0;
  std::uint32_t generation_ = 0;
  std::vector<std::byte> staging_;
};

}  // namespace fathom::model
