// A device that computes as the CPU does, until a file "fault" lies beside this plug-in: from then on every step fails,
// as on a GPU whose context is lost. For serve_test.cc, which puts it where the CUDA backend is looked for.
#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "cli/tap_backend.h"
#include "ops/device_plugin.h"

extern "C" __attribute__((visibility("default"))) const fathom::ops::CudaPlugin* fathom_cuda_plugin();

namespace {

using namespace fathom;

class FailingBackend final : public cli::TapBackend {
 public:
  explicit FailingBackend(std::filesystem::path fault)
      : TapBackend(ops::make_cpu_backend({.threads = 1})), fault_(std::move(fault)) {}
  Result<> finish() override {
    if (std::filesystem::exists(fault_)) return fail(Code::kInternal, "experts: an illegal memory access was made");
    return TapBackend::finish();
  }

 private:
  std::filesystem::path fault_;
};

Result<std::unique_ptr<ops::Backend>> open_failing(const ops::CudaOptions&) {
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(&fathom_cuda_plugin), &self) == 0) {
    return fail(Code::kUnavailable, "cannot tell where the plug-in lies");
  }
  return std::make_unique<FailingBackend>(std::filesystem::path(self.dli_fname).parent_path() / "fault");
}

}  // namespace

extern "C" const fathom::ops::CudaPlugin* fathom_cuda_plugin() {
  static constexpr ops::CudaPlugin kPlugin = {.stamp = FATHOM_BUILD_STAMP, .open = open_failing};
  return &kPlugin;
}
