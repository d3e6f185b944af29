#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include "cache/disk_tier.h"

namespace fathom::cache {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Fingerprint kOurs = fingerprint_of("a model");

std::vector<std::byte> bytes_of(std::size_t n, int seed) {
  std::vector<std::byte> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed) * 7) % 251);
  return out;
}

FileHeader page(std::uint64_t id, std::uint64_t parent, std::int32_t position, std::int32_t token = 5) {
  FileHeader h;
  h.id = id;
  h.parent = parent;
  h.position = position;
  h.tokens.assign(128, token);
  h.payload_bytes = 1000;
  return h;
}

FileHeader snapshot(std::uint64_t id, std::uint64_t parent, std::int32_t position) {
  FileHeader h;
  h.kind = FileKind::kSnapshot;
  h.id = id;
  h.parent = parent;
  h.position = position;
  h.tokens = {1, 2, 3};
  h.drafted = position + 2;
  h.payload_bytes = 77;
  return h;
}

class Disk : public ::testing::Test {
 protected:
  Disk() {
    std::string name = (fs::temp_directory_path() / "fathom-disk-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~Disk() override { fs::remove_all(dir_); }

  fs::path put(const FileHeader& h, const Fingerprint& f = kOurs) const {
    const fs::path path = dir_ / file_name(h.kind, h.id);
    EXPECT_TRUE(write_file(path, encode_file(h, f, bytes_of(h.payload_bytes, static_cast<int>(h.id)))).has_value());
    return path;
  }
  // Opens the directory; ids that were accepted.
  std::vector<std::uint64_t> scan() {
    warnings_.clear();
    std::vector<DiskTier::Found> found;
    auto tier = DiskTier::open({.directory = dir_,
                                .fingerprint = kOurs,
                                .warn =
                                    [this](std::string_view w) {
                                      const std::lock_guard l(mutex_);
                                      warnings_ += std::string(w) + "\n";
                                    }},
                               found);
    EXPECT_TRUE(tier.has_value());
    std::vector<std::uint64_t> ids;
    for (const auto& f : found) ids.push_back(f.header.id);
    return ids;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir_), {})) -
           (fs::exists(dir_ / "lock") ? 1U : 0U);
  }

  fs::path dir_;
  std::mutex mutex_;
  std::string warnings_;
};

void overwrite(const fs::path& path, std::int64_t at, char value) {
  std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(at);
  f.put(value);
}

TEST_F(Disk, AFileComesBackAsItWas) {
  FileHeader h = snapshot(9, 4, 256);
  const auto payload = bytes_of(77, 9);
  const fs::path path = put(h);
  const auto back = read_file_header(path, kOurs);
  ASSERT_TRUE(back.has_value()) << back.error().what;
  EXPECT_EQ(back->tokens, h.tokens);
  EXPECT_EQ(back->position, 256);
  EXPECT_EQ(back->drafted, 258);
  EXPECT_EQ(back->parent, 4U);
  EXPECT_EQ(read_file_payload(path, kOurs).value(), payload);
  h = page(1, 0, 0);
  h.salt = "somebody";
  EXPECT_EQ(read_file_header(put(h), kOurs)->salt, "somebody");
}

TEST_F(Disk, EveryDamagedByteIsFound) {
  FileHeader h = page(3, 0, 0);
  h.payload_bytes = 40;
  h.salt = "s";
  const auto whole = encode_file(h, kOurs, bytes_of(40, 3));
  const fs::path path = dir_ / file_name(h.kind, h.id);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto damaged = whole;
    damaged[i] ^= std::byte{0x10};
    ASSERT_TRUE(write_file(path, damaged).has_value());
    EXPECT_FALSE(read_file_payload(path, kOurs).has_value()) << "byte " << i;
  }
  for (std::size_t n = 0; n < whole.size(); ++n) {
    ASSERT_TRUE(write_file(path, std::span(whole).first(n)).has_value());
    EXPECT_FALSE(read_file_header(path, kOurs).has_value()) << "cut at " << n;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  ASSERT_TRUE(write_file(path, longer).has_value());
  EXPECT_FALSE(read_file_header(path, kOurs).has_value());
}

