// The two places of an attention layer where projections have come out and elementwise work follows: several small
// operations that do not depend on each other, in one, because each alone takes a device longer to begin than to do.
// The same bytes as one after another.
#pragma once

#include <optional>

#include "ops/attention/heads.h"
#include "ops/attention/sparse_attention.h"
#include "ops/compressor/compress.h"
#include "ops/indexer/index_select.h"
#include "ops/norm/rms_norm.h"

namespace fathom::ops {

// What follows the projections of the layer's input: the latent query normalised (model.md 4.1), the window's key and
// value (4.2), the entries of the compressors (5) that the layer has.
struct AttentionInputs {
  RmsNorm latent;
  WindowEntries window;
  std::optional<StoreWindow> store = {};  // of the window's rows, where attention may still follow: may_store_first()
  std::optional<Compress> entries = {};   // the main compressor's, where the layer compresses
  std::optional<Compress> keys = {};      // the indexer's, where the layer selects
};

// What follows the projections of the latent query (model.md 4.1, 6.1).
struct Queries {
  QueryHeads heads;
  std::optional<IndexQuery> index = {};  // where the layer selects
};

}  // namespace fathom::ops
