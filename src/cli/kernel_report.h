// `fathom inspect --kernels`: which kernel computes what on which GPU.
#pragma once

#include <string>

#include "ops/kernel_table.h"

namespace fathom::cli {

// A line for each operation, format of weights and range of rows: the portable kernel, and what takes its place on
// which GPUs, without the leaves in `off`.
std::string kernels_as_text(const ops::LeafSet& off);
// The same as one JSON object, ending in a newline. Members are only ever added.
std::string kernels_as_json(const ops::LeafSet& off);

}  // namespace fathom::cli
