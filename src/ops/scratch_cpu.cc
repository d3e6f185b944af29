#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "ops/cpu.h"

namespace fathom::ops::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallestBlock = std::size_t{1} << 20;

}  // namespace

void Scratch::Free::operator()(std::byte* p) const { std::free(p); }

void Scratch::reset() {
  if (blocks_.size() > 1) {
    std::size_t total = 0;
    for (const Block& b : blocks_) total += b.bytes;
    blocks_.clear();
    add_block(total);
  }
  used_ = 0;
}

void Scratch::add_block(std::size_t bytes) {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
  FATHOM_CHECK(p != nullptr, "memory for the scratch space of the CPU operations");
  blocks_.push_back({std::unique_ptr<std::byte[], Free>(p), bytes});
  used_ = 0;
}

std::byte* Scratch::take_bytes(std::size_t n) {
  n = (n + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().bytes - used_ < n) add_block(std::max(n, kSmallestBlock));
  std::byte* p = blocks_.back().memory.get() + used_;
  used_ += n;
  return p;
}

std::int64_t grain(std::int64_t n, std::int64_t cost, std::int64_t step, const Context& ctx) {
  constexpr std::int64_t kWorthATurn = 1 << 15;  // multiply-adds: a few microseconds of one core
  constexpr std::int64_t kTurns = 128;           // per thread, so that a late thread delays the others by little
  const std::int64_t even = n / (kTurns * ctx.pool.size());
  const std::int64_t least = kWorthATurn / std::max<std::int64_t>(cost, 1);
  const std::int64_t rows = std::max<std::int64_t>({even, least, 1});
  return (rows + step - 1) / step * step;
}

}  // namespace fathom::ops::cpu
