// CacheLayout: where every layer keeps what, in a sequence's slot and in its pages. model.md 7, 13.3.
//
// The model publishes this and is handed slots and pages; who owns them, shares them or writes them to disk is not its
// business, and what the bytes mean is not theirs.
//   page: 128 tokens of every layer; ratio-4 entries with index keys, ratio-128 entries
//   slot: what is not per page; window rings and compressor rings
#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/model_config.h"
#include "ops/batch.h"
#include "ops/numerics.h"

namespace fathom::model {

struct LayerCache {
  std::int32_t ratio = 0;  // 0: window only; 4: entries chosen by the indexer; 128: all entries
  ops::WindowRing window;
  ops::CompressorRing compressor;
  ops::CompressorRing index_compressor;  // ratio 4
  ops::EntryPages entries;
  ops::EntryPages index_keys;  // ratio 4
};

struct CacheLayout {
  std::vector<LayerCache> layers;  // the trunk's, then one for each draft stage
  std::size_t slot_bytes = 0;      // multiples of 64
  std::size_t page_bytes = 0;
  std::int32_t rollback = 0;  // tokens that may be taken back from a sequence by forgetting its length

  static std::int32_t pages_for(std::int64_t tokens) {
    return static_cast<std::int32_t>((tokens + ops::kPageTokens - 1) / ops::kPageTokens);
  }
};

// config must be valid. rollback >= 0.
CacheLayout plan_cache(const checkpoint::ModelConfig& config, ops::Numerics numerics, std::int32_t rollback);

}  // namespace fathom::model
