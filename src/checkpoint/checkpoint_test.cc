#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include "checkpoint/safetensors.h"

namespace fathom::checkpoint {
namespace {

using testing::HasSubstr;

std::filesystem::path source(const char* relative) { return std::filesystem::path(FATHOM_SOURCE_DIR) / relative; }

struct Model {
  const char* folder;
  std::size_t tensors;
  DraftKind draft;
  bool quantised;
};

// Test names must not hold addresses.
void PrintTo(const Model& m, std::ostream* out) { *out << m.folder; }

class Models : public testing::TestWithParam<Model> {};

TEST_P(Models, OpensWhole) {
  auto opened = Checkpoint::open(source(GetParam().folder));
  ASSERT_TRUE(opened) << opened.error().what;
  const Checkpoint c = std::move(*opened);
  EXPECT_EQ(c.tensors().size(), GetParam().tensors);
  EXPECT_EQ(c.config().draft.kind, GetParam().draft);
  EXPECT_EQ(c.config().draft.stages, 1);
  EXPECT_EQ(c.config().quantised, GetParam().quantised);
  EXPECT_TRUE(c.problems().empty());
  EXPECT_TRUE(c.check_unchanged());
}

TEST_P(Models, ViewsAreAlignedAndOnlyWideElementsAreCopied) {
  auto opened = Checkpoint::open(source(GetParam().folder));
  ASSERT_TRUE(opened) << opened.error().what;
  auto file = SafetensorsFile::open(source(GetParam().folder) / "model.safetensors");
  ASSERT_TRUE(file) << file.error().what;
  std::uint64_t misaligned = 0;
  for (const Tensor& t : opened->tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.bytes.data()) % size_of(t.dtype), 0U) << t.name;
    const TensorInfo* info = file->find(t.name);
    ASSERT_NE(info, nullptr);
    const auto bytes = file->bytes(*info);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), t.bytes.begin(), t.bytes.end())) << t.name;
    if (info->begin % size_of(t.dtype) != 0) misaligned += bytes.size();
  }
  EXPECT_EQ(opened->copied_bytes(), misaligned);
}

TEST_P(Models, TensorsStayWhereTheyAreWhenTheCheckpointMoves) {
  auto opened = Checkpoint::open(source(GetParam().folder));
  ASSERT_TRUE(opened) << opened.error().what;
  const Tensor* before = opened->find("embed.weight");
  ASSERT_NE(before, nullptr);
  const std::byte* data = before->bytes.data();
  const Checkpoint moved = std::move(*opened);
  EXPECT_EQ(moved.find("embed.weight"), before);
  EXPECT_EQ(before->bytes.data(), data);
  EXPECT_EQ(moved.find("embed.weigh"), nullptr);
  EXPECT_EQ(moved.find("zzz"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, Models,
                         testing::Values(Model{"models/fathom-tiny", 932, DraftKind::kMtp, true},
                                         Model{"tests/data/models/micro-random", 190, DraftKind::kMtp, true},
                                         Model{"tests/data/models/micro-random-fp", 272, DraftKind::kMtp, false}));

TEST(Checkpoint, SomeTensorLiesMisaligned) {
  // Else the copying above would go untested.
  auto opened = Checkpoint::open(source("models/fathom-tiny"));
  ASSERT_TRUE(opened) << opened.error().what;
  EXPECT_GT(opened->copied_bytes(), 0U);
}

TEST(Checkpoint, LeavesTheDraftOut) {
  auto opened = Checkpoint::open(source("models/fathom-tiny"), {.access = Access::kData, .draft = false});
  ASSERT_TRUE(opened) << opened.error().what;
  EXPECT_EQ(opened->config().draft.kind, DraftKind::kNone);
  EXPECT_EQ(opened->find("mtp.0.e_proj.weight"), nullptr);
}

TEST(Checkpoint, SaysWhatIsMissing) {
  const auto none = Checkpoint::open("/nonexistent/model");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  EXPECT_THAT(none.error().what, HasSubstr("/nonexistent/model: found nothing, expected the folder of a checkpoint"));
  const auto file = Checkpoint::open(source("models/fathom-tiny/config.json"));
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().what, HasSubstr("found a file, expected the folder"));
}

}  // namespace
}  // namespace fathom::checkpoint
