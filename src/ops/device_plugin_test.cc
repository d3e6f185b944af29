#include "ops/device_plugin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace fathom::ops {
namespace {

using ::testing::HasSubstr;

std::filesystem::path beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

Error error_of(const CudaOptions& options, const std::filesystem::path& library) {
  const auto opened = open_cuda(options, library);
  return opened ? Error{Code::kInternal, "it opened"} : opened.error();
}

TEST(DevicePlugin, AMissingPluginIsNamed) {
  const Error e = error_of({}, "/nowhere/libfathom_cuda.so");
  EXPECT_EQ(e.code, Code::kUnavailable);
  EXPECT_THAT(e.what, HasSubstr("/nowhere/libfathom_cuda.so"));
}

TEST(DevicePlugin, AnotherLibraryIsRefused) {
  const Error e = error_of({}, "libm.so.6");
  EXPECT_EQ(e.code, Code::kUnavailable);
  EXPECT_THAT(e.what, HasSubstr("libm.so.6 is not a CUDA backend"));
}

TEST(DevicePlugin, APluginOfAnotherBuildIsRefused) {
  const Error e = error_of({}, beside_this_program("libfathom_other_plugin.so"));
  EXPECT_EQ(e.code, Code::kUnavailable);
  EXPECT_THAT(e.what, HasSubstr("was built as \"another build\""));
  EXPECT_THAT(e.what, HasSubstr(FATHOM_BUILD_STAMP));
}

TEST(DevicePlugin, DevicesAreCountedFromZero) {
  const Error e = error_of({.device = -1}, {});
  EXPECT_EQ(e.code, Code::kInvalid);
  EXPECT_THAT(e.what, HasSubstr("-1"));
}

// Whatever this machine has: the plug-in opens, or says what is missing.
TEST(DevicePlugin, SaysWhatIsMissing) {
  const bool built = std::filesystem::exists(beside_this_program("libfathom_cuda.so"));
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto opened = open_cuda({});
  if (opened) {
    EXPECT_TRUE(built);
    EXPECT_NE(driver, nullptr);
    EXPECT_THAT(std::string((*opened)->name()), HasSubstr("cuda:0"));
    EXPECT_THAT(error_of({.device = 4711}, {}).what, HasSubstr("4711"));
    return;
  }
  EXPECT_EQ(opened.error().code, Code::kUnavailable);
  if (!built) {
    EXPECT_THAT(opened.error().what, HasSubstr("not installed"));
  } else if (driver == nullptr) {
    EXPECT_THAT(opened.error().what, HasSubstr("libcuda.so.1"));
  } else {
    EXPECT_THAT(opened.error().what, HasSubstr("CUDA"));
  }
}

}  // namespace
}  // namespace fathom::ops
