// A batch of segments with their slots and pages, for tests of the operations that read the cache. What nobody wrote is
// NaN: in any entry format 0xff bytes decode to it.
#pragma once

#include <algorithm>

#include "ops/batch.h"
#include "ops/test_support.h"
#include "quant/block.h"

namespace fathom::ops::testing {

struct Span {
  std::int32_t start;
  std::int32_t tokens;
};

class TestBatch {
 public:
  TestBatch(const std::vector<Span>& spans, std::int64_t slot_bytes, std::int64_t page_bytes) {
    for (const Span& s : spans) {
      const std::int32_t n_pages = (s.start + s.tokens + kPageTokens - 1) / kPageTokens;
      slots_.emplace_back(static_cast<std::size_t>(slot_bytes), std::byte{0xff});
      std::vector<std::byte*> table;
      for (std::int32_t p = 0; p < n_pages; ++p) {
        pages_.emplace_back(static_cast<std::size_t>(page_bytes), std::byte{0xff});
        table.push_back(pages_.back().data());
      }
      tables_.push_back(table);
      segments_.push_back({.first_row = static_cast<std::int32_t>(positions_.size()),
                           .tokens = s.tokens,
                           .start = s.start,
                           .n_pages = n_pages,
                           .slot = slots_.back().data(),
                           .pages = nullptr});
      for (std::int32_t i = 0; i < s.tokens; ++i) {
        positions_.push_back(s.start + i);
        segment_of_.push_back(static_cast<std::int32_t>(segments_.size()) - 1);
      }
    }
    for (std::size_t i = 0; i < segments_.size(); ++i) segments_[i].pages = tables_[i].data();
  }
  TestBatch(const TestBatch&) = delete;
  TestBatch& operator=(const TestBatch&) = delete;

  Batch batch() const {
    return {.tokens = static_cast<std::int32_t>(positions_.size()),
            .n_segments = static_cast<std::int32_t>(segments_.size()),
            .segments = segments_.data(),
            .segment_of = segment_of_.data(),
            .positions = positions_.data(),
            .ids = nullptr};
  }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<std::int32_t>& positions() const { return positions_; }

  // All bytes of slots and pages, to compare what two backends left there.
  std::vector<std::byte> memory() const {
    std::vector<std::byte> all;
    for (const auto& s : slots_) all.insert(all.end(), s.begin(), s.end());
    for (const auto& p : pages_) all.insert(all.end(), p.begin(), p.end());
    return all;
  }

  // The tokens [start, start + tokens) of segment i alone, in the same memory.
  struct One {
    Segment segment;
    std::vector<std::int32_t> segment_of;
    std::vector<std::int32_t> positions;
    Batch batch() const {
      return {.tokens = segment.tokens,
              .n_segments = 1,
              .segments = &segment,
              .segment_of = segment_of.data(),
              .positions = positions.data(),
              .ids = nullptr};
    }
  };
  One one(std::size_t i, std::int32_t start, std::int32_t tokens) const {
    One o;
    o.segment = segments_[i];
    o.segment.first_row = 0;
    o.segment.start = start;
    o.segment.tokens = tokens;
    o.segment_of.assign(static_cast<std::size_t>(tokens), 0);
    for (std::int32_t k = 0; k < tokens; ++k) o.positions.push_back(start + k);
    return o;
  }

 private:
  std::vector<std::vector<std::byte>> slots_;
  std::vector<std::vector<std::byte>> pages_;
  std::vector<std::vector<std::byte*>> tables_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> segment_of_;
  std::vector<std::int32_t> positions_;
};

// dim values as `codec` stores them losslessly.
inline std::vector<float> random_entry(Rng& rng, const quant::EntryCodec& codec) {
  auto x = normals(rng, codec.dim);
  if (codec.format == quant::EntryFormat::kFp4) quant::fp4_round_trip(x);
  if (codec.format == quant::EntryFormat::kFp8RopeF32) {
    quant::fp8_round_trip(std::span(x).first(static_cast<std::size_t>(codec.dim - codec.rope_dim)), quant::kEntryBlock);
  }
  return x;
}

// Fills the rings with the window before each segment, and the pages with all entries that exist at its end.
inline void fill_cache(Rng& rng, const TestBatch& b, const WindowRing* ring, const EntryPages* entries) {
  for (const Segment& s : b.segments()) {
    for (std::int32_t p = std::max(0, s.start - (ring == nullptr ? 0 : ring->capacity)); ring != nullptr && p < s.start;
         ++p) {
      ring->codec.encode(random_entry(rng, ring->codec), ring->at(s.slot, p));
    }
    for (std::int32_t w = 0; entries != nullptr && w < (s.start + s.tokens) / entries->ratio; ++w) {
      entries->codec.encode(random_entry(rng, entries->codec), entries->at(s, w));
    }
  }
}

}  // namespace fathom::ops::testing
