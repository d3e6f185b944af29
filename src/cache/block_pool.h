// BlockPool: a fixed number of equal blocks of memory, shared by counting. Pages and slots come from such pools; all
// memory is taken at the start, so a running engine cannot run out of what it was promised.
//
// One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "cache/memory.h"

namespace fathom::cache {

using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

class BlockPool {
 public:
  // block_bytes >= 1, n_blocks >= 0; memory outlives the pool. Error: kExhausted.
  static Result<BlockPool> create(Memory& memory, std::size_t block_bytes, std::int32_t n_blocks);

  // A block with one owner, its bytes whatever the last owner left; kNoBlock where all are taken.
  BlockId take();
  // One more owner, or one less; with the last one the block is free.
  void share(BlockId b) {
    FATHOM_CHECK(owners(b) > 0, "only a taken block is shared");
    ++owners_[static_cast<std::size_t>(b)];
  }
  void release(BlockId b);

  std::int32_t owners(BlockId b) const { return owners_[static_cast<std::size_t>(b)]; }
  std::byte* data(BlockId b) const;
  std::size_t block_bytes() const { return block_bytes_; }
  std::int32_t total() const { return static_cast<std::int32_t>(owners_.size()); }
  std::int32_t free() const { return static_cast<std::int32_t>(free_.size()); }

 private:
  std::size_t block_bytes_ = 0;
  std::int32_t per_slab_ = 1;
  std::vector<ops::Buffer> slabs_;
  std::vector<std::int32_t> owners_;
  std::vector<BlockId> free_;
};

}  // namespace fathom::cache
