#include "cache/slot_image.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::cache {
namespace {

// Rows of positions [first, last) of a ring, in at most two pieces.
void add_ring(std::int64_t offset, std::int32_t capacity, std::size_t row_bytes, std::int32_t first, std::int32_t last,
              std::vector<Piece>& out) {
  while (first < last) {
    const std::int32_t at = first % capacity;
    const std::int32_t n = std::min(last - first, capacity - at);
    out.push_back({.offset = offset + static_cast<std::int64_t>(at) * static_cast<std::int64_t>(row_bytes),
                   .bytes = static_cast<std::size_t>(n) * row_bytes});
    first += n;
  }
}

// The next token sees its own entry and window-1 before it.
void add_window(const ops::WindowRing& ring, std::int32_t rollback, std::int32_t length, std::vector<Piece>& out) {
  const std::int32_t window = ring.capacity - rollback;
  add_ring(ring.offset, ring.capacity, ring.codec.bytes(), std::max(0, length - window + 1), length, out);
}

// The rows that entries still to come will pool: those of the entry being filled, and of the one before where entries
// overlap (ratio 4).
void add_compressor(const ops::CompressorRing& ring, std::int32_t ratio, std::int32_t length, std::vector<Piece>& out) {
  const std::int32_t filled = length % ratio;
  const std::int32_t first = std::max(0, length - filled - (ratio == 4 ? ratio : 0));
  add_ring(ring.offset, ring.capacity, sizeof(float) * 2 * static_cast<std::size_t>(ring.width), first, length, out);
}

void add_entries(const ops::EntryPages& entries, std::int32_t length, std::vector<Piece>& out) {
  const std::int32_t n = length % ops::kPageTokens / entries.ratio;
  if (n > 0)
    out.push_back(
        {.in_page = true, .offset = entries.offset, .bytes = static_cast<std::size_t>(n) * entries.codec.bytes()});
}

}  // namespace

SlotImage::SlotImage(model::CacheLayout layout, std::int32_t draft_layers, std::size_t extra_bytes)
    : layout_(std::move(layout)), extra_bytes_((extra_bytes + 63) / 64 * 64) {
  FATHOM_CHECK(draft_layers >= 0 && static_cast<std::size_t>(draft_layers) <= layout_.layers.size(),
               "draft layers are layers");
  first_draft_layer_ = layout_.layers.size() - static_cast<std::size_t>(draft_layers);
}

std::vector<Piece> SlotImage::pieces(Reach reach) const {
  FATHOM_CHECK(0 <= reach.drafted && reach.drafted <= reach.length, "the draft block follows the trunk");
  std::vector<Piece> out;
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    const model::LayerCache& layer = layout_.layers[l];
    add_window(layer.window, layout_.rollback, l < first_draft_layer_ ? reach.length : reach.drafted, out);
    if (layer.ratio == 0) continue;
    add_compressor(layer.compressor, layer.ratio, reach.length, out);
    add_entries(layer.entries, reach.length, out);
    if (layer.ratio != 4) continue;
    add_compressor(layer.index_compressor, layer.ratio, reach.length, out);
    add_entries(layer.index_keys, reach.length, out);
  }
  if (extra_bytes_ > 0) out.push_back({.offset = static_cast<std::int64_t>(layout_.slot_bytes), .bytes = extra_bytes_});
  return out;
}

std::size_t SlotImage::bytes(Reach reach) const {
  std::size_t sum = 0;
  for (const Piece& p : pieces(reach)) sum += p.bytes;
  return sum;
}

std::vector<Piece> SlotImage::draft_windows() const {
  std::vector<Piece> out;
  for (std::size_t l = first_draft_layer_; l < layout_.layers.size(); ++l) {
    const ops::WindowRing& ring = layout_.layers[l].window;
    out.push_back({.offset = ring.offset, .bytes = ring.codec.bytes() * static_cast<std::size_t>(ring.capacity)});
  }
  return out;
}

}  // namespace fathom::cache
