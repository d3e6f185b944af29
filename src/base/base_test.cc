#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "fathom-base-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

void write_file(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

Result<int> half(int x) {
  if (x % 2 != 0) return fail(Code::kInvalid, "{} is odd", x);
  return x / 2;
}
Result<int> quarter(int x) {
  FATHOM_ASSIGN(const int h, half(x));
  return half(h);
}

TEST(Result, CarriesTheErrorUpward) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().what, "3 is odd");
  EXPECT_EQ(quarter(5).error().code, Code::kInvalid);
}

TEST(CheckDeathTest, NamesThePlaceAndTheReason) {
  EXPECT_DEATH(FATHOM_CHECK(1 + 1 == 3, "arithmetic holds"), "base_test.cc.*arithmetic holds");
}

TEST(MappedFile, MapsBytesAndNoticesChange) {
  TempDir dir;
  write_file(dir / "a", "hello");
  auto file = MappedFile::open(dir / "a");
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "hello");
  EXPECT_FALSE(file->changed());
  write_file(dir / "a", "hello, world");
  EXPECT_TRUE(file->changed());
}

TEST(MappedFile, EmptyMissingAndIrregularFiles) {
  TempDir dir;
  write_file(dir / "empty", "");
  EXPECT_TRUE(MappedFile::open(dir / "empty")->bytes().empty());
  EXPECT_EQ(MappedFile::open(dir / "missing").error().code, Code::kNotFound);
  EXPECT_NE(MappedFile::open(dir / "missing").error().what.find("missing"), std::string::npos);
  fs::create_directory(dir / "folder");
  EXPECT_EQ(MappedFile::open(dir / "folder").error().code, Code::kNotFound);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(dir / "pipe").error().code, Code::kNotFound);
}

TEST(ReadTextFile, BoundsTheSize) {
  TempDir dir;
  write_file(dir / "a", "12345");
  EXPECT_EQ(read_text_file(dir / "a", 5).value(), "12345");
  EXPECT_EQ(read_text_file(dir / "a", 4).error().code, Code::kInvalid);
}

TEST(ParseJson, RefusesWhatIsTooDeepTooLargeOrNotJson) {
  EXPECT_EQ(parse_json(R"({"a":[1,2]})", "t").value()["a"][1], 2);
  EXPECT_EQ(parse_json(std::string(100'000, '['), "t").error().code, Code::kInvalid);
  EXPECT_TRUE(parse_json(R"("[[[[[[[[")", "t", {.max_bytes = 100, .max_depth = 2}));
  EXPECT_FALSE(parse_json("[[[1]]]", "t", {.max_bytes = 100, .max_depth = 2}));
  EXPECT_FALSE(parse_json("[1]", "t", {.max_bytes = 2, .max_depth = 2}));
  EXPECT_NE(parse_json("{\"a\":}", "config.json").error().what.find("config.json"), std::string::npos);
  EXPECT_FALSE(parse_json("\"\xff\"", "t"));
}

}  // namespace
}  // namespace fathom
