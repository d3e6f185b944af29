// The plug-in's backend. Its operations are ops.h's functions; here are memory, order, recording and faults.
#pragma once

#include <memory>

#include "base/result.h"
#include "ops/device_plugin.h"

namespace fathom::ops::cuda {

// Errors: those of ops::open_cuda, but for finding the plug-in.
Result<std::unique_ptr<Backend>> open(const CudaOptions& options);

// Whether the plug-in holds machine code, or code to translate, for the current device.
bool has_code();

}  // namespace fathom::ops::cuda
