#include "model/cache_layout.h"

#include "base/check.h"

namespace fathom::model {
namespace {

constexpr std::size_t kAlignment = 64;

// Hands out aligned byte ranges one after another.
class Offsets {
 public:
  std::int64_t take(std::size_t bytes) {
    const std::size_t at = next_;
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<std::int64_t>(at);
  }
  std::size_t total() const { return next_; }

 private:
  std::size_t next_ = 0;
};

quant::EntryCodec entry_codec(const checkpoint::ModelConfig& c, ops::Numerics n) {
  using quant::EntryFormat;
  EntryFormat format = EntryFormat::kF32;
  if (n.quantise) {
    format = n.carrier == ops::Carrier::kBf16 ? EntryFormat::kFp8RopeBf16 : EntryFormat::kFp8RopeF32;
  }
  return {format, c.head_dim, c.rope_dim};
}

quant::EntryCodec key_codec(const checkpoint::ModelConfig& c, ops::Numerics n) {
  return {n.quantise ? quant::EntryFormat::kFp4 : quant::EntryFormat::kF32, c.index_dim, c.rope_dim};
}

// The rows that an entry pools, and room for those of tokens that may be taken back.
ops::CompressorRing compressor_ring(std::int32_t ratio, std::int32_t dim, std::int32_t rollback, Offsets& slot) {
  const std::int32_t overlap = ratio == 4 ? 2 : 1;
  ops::CompressorRing ring{.offset = 0, .capacity = overlap * ratio + rollback, .width = overlap * dim};
  ring.offset =
      slot.take(sizeof(float) * 2 * static_cast<std::size_t>(ring.width) * static_cast<std::size_t>(ring.capacity));
  return ring;
}

ops::EntryPages entry_pages(std::int32_t ratio, const quant::EntryCodec& codec, Offsets& page) {
  const auto per_page = static_cast<std::size_t>(ops::kPageTokens / ratio);
  return {.offset = page.take(per_page * codec.bytes()), .ratio = ratio, .codec = codec};
}

}  // namespace

CacheLayout plan_cache(const checkpoint::ModelConfig& config, ops::Numerics numerics, std::int32_t rollback) {
  FATHOM_CHECK(rollback >= 0, "tokens are taken back, not added");
  CacheLayout layout;
  layout.rollback = rollback;
  Offsets slot;
  Offsets page;
  for (std::int32_t l = 0; l < config.layers + config.draft.stages; ++l) {
    LayerCache layer;
    layer.ratio = l < config.layers ? config.compress_ratios[static_cast<std::size_t>(l)] : 0;
    layer.window = {.offset = 0, .capacity = config.window + rollback, .codec = entry_codec(config, numerics)};
    layer.window.offset = slot.take(layer.window.codec.bytes() * static_cast<std::size_t>(layer.window.capacity));
    if (layer.ratio != 0) {
      FATHOM_CHECK(ops::kPageTokens % layer.ratio == 0, "a page holds whole entries");
      layer.compressor = compressor_ring(layer.ratio, config.head_dim, rollback, slot);
      layer.entries = entry_pages(layer.ratio, entry_codec(config, numerics), page);
    }
    if (layer.ratio == 4) {
      layer.index_compressor = compressor_ring(layer.ratio, config.index_dim, rollback, slot);
      layer.index_keys = entry_pages(layer.ratio, key_codec(config, numerics), page);
    }
    layout.layers.push_back(layer);
  }
  layout.slot_bytes = slot.total();
  layout.page_bytes = page.total();
  return layout;
}

}  // namespace fathom::model
