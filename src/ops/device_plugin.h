// The CUDA backend, opened at run time. It is a shared object of its own, libfathom_cuda.so, loaded here and nowhere
// else: whoever does not ask for a GPU needs no CUDA, touches no driver and may fork.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/result.h"
#include "ops/backend.h"
#include "ops/kernel_table.h"

namespace fathom::ops {

struct CudaOptions {
  std::int32_t device = 0;  // as the driver counts them
  bool replay = true;       // record steps and launch them again as one piece; changes no result
  bool blame = false;       // wait for every kernel, so that a fault names the one that caused it
  LeafSet off = {};         // kernels not to use; the portable ones in their place
};

// Opens device `options.device`. library: the plug-in; by default it lies beside the running program or in
// ../lib/fathom from there. Errors: kUnavailable, saying what is missing (plug-in, driver, device, its capability:
// required and found); kInvalid for a device number that no machine has; kExhausted.
Result<std::unique_ptr<Backend>> open_cuda(const CudaOptions& options, const std::filesystem::path& library = {});

// What the plug-in hands over. Program and plug-in share C++ types, so they must come from one build: `stamp` says
// which.
struct CudaPlugin {
  const char* stamp = nullptr;
  Result<std::unique_ptr<Backend>> (*open)(const CudaOptions& options) = nullptr;
};
inline constexpr const char* kCudaPluginEntry = "fathom_cuda_plugin";  // extern "C" const CudaPlugin* (*)()

}  // namespace fathom::ops
