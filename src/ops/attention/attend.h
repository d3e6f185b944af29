// Attention with what stands before and behind it, in one: queries made ready, the selection, attention, the grouped
// projection of its output (model.md 4.1-4.4, 6). For a device that reads many tokens at once, queries and outputs are
// the largest values of a layer, and each way through memory takes as long as attention over a window.
//
// z has the same bytes as one after another; what queries.heads.q and attention.out hold afterwards is void.
#pragma once

#include <optional>

#include "ops/attention/inputs.h"
#include "ops/attention/sparse_attention.h"
#include "ops/indexer/index_select.h"
#include "ops/linear/linear.h"

namespace fathom::ops {

struct Attend {
  Queries queries;
  std::optional<IndexSelect> select = {};  // where the layer selects
  SparseAttention attention;               // of queries.heads, turned by the same angles
  Linear project;                          // of attention.out
};

}  // namespace fathom::ops
