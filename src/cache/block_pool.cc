#include "cache/block_pool.h"

#include <algorithm>

namespace fathom::cache {
namespace {

// One allocation of a whole cache would need that much in one piece.
constexpr std::size_t kSlabBytes = std::size_t{256} << 20U;

}  // namespace

Result<BlockPool> BlockPool::create(Memory& memory, std::size_t block_bytes, std::int32_t n_blocks) {
  FATHOM_CHECK(block_bytes >= 1 && n_blocks >= 0, "a pool has blocks of some size");
  BlockPool pool;
  pool.block_bytes_ = block_bytes;
  pool.per_slab_ = static_cast<std::int32_t>(std::clamp<std::size_t>(kSlabBytes / block_bytes, 1, 1U << 20U));
  for (std::int32_t first = 0; first < n_blocks; first += pool.per_slab_) {
    const auto blocks = static_cast<std::size_t>(std::min(pool.per_slab_, n_blocks - first));
    FATHOM_ASSIGN(ops::Buffer slab, memory.allocate(blocks * block_bytes));
    pool.slabs_.push_back(std::move(slab));
  }
  pool.owners_.assign(static_cast<std::size_t>(n_blocks), 0);
  for (BlockId b = n_blocks - 1; b >= 0; --b) pool.free_.push_back(b);
  return pool;
}

BlockId BlockPool::take() {
  if (free_.empty()) return kNoBlock;
  const BlockId b = free_.back();
  free_.pop_back();
  owners_[static_cast<std::size_t>(b)] = 1;
  return b;
}

void BlockPool::release(BlockId b) {
  FATHOM_CHECK(owners(b) > 0, "only a taken block is released");
  if (--owners_[static_cast<std::size_t>(b)] == 0) free_.push_back(b);
}

std::byte* BlockPool::data(BlockId b) const {
  return slabs_[static_cast<std::size_t>(b / per_slab_)].get() + static_cast<std::size_t>(b % per_slab_) * block_bytes_;
}

}  // namespace fathom::cache
