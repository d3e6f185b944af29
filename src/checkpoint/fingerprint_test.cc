#include "checkpoint/fingerprint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace fathom::checkpoint {
namespace {

namespace fs = std::filesystem;

std::uint64_t fingerprint_of(const fs::path& folder) {
  const auto opened = Checkpoint::open(folder);
  EXPECT_TRUE(opened) << opened.error().what;
  return fingerprint(*opened);
}

// The same bytes elsewhere are the same model; one changed byte, a touched file or another model is not.
TEST(Fingerprint, TellsCheckpointsApart) {
  std::string name = (fs::temp_directory_path() / "fathom-fingerprint-XXXXXX").string();
  const fs::path dir = ::mkdtemp(name.data());
  const fs::path source = std::string(FATHOM_SOURCE_DIR) + "/tests/data/models/micro-random";
  for (const char* copy : {"a", "b"}) {
    fs::copy(source, dir / copy);
    fs::last_write_time(dir / copy / "model.safetensors", fs::file_time_type::clock::time_point(std::chrono::hours(1)));
  }
  const std::uint64_t a = fingerprint_of(dir / "a");
  EXPECT_EQ(fingerprint_of(dir / "a"), a);
  EXPECT_EQ(fingerprint_of(dir / "b"), a);
  EXPECT_NE(fingerprint_of(std::string(FATHOM_SOURCE_DIR) + "/tests/data/models/micro-random-fp"), a);

  const fs::path file = dir / "b" / "model.safetensors";
  const auto time = fs::last_write_time(file);
  const std::size_t at = fs::file_size(file) - 1;  // the last byte of the last tensor
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .put('\x11');
  fs::last_write_time(file, time + std::chrono::seconds(1));
  EXPECT_NE(fingerprint_of(dir / "b"), a);
  fs::last_write_time(dir / "a" / "model.safetensors", time + std::chrono::seconds(9));
  EXPECT_NE(fingerprint_of(dir / "a"), a);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace fathom::checkpoint
