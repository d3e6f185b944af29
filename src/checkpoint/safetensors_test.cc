#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "checkpoint/test_files.h"
#include "checkpoint/writer.h"

namespace fathom::checkpoint {
namespace {

using testing::HasSubstr;

std::filesystem::path temp(const char* name) { return std::filesystem::path(testing::TempDir()) / name; }

TEST(Safetensors, ReadsWhatItWrites) {
  const std::vector<float> f = {1.0F, -2.5F};
  const std::vector<std::uint8_t> b = {7, 8, 9};
  const std::filesystem::path path = temp("roundtrip.safetensors");
  const auto wrote = write_safetensors(path,
                                       {{"b", DType::kF8E8M0, {3, 1}, std::as_bytes(std::span(b))},
                                        {"a \"quoted\"", DType::kF32, {2}, std::as_bytes(std::span(f))},
                                        {"none", DType::kBf16, {0, 5}, {}}},
                                       {{"format", "pt"}});
  ASSERT_TRUE(wrote) << wrote.error().what;
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(file->header().metadata, (Metadata{{"format", "pt"}}));
  const TensorInfo* a = file->find("a \"quoted\"");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->begin % 4, 0U);
  EXPECT_EQ(a->shape, (Shape{2}));
  EXPECT_EQ(std::memcmp(file->bytes(*a).data(), f.data(), 8), 0);
  const TensorInfo* bytes = file->find("b");
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(bytes->dtype, DType::kF8E8M0);
  EXPECT_EQ(std::memcmp(file->bytes(*bytes).data(), b.data(), 3), 0);
  ASSERT_NE(file->find("none"), nullptr);
  EXPECT_EQ(file->find("no"), nullptr);
}

TEST(Safetensors, LeavesNothingBehindWhenWritingFails) {
  const std::vector<float> f = {1.0F};
  const OutTensor t{"t", DType::kF32, {1}, std::as_bytes(std::span(f))};
  const std::filesystem::path path = temp("twice.safetensors");
  const auto twice = write_safetensors(path, {t, t});
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().what, HasSubstr("tensor t appears twice"));
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto nowhere = write_safetensors("/nonexistent/x.safetensors", {t});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Code::kNotFound);
  const auto device = write_safetensors("/dev/null", {t});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kInvalid);
}

// A limit on the size of files stands in for a full disk.
TEST(Safetensors, FullDiskIsAnErrorAndLeavesNothing) {
  const Folder folder("full");
  const auto write_too_much = [&] {
    const rlimit limit = {4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0 || std::signal(SIGXFSZ, SIG_IGN) == SIG_ERR) ::_exit(2);
    const std::vector<std::byte> bytes(1 << 20);
    const auto r = write_safetensors(folder.path() / "x.safetensors", {{"t", DType::kF8E4M3, {1 << 20}, bytes}});
    if (r || r.error().code != Code::kExhausted || !std::filesystem::is_empty(folder.path())) ::_exit(1);
    fmt::print(stderr, "{}\n", r.error().what);
    ::_exit(0);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(0), "x.safetensors: cannot write: File too large");
}

}  // namespace
}  // namespace fathom::checkpoint
