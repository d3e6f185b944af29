// Batch: the tokens of one step, of any mixture of sequences, and where each sequence keeps its memory. model.md 7.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/entry.h"

namespace fathom::ops {

inline constexpr std::int32_t kPageTokens = 128;  // a multiple of every compress ratio: one page table for all layers

// A run of consecutive tokens of one sequence. Zero tokens are legal everywhere and do nothing.
struct Segment {
  std::int32_t first_row = 0;  // row of its first token in the batch
  std::int32_t tokens = 0;
  std::int32_t start = 0;    // position of its first token; [0, start) is already in slot and pages
  std::int32_t n_pages = 0;  // >= ceil((start + tokens) / kPageTokens)
  std::byte* slot = nullptr;
  std::byte* const* pages = nullptr;  // [n_pages], in backend memory like the segment itself
};

// The counts are for whoever launches the work; the arrays, page tables included, are in backend memory.
struct Batch {
  std::int32_t tokens = 0;
  std::int32_t n_segments = 0;
  // No segment ends beyond this position. It bounds work and scratch memory, changes no result, and may be generous.
  std::int32_t longest = 0;
  // No segment has more tokens; 0: not known.
  std::int32_t most = 0;
  const Segment* segments = nullptr;
  const std::int32_t* segment_of = nullptr;  // [tokens]
  const std::int32_t* positions = nullptr;   // [tokens]
  const std::int32_t* ids = nullptr;         // [tokens], each in [0, vocab)
};

// Whether this step's rows may go into a ring of `capacity` positions before its older rows have been read, where a
// token reads `span` positions, itself the last: no segment is so long that it overwrites what its first token reads.
inline bool may_store_first(const Batch& b, std::int32_t capacity, std::int32_t span) {
  return (b.most > 0 ? b.most : b.tokens) <= capacity + 1 - span;
}

// The window keys/values of one layer: a ring in the slot. Position p lies at p mod capacity. The capacity exceeds the
// window by the number of tokens that may be taken back (speculation), so that taking back is forgetting a length.
struct WindowRing {
  std::int64_t offset = 0;  // bytes into the slot
  std::int32_t capacity = 0;
  quant::EntryCodec codec;

  std::byte* at(std::byte* slot, std::int32_t position) const {
    return slot + offset + static_cast<std::int64_t>(position % capacity) * static_cast<std::int64_t>(codec.bytes());
  }
};

// Compressed entries or index keys of one layer, in the pages: entry w covers tokens [ratio*w, ratio*(w+1)).
struct EntryPages {
  std::int64_t offset = 0;  // bytes into every page
  std::int32_t ratio = 0;   // 0: the layer has none
  quant::EntryCodec codec;

  std::byte* at(const Segment& s, std::int32_t entry) const {
    const std::int32_t per_page = kPageTokens / ratio;
    return s.pages[entry / per_page] + offset +
           static_cast<std::int64_t>(entry % per_page) * static_cast<std::int64_t>(codec.bytes());
  }
};

// The projections of recent tokens that the next compressed entry will pool: a ring of f32 rows in the slot, `width`
// key/value columns then `width` score columns (position bias added). Position p lies at p mod capacity.
//
// The published state machine (model.md 5.3) shifts rows after each entry and must be cleared for each sequence; here
// the position alone says which rows are live, so nothing can be stale, and taking tokens back is forgetting a length.
struct CompressorRing {
  std::int64_t offset = 0;  // bytes into the slot, a multiple of 4
  std::int32_t capacity = 0;
  std::int32_t width = 0;  // coff * Dc

  float* row(std::byte* slot, std::int32_t position) const {
    return reinterpret_cast<float*>(slot + offset) + static_cast<std::int64_t>(position % capacity) * 2 * width;
  }
};

}  // namespace fathom::ops
