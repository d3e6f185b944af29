// A plug-in as another build would have left it, for device_plugin_test.cc.
#include "ops/device_plugin.h"

extern "C" const fathom::ops::CudaPlugin* fathom_cuda_plugin();
extern "C" const fathom::ops::CudaPlugin* fathom_cuda_plugin() {
  static constexpr fathom::ops::CudaPlugin kPlugin = {
      .stamp = "another build",
      .open = [](const fathom::ops::CudaOptions&) -> fathom::Result<std::unique_ptr<fathom::ops::Backend>> {
        std::abort();
      }};
  return &kPlugin;
}
