#include "model/step_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "model/cache_layout.h"

namespace fathom::model {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kFirstCapacity = std::size_t{64} << 10;
// Batch::longest comes in powers of two from here on, so that steps of growing sequences look alike.
constexpr std::uint32_t kShortestBound = 1024;

std::size_t aligned(std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t pages_of(const Chunk& c) {
  return std::min(c.pages.size(), static_cast<std::size_t>(CacheLayout::pages_for(std::int64_t{c.start} + c.tokens())));
}

// Where everything lies: what has a size of its own last, so that the rest stays in place.
struct Places {
  Places(std::size_t tokens, std::size_t segments, std::size_t pages)
      : positions(aligned(tokens * sizeof(std::int32_t))),
        segment_of(2 * positions),
        segments_at(3 * positions),
        pages_at(segments_at + aligned(segments * sizeof(ops::Segment))),
        bytes(pages_at + pages * sizeof(std::byte*)) {}

  std::size_t ids = 0;
  std::size_t positions;
  std::size_t segment_of;
  std::size_t segments_at;
  std::size_t pages_at;
  std::size_t bytes;
};

}  // namespace

Result<ops::Batch> StepMemory::upload(std::span<const Chunk> chunks) {
  std::size_t tokens = 0;
  std::size_t segments = 0;
  std::size_t pages = 0;
  std::uint32_t end = kShortestBound;
  for (const Chunk& c : chunks) {
    if (c.ids.empty()) continue;
    tokens += c.ids.size();
    ++segments;
    pages += pages_of(c);
    end = std::max(end, static_cast<std::uint32_t>(c.start + c.tokens()));
  }
  const Places at(tokens, segments, pages);
  if (at.bytes > capacity_) {
    const std::size_t wanted = std::max(kFirstCapacity, std::bit_ceil(at.bytes));
    FATHOM_ASSIGN(memory_, backend_->allocate(wanted));
    capacity_ = wanted;
    ++generation_;
  }

  staging_.assign(at.bytes, std::byte{0});
  std::byte* const base = memory_.get();
  const auto put = [&](std::size_t where, const auto& value) {
    std::memcpy(staging_.data() + where, &value, sizeof(value));
  };
  std::int32_t row = 0;
  std::int32_t segment = 0;
  std::size_t page_at = at.pages_at;
  for (const Chunk& c : chunks) {
    if (c.ids.empty()) continue;
    const std::size_t n_pages = pages_of(c);
    put(at.segments_at + static_cast<std::size_t>(segment) * sizeof(ops::Segment),
        ops::Segment{.first_row = row,
                     .tokens = c.tokens(),
                     .start = c.start,
                     .n_pages = static_cast<std::int32_t>(n_pages),
                     .slot = c.slot,
                     .pages = reinterpret_cast<std::byte* const*>(base + page_at)});
    if (n_pages > 0) std::memcpy(staging_.data() + page_at, c.pages.data(), n_pages * sizeof(std::byte*));
    page_at += n_pages * sizeof(std::byte*);
    for (std::int32_t i = 0; i < c.tokens(); ++i, ++row) {
      const std::size_t place = static_cast<std::size_t>(row) * sizeof(std::int32_t);
      put(at.ids + place, c.ids[static_cast<std::size_t>(i)]);
      put(at.positions + place, c.start + i);
      put(at.segment_of + place, segment);
    }
    ++segment;
  }
  if (!staging_.empty()) backend_->copy_in(base, staging_.data(), staging_.size());
  const auto ints = [base](std::size_t where) { return reinterpret_cast<const std::int32_t*>(base + where); };
  return ops::Batch{.tokens = row,
                    .n_segments = segment,
                    .longest = static_cast<std::int32_t>(std::min(std::bit_ceil(end), std::uint32_t{1} << 30)),
                    .most = row - segment + 1,  // every segment has one: no more than tokens and segments tell
                    .segments = reinterpret_cast<const ops::Segment*>(base + at.segments_at),
                    .segment_of = ints(at.segment_of),
                    .positions = ints(at.positions),
                    .ids = ints(at.ids)};
}

}  // namespace fathom::model
