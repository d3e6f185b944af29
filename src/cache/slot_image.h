// SlotImage: which bytes of a slot, and of the page being filled, a sequence still needs at a length, in an order that
// does not depend on where rings happen to begin. What a snapshot keeps besides full pages. model.md 7.3.
//
// An image written with one amount of rollback room can be restored with another: rows go by position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/cache_layout.h"

namespace fathom::cache {

// How far a sequence has come: `length` tokens through the trunk, `drafted` (at most length) through the draft block.
struct Reach {
  std::int32_t length = 0;
  std::int32_t drafted = 0;
  bool operator==(const Reach&) const = default;
};

struct Piece {
  bool in_page = false;  // else in the slot
  std::int64_t offset = 0;
  std::size_t bytes = 0;
};

class SlotImage {
 public:
  // extra_bytes of whatever the owner keeps for each sequence stand behind the slot and are part of every image.
  SlotImage(model::CacheLayout layout, std::int32_t draft_layers, std::size_t extra_bytes);

  std::size_t slot_bytes() const { return layout_.slot_bytes + extra_bytes_; }
  // The owner's bytes of a slot.
  std::byte* extra(std::byte* slot) const { return slot + layout_.slot_bytes; }
  const model::CacheLayout& layout() const { return layout_; }

  // The pieces of an image in order. Pieces in a page belong to the page that position `length` is on; there are none
  // where length is a multiple of 128.
  std::vector<Piece> pieces(Reach reach) const;
  std::size_t bytes(Reach reach) const;
  // The window rows of the draft block, all of them: what must be cleared when they are not known.
  std::vector<Piece> draft_windows() const;

 private:
  model::CacheLayout layout_;
  std::size_t first_draft_layer_;
  std::size_t extra_bytes_;
};

}  // namespace fathom::cache
