#include "ops/device_plugin.h"

#include <dlfcn.h>

#include <string_view>
#include <system_error>

namespace fathom::ops {
namespace {

constexpr const char* kLibrary = "libfathom_cuda.so";

Result<std::filesystem::path> find_library() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail(Code::kUnavailable, "cannot tell where the program lies: {}", error.message());
  const std::filesystem::path folder = program.parent_path();
  const std::filesystem::path places[] = {folder / kLibrary, folder.parent_path() / "lib" / "fathom" / kLibrary};
  for (const std::filesystem::path& place : places) {
    if (std::filesystem::exists(place, error)) return place;
  }
  return fail(Code::kUnavailable,
              "the CUDA backend is not installed: no {} beside the program (it is built where nvcc is found)",
              kLibrary);
}

}  // namespace

Result<std::unique_ptr<Backend>> open_cuda(const CudaOptions& options, const std::filesystem::path& library) {
  if (options.device < 0) return fail(Code::kInvalid, "CUDA device {}: devices are counted from 0", options.device);
  std::filesystem::path path = library;
  if (path.empty()) {
    FATHOM_ASSIGN(path, find_library());
  }
  // Never closed: code and types of the plug-in live as long as the process.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return fail(Code::kUnavailable, "cannot load the CUDA backend: {}", dlerror());
  const auto entry = reinterpret_cast<const CudaPlugin* (*)()>(dlsym(handle, kCudaPluginEntry));
  const CudaPlugin* plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || plugin->stamp == nullptr || plugin->open == nullptr) {
    return fail(Code::kUnavailable, "{} is not a CUDA backend of Fathom", path.string());
  }
  if (std::string_view(plugin->stamp) != FATHOM_BUILD_STAMP) {
    return fail(Code::kUnavailable, "{} was built as \"{}\", this program as \"{}\": install both from one build",
                path.string(), plugin->stamp, FATHOM_BUILD_STAMP);
  }
  return plugin->open(options);
}

}  // namespace fathom::ops