TEST_F(Disk, ScanKeepsWhatIsWholeAndRemovesTheRest) {
  put(page(1, 0, 0));
  put(page(2, 1, 128));
  put(snapshot(3, 2, 256));
  put(page(4, 0, 0));        // the same tokens in the same place as 1: a double
  put(snapshot(5, 4, 128));  // continues the double
  put(page(7, 6, 128));      // 6 is not there
  put(page(8, 1, 256, 6));   // says that it follows 256 tokens, 1 ends at 128
  put(page(9, 0, 0, 9), fingerprint_of("another model"));
  overwrite(put(page(10, 1, 128, 10)), 200, 'x');  // a token
  fs::resize_file(put(page(11, 1, 128, 11)), 700);
  fs::copy(dir_ / file_name(FileKind::kPage, 2), dir_ / file_name(FileKind::kPage, 12));
  std::ofstream(dir_ / (file_name(FileKind::kPage, 13) + ".tmp")) << "half";
  std::ofstream(dir_ / "notes.txt") << "not ours";
  fs::create_directory(dir_ / "00000000000000aa.page");
  fs::create_symlink("/etc/passwd", dir_ / "00000000000000ab.page");
  EXPECT_EQ(scan(), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_THAT(warnings_, HasSubstr("another model"));
  EXPECT_THAT(warnings_, HasSubstr("is damaged"));
  EXPECT_THAT(warnings_, HasSubstr("0000000000000007.page continues nothing"));
  EXPECT_TRUE(fs::exists(dir_ / "notes.txt"));
  EXPECT_TRUE(fs::exists("/etc/passwd"));
  EXPECT_EQ(files(), 4U) << "three files and the notes";
  EXPECT_EQ(scan(), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(warnings_, "") << "the second start has nothing to complain of";
}

TEST_F(Disk, NumbersAreNotUsedTwice) {
  put(page(41, 40, 128));  // an orphan: removed, but its number is taken
  std::vector<DiskTier::Found> found;
  auto tier = DiskTier::open({.directory = dir_, .fingerprint = kOurs}, found).value();
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(tier->new_id(), 42U);
}

TEST_F(Disk, WritesReadsAndRemovesInOrder) {
  std::vector<DiskTier::Found> found;
  auto tier = DiskTier::open({.directory = dir_ / "made" / "here", .fingerprint = kOurs}, found).value();
  std::vector<FileHeader> headers;
  for (int i = 0; i < 5; ++i) {
    headers.push_back(page(tier->new_id(), headers.empty() ? 0 : headers.back().id, i * 128));
    tier->write(headers.back(), bytes_of(1000, i));
  }
  tier->drain();
  EXPECT_EQ(tier->queued_bytes(), 0U);
  const auto written = tier->poll().written;
  ASSERT_EQ(written.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(written[i].id, headers[i].id);
    EXPECT_TRUE(written[i].ok);
  }
  tier->read(77, {{FileKind::kPage, headers[3].id}, {FileKind::kPage, headers[0].id}});
  tier->drain();
  auto read = tier->poll().read;
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].ticket, 77U);
  EXPECT_EQ(read[0].failed, 0U);
  EXPECT_EQ(read[0].payloads, (std::vector<std::vector<std::byte>>{bytes_of(1000, 3), bytes_of(1000, 0)}));
  tier->remove(FileKind::kPage, headers[3].id);
  tier->drain();
  tier->read(78, {{FileKind::kPage, headers[0].id}, {FileKind::kPage, headers[3].id}});
  tier->drain();
  read = tier->poll().read;
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].failed, headers[3].id);
  EXPECT_TRUE(read[0].payloads.empty());
}

TEST_F(Disk, ADirectoryThatGoesAwayFailsWritesAndNothingElse) {
  std::vector<DiskTier::Found> found;
  auto tier = DiskTier::open({.directory = dir_ / "x", .fingerprint = kOurs}, found).value();
  fs::remove_all(dir_ / "x");
  tier->write(page(tier->new_id(), 0, 0), bytes_of(1000, 1));
  tier->drain();
  const auto done = tier->poll();
  ASSERT_EQ(done.written.size(), 1U);
  EXPECT_FALSE(done.written[0].ok);
}

TEST_F(Disk, OneProcessAtATime) {
  std::vector<DiskTier::Found> found;
  auto first = DiskTier::open({.directory = dir_, .fingerprint = kOurs}, found);
  auto second = DiskTier::open({.directory = dir_, .fingerprint = kOurs}, found);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  first->reset();
  EXPECT_TRUE(DiskTier::open({.directory = dir_, .fingerprint = kOurs}, found).has_value());
  std::ofstream(dir_ / "file") << "x";
  EXPECT_FALSE(DiskTier::open({.directory = dir_ / "file", .fingerprint = kOurs}, found).has_value());
}

}  // namespace
}  // namespace fathom::cache
