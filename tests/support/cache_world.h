// A StateCache over a FakeModel, and what tests do with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cache/state_cache.h"
#include "support/fake_model.h"

namespace fathom::testing {

using Tokens = std::vector<std::int32_t>;

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-cache-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct CacheWorld {
  explicit CacheWorld(std::int32_t pages, std::int32_t slots, std::filesystem::path disk = {},
                      std::size_t disk_bytes = 1U << 20U, const FakeShape& shape = {})
      : model(shape) {
    config.slots = slots;
    config.draft_layers = model.draft_layers();
    config.extra_bytes = 8;
    config.identity = "fake";
    config.disk_directory = std::move(disk);
    config.disk_bytes = disk_bytes;
    config.memory_bytes = static_cast<std::size_t>(slots) * ((model.layout().slot_bytes + 64 + 63) / 64 * 64) +
                          static_cast<std::size_t>(pages) * std::max<std::size_t>(64, model.layout().page_bytes);
    start();
  }
  void start() {
    cache.reset();
    auto c = cache::StateCache::create(model.layout(), memory, config);
    ASSERT_TRUE(c.has_value()) << c.error().what;
    cache = std::move(c).value();
  }
  // Runs ids at the lane's end, in one chunk, draft block included. False where there is no room.
  bool run(cache::Lane& lane, std::span<const std::int32_t> ids) {
    if (!cache->reserve(lane, static_cast<std::int32_t>(ids.size()))) return false;
    const std::int32_t start = lane.length();
    const auto hashes = model.trunk({.ids = ids, .start = start, .slot = lane.slot(), .pages = lane.pages()});
    // The draft block runs one position behind: from where it is, over positions whose next token is known.
    std::int32_t drafted = lane.reach().drafted;
    if (model.draft_layers() > 0) {
      std::vector<FakeModel::Hash> streams;
      Tokens following;
      FakeModel::Hash last{};
      std::memcpy(&last, lane.extra(), sizeof last);
      if (start > 0) {
        if (drafted < start - 1) {
          cache->clear_draft(lane, start - 1);
          drafted = start - 1;
        }
        streams.push_back(last);
      }
      streams.insert(streams.end(), hashes.begin(), hashes.end() - 1);
      following.assign(ids.begin() + (start > 0 ? 0 : 1), ids.end());
      model.draft({.ids = following, .start = drafted, .slot = lane.slot(), .pages = lane.pages()}, streams);
      drafted += static_cast<std::int32_t>(following.size());
    }
    std::memcpy(lane.extra(), &hashes.back(), sizeof(FakeModel::Hash));
    cache->advance(lane, ids, drafted);
    return true;
  }
  void check() {
    const auto ok = cache->check();
    ASSERT_TRUE(ok.has_value()) << ok.error().what;
    ASSERT_EQ(model.error(), "");
  }
  // A lane that holds the hash of exactly its tokens.
  void expect_true(const cache::Lane& lane, const Tokens& tokens) {
    ASSERT_LE(lane.length(), static_cast<std::int32_t>(tokens.size()));
    ASSERT_TRUE(std::equal(lane.tokens().begin(), lane.tokens().end(), tokens.begin()));
    if (lane.length() == 0) return;
    FakeModel::Hash last{};
    std::memcpy(&last, lane.extra(), sizeof last);
    ASSERT_EQ(last, FakeModel::hash(std::span(tokens).first(static_cast<std::size_t>(lane.length()))));
  }

  FakeModel model;
  cache::HostMemory memory;
  cache::CacheConfig config;
  std::unique_ptr<cache::StateCache> cache;
};

}  // namespace fathom::testing
