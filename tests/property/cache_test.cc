// Random lives of a StateCache under a model that distrusts its memory (support/fake_model.h): whatever is opened,
// grown, remembered, evicted, written, damaged and read back, every lane's next token finds exactly the bytes it needs,
// and every page, slot and file stays accounted for.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "cache/state_cache.h"
#include "support/fake_model.h"

namespace fathom::testing {
namespace {

namespace fs = std::filesystem;
using cache::Keep;
using cache::Lane;
using cache::StateCache;
using Tokens = std::vector<std::int32_t>;

// Longer runs: FATHOM_PROPERTY_SCALE=20.
int scale() {
  const char* s = std::getenv("FATHOM_PROPERTY_SCALE");
  return s != nullptr ? std::max(1, std::atoi(s)) : 1;
}

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "fathom-cache-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct World {
  explicit World(std::int32_t pages, std::int32_t slots, fs::path disk = {}, std::size_t disk_bytes = 1U << 20U,
                 const FakeShape& shape = {})
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
    auto c = StateCache::create(model.layout(), memory, config);
    ASSERT_TRUE(c.has_value()) << c.error().what;
    cache = std::move(c).value();
  }
  // Runs ids at the lane's end, in one chunk, draft block included. False where there is no room.
  bool run(Lane& lane, std::span<const std::int32_t> ids) {
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
  void expect_true(const Lane& lane, const Tokens& tokens) {
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
  std::unique_ptr<StateCache> cache;
};

// A few texts with common beginnings, asked for whole, in part, and continued.
class Prompts {
 public:
  explicit Prompts(unsigned seed) : rng_(seed) {
    texts_.push_back(text(700));
    while (texts_.size() < 6) {
      Tokens t = texts_[rng_() % texts_.size()];
      t.resize(rng_() % t.size());
      const Tokens rest = text(700 - t.size());
      t.insert(t.end(), rest.begin(), rest.end());
      texts_.push_back(t);
    }
  }
  Tokens any() {
    Tokens out = texts_[rng_() % texts_.size()];
    if (rng_() % 3 == 0) out.resize(1 + rng_() % out.size());
    if (rng_() % 4 == 0) out.resize(out.size() / 128 * 128 + rng_() % 2 + 1);
    if (rng_() % 2 == 0) out.push_back(static_cast<std::int32_t>(rng_() % 50));
    return out;
  }

 private:
  Tokens text(std::size_t n) {
    Tokens t(n);
    for (auto& x : t) x = static_cast<std::int32_t>(rng_() % 50);
    return t;
  }
  std::mt19937 rng_;
  std::vector<Tokens> texts_;
};

struct Run {
  std::unique_ptr<Lane> lane;
  Tokens target;
};

void damage_something(const fs::path& dir, std::mt19937& rng) {
  std::vector<fs::path> files;
  for (const auto& e : fs::directory_iterator(dir)) {
    if (e.path().filename() != "lock") files.push_back(e.path());
  }
  if (files.empty()) return;
  std::sort(files.begin(), files.end());
  const fs::path& victim = files[rng() % files.size()];
  std::error_code gone;  // the cache's own thread may remove files meanwhile
  const auto size = fs::file_size(victim, gone);
  if (gone || size == 0) return;
  switch (rng() % 4) {
    case 0: fs::remove(victim, gone); break;
    case 1: fs::resize_file(victim, size / 2, gone); break;
    case 2: fs::copy_file(victim, dir / "00000000000fffff.page", fs::copy_options::overwrite_existing, gone); break;
    default: {
      std::fstream f(victim, std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(static_cast<std::int64_t>(rng() % size));
      f.put('x');
    }
  }
}

void live(World& w, unsigned seed, int steps, bool disk) {
  std::mt19937 rng(seed);
  Prompts prompts(seed * 7 + 1);
  std::vector<Run> runs;
  for (int step = 0; step < steps; ++step) {
    const unsigned what = rng() % 100;
    if (what < 25) {
      Tokens t = prompts.any();
      const auto found = w.cache->find("", t);
      auto lane = w.cache->open("", t);
      if (lane) {
        EXPECT_EQ((*lane)->length(), found.memory);
        EXPECT_GE(found.shared, found.memory);
        w.expect_true(**lane, t);
        runs.push_back({std::move(lane).value(), std::move(t)});
      } else {
        EXPECT_EQ(lane.error().code, Code::kExhausted);
      }
    } else if (what < 75 && !runs.empty()) {
      Run& r = runs[rng() % runs.size()];
      const auto rest = std::span(r.target).subspan(static_cast<std::size_t>(r.lane->length()));
      const std::size_t n = std::min<std::size_t>(rest.size(), std::array{1U, 5U, 64U, 128U, 200U, 500U}[rng() % 6]);
      if (n == 0 || !w.run(*r.lane, rest.first(n))) {
        std::swap(r, runs.back());
        runs.pop_back();
      } else if (rng() % 2 == 0) {
        w.cache->remember(*r.lane, rng() % 2 == 0 ? Keep::kUsual : Keep::kPassing);
      }
    } else if (what < 85 && !runs.empty()) {
      std::swap(runs[rng() % runs.size()], runs.back());
      runs.pop_back();
    } else if (what < 92 && disk) {
      const Tokens t = prompts.any();
      const auto found = w.cache->find("", t);
      if (w.cache->load("", t) != 0) {
        EXPECT_GT(found.disk, found.memory);
      }
      if (rng() % 2 == 0) w.cache->drain();
    } else if (what == 93) {
      if (rng() % 4 == 0) w.cache->clear(disk && rng() % 4 == 0);
    } else if (what <= 95 && disk) {
      runs.clear();
      w.cache.reset();
      if (rng() % 2 == 0) damage_something(w.config.disk_directory, rng);
      if (rng() % 3 == 0) w.config.disk_bytes = std::array<std::size_t, 3>{20'000, 200'000, 1U << 20U}[rng() % 3];
      w.start();
    } else if (what <= 97 && disk) {
      w.cache->drain();
      damage_something(w.config.disk_directory, rng);
    } else {
      w.cache->poll();
    }
    w.check();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
  }
}

TEST(CacheProperty, EveryLaneFindsItsBytesInMemoryAlone) {
  for (int round = 0; round < 200 * scale(); ++round) {
    World w(std::array{6, 12, 40, 200}[round % 4], 1 + round % 5);
    live(w, static_cast<unsigned>(round), 300, false);
    if (HasFatalFailure()) return;
  }
}

TEST(CacheProperty, EveryLaneFindsItsBytesWithADiskThatIsDamagedAndRestarted) {
  for (int round = 0; round < 40 * scale(); ++round) {
    const TempDir dir;
    World w(std::array{10, 30, 100}[round % 3], 1 + round % 4, dir.path());
    live(w, static_cast<unsigned>(1000 + round), 200, true);
    if (HasFatalFailure()) return;
  }
}

// Other geometries: the published one's window of 128, no draft block, no rollback room, layers of one kind only.
TEST(CacheProperty, OtherGeometries) {
  const std::vector<FakeShape> shapes{{.window = 128, .rollback = 8, .ratios = {0, 4, 128, 4, 128, 0}},
                                      {.window = 16, .rollback = 0, .ratios = {4}, .draft = false},
                                      {.window = 8, .rollback = 1, .ratios = {128}},
                                      {.window = 128, .rollback = 3, .ratios = {0, 0}}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const TempDir dir;
    World w(300, 3, dir.path(), 1U << 22U, shapes[i]);
    live(w, static_cast<unsigned>(2000 + i), 300, true);
    if (HasFatalFailure()) return;
  }
}

// Snapshots at every position of two pages and a bit, each continued across the next page's end. field-faults.md 3:
// hits without the window's tail, compressor state that was lost.
TEST(CacheProperty, EveryPositionCanBeRemembered) {
  World w(900, 2);
  Tokens t(420);
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<std::int32_t>(i * 13 % 41);
  for (std::int32_t n = 1; n <= 270; ++n) {
    w.cache->clear(false);
    {
      auto lane = w.cache->open("", std::span(t).first(0)).value();
      ASSERT_TRUE(w.run(*lane, std::span(t).first(static_cast<std::size_t>(n))));
      ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
      // Going on after the snapshot does not change what was taken.
      ASSERT_TRUE(w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(n), 100)));
    }
    auto lane = w.cache->open("", t).value();
    ASSERT_EQ(lane->length(), n);
    w.expect_true(*lane, t);
    while (lane->length() < 400)
      ASSERT_TRUE(w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(lane->length()), 7)));
    w.check();
    ASSERT_FALSE(HasFatalFailure()) << n;
  }
}

TEST(CacheProperty, ALaneThatGaveBackDraftsIsRememberedAtWhatItKept) {
  // Rejected tokens were written to rings, entries and pages; a snapshot knows nothing of them.
  FakeShape shape;
  shape.rollback = 7;
  World w(100, 2, {}, 0, shape);
  std::mt19937 rng(4);
  Tokens t(500);
  for (auto& x : t) x = static_cast<std::int32_t>(rng() % 50);
  auto lane = w.cache->open("", Tokens{}).value();
  while (lane->length() < 400) {
    const std::int32_t at = lane->length();
    Tokens tried(t.begin() + at, t.begin() + at + 8);
    const std::size_t good = 1 + rng() % 8;
    for (std::size_t i = good; i < tried.size(); ++i) tried[i] = 77;
    ASSERT_TRUE(w.cache->reserve(*lane, 8).has_value());
    const auto hashes = w.model.trunk({.ids = tried, .start = at, .slot = lane->slot(), .pages = lane->pages()});
    std::memcpy(lane->extra(), &hashes[good - 1], sizeof(FakeModel::Hash));
    w.cache->advance(*lane, std::span(tried).first(good), 0);
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
    auto other = w.cache->open("", t).value();
    ASSERT_EQ(other->length(), lane->length());
    w.expect_true(*other, t);
    ASSERT_TRUE(w.run(*other, std::span(t).subspan(static_cast<std::size_t>(other->length()), 9)));
    w.check();
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(CacheProperty, ASharedPrefixOf600TokensHits) {
  World w(300, 3);
  std::mt19937 rng(1);
  Tokens shared(600);
  for (auto& x : shared) x = static_cast<std::int32_t>(rng() % 50);
  const auto with = [&](std::int32_t last) {
    Tokens t = shared;
    t.resize(650, last);
    return t;
  };
  {
    auto lane = w.cache->open("", with(51)).value();
    ASSERT_TRUE(w.run(*lane, shared));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kPassing));  // where the caller says that a shared part ends
    ASSERT_TRUE(w.run(*lane, Tokens(50, 51)));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  }
  EXPECT_EQ(w.cache->find("", with(52)).memory, 600);
  EXPECT_EQ(w.cache->find("", with(51)).memory, 650);
  // Nobody said so: still known to be common, so that the next one can be cut there.
  Tokens other = with(51);
  other[623] = 3;
  EXPECT_EQ(w.cache->find("", other).memory, 600);
  EXPECT_EQ(w.cache->find("", other).shared, 623);
  EXPECT_EQ(w.cache->find("salt", with(51)).shared, 0);
}

TEST(CacheProperty, ColdestGoFirstAndLanesNever) {
  World w(60, 3);
  const auto prompt = [](std::int32_t i) { return Tokens(200, i); };
  const auto remember = [&](std::int32_t i) {
    auto lane = w.cache->open("", prompt(i)).value();
    if (lane->length() < 200) {
      ASSERT_TRUE(w.run(*lane, Tokens(static_cast<std::size_t>(200 - lane->length()), i)));
    }
    w.cache->remember(*lane, Keep::kUsual);
  };
  remember(1);
  auto running = w.cache->open("", prompt(1)).value();
  for (std::int32_t i = 2; i < 60; ++i) {
    remember(i);
    remember(1);
    w.check();
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_EQ(w.cache->find("", prompt(1)).memory, 200) << "used all the time";
  EXPECT_EQ(w.cache->find("", prompt(59)).memory, 200) << "used last";
  EXPECT_EQ(w.cache->find("", prompt(2)).memory, 0) << "long ago";
  EXPECT_GT(w.cache->stats().evicted_from_memory, 0U);
  // A lane that wants everything gets all but what lanes hold. field-faults.md 3: eviction that never frees.
  EXPECT_TRUE(w.cache->reserve(*running, (w.cache->pages_within_reach()) * 128).has_value());
  EXPECT_EQ(w.cache->stats().snapshots_in_memory, 0);
  EXPECT_EQ(w.cache->reserve(*running, 100'000).error().code, Code::kExhausted);
  EXPECT_FALSE(w.cache->remember(*running, Keep::kUsual)) << "no page left for the image";
  w.check();
}

TEST(CacheProperty, WhatCannotBeHadCostsNobodyHisSnapshot) {
  World w(40, 2);
  auto a = w.cache->open("", Tokens{1}).value();
  ASSERT_TRUE(w.run(*a, Tokens(300, 1)));
  ASSERT_TRUE(w.cache->remember(*a, Keep::kUsual));
  EXPECT_FALSE(w.cache->reserve(*a, 50 * 128).has_value());
  EXPECT_EQ(w.cache->find("", Tokens(300, 1)).memory, 300);
}

TEST(CacheProperty, ABudgetTooSmallIsRefusedAtTheStart) {
  // field-faults.md 6: a pool of no pages, and requests that were never scheduled.
  World w(10, 2);
  w.cache.reset();
  w.config.memory_bytes = 2 * (w.model.layout().slot_bytes + 64) + 2 * w.model.layout().page_bytes;
  const auto c = StateCache::create(w.model.layout(), w.memory, w.config);
  ASSERT_FALSE(c.has_value());
  EXPECT_EQ(c.error().code, Code::kInvalid);
  w.config.slots = 0;
  EXPECT_FALSE(StateCache::create(w.model.layout(), w.memory, w.config).has_value());
}

TEST(CacheProperty, AKilledProcessLosesNothingThatWasWritten) {
  const TempDir dir;
  Tokens t(777);
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<std::int32_t>(i * 7 % 31);
  const pid_t child = ::fork();
  if (child == 0) {
    World w(200, 2, dir.path());
    auto lane = w.cache->open("", t).value();
    for (int i = 0; i < 7; ++i) {
      if (!w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(lane->length()), 111)) ||
          !w.cache->remember(*lane, Keep::kUsual))
        ::_exit(1);
    }
    w.cache->drain();
    // More, being written while the axe falls.
    for (std::int32_t i = 0; i < 50; ++i) {
      auto more = w.cache->open("", Tokens{100 + i}).value();
      w.run(*more, Tokens(300, 100 + i));
      w.cache->remember(*more, Keep::kUsual);
    }
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  World w(200, 2, dir.path());
  w.check();
  EXPECT_EQ(w.cache->find("", t).disk, 777);
  EXPECT_EQ(w.cache->find("", t).memory, 0);
  const std::uint64_t ticket = w.cache->load("", t);
  ASSERT_NE(ticket, 0U);
  const auto loaded = w.cache->drain();
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_EQ(loaded[0].ticket, ticket);
  EXPECT_TRUE(loaded[0].ok);
  auto lane = w.cache->open("", t).value();
  EXPECT_EQ(lane->length(), 777);
  w.expect_true(*lane, t);
  ASSERT_TRUE(w.run(*lane, Tokens{1, 2, 3}));
  w.check();
}

TEST(CacheProperty, AnotherModelAnotherBudgetAnotherRollback) {
  const TempDir dir;
  const Tokens t(500, 9);
  const auto fill = [&](World& w) {
    auto lane = w.cache->open("", t).value();
    ASSERT_TRUE(w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(lane->length()))));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  };
  {
    World w(100, 2, dir.path());
    fill(w);
  }
  {
    FakeShape shape;
    shape.rollback = 9;  // the same bytes in rings of other sizes
    World w(70, 3, dir.path(), 1U << 20U, shape);
    EXPECT_EQ(w.cache->find("", t).disk, 500);
    w.cache->load("", t);
    w.cache->drain();
    auto lane = w.cache->open("", t).value();
    EXPECT_EQ(lane->length(), 500);
    ASSERT_TRUE(w.run(*lane, Tokens(200, 3)));
    w.check();
  }
  {
    World w(100, 2, dir.path(), 4000);  // field-faults.md 3: garbage after a restart with another budget
    w.check();
    EXPECT_EQ(w.cache->find("", t).disk, 0);
    fill(w);
    EXPECT_LE(w.cache->stats().disk_bytes, 4000U);
  }
  {
    World w(100, 2, dir.path());
    fill(w);
  }
  {
    World w(100, 2, dir.path());
    w.cache.reset();
    w.config.identity = "another model";
    w.start();
    EXPECT_EQ(w.cache->find("", t).disk, 0);
    w.check();
  }
}

TEST(CacheProperty, ADiskThatFailsForAWhileCostsOnlyWhatItDidNotTake) {
  const TempDir dir;
  const fs::path disk = dir.path() / "disk";
  const fs::path away = dir.path() / "away";
  const Tokens t(900, 4);
  {
    World w(200, 2, disk);
    auto lane = w.cache->open("", t).value();
    const auto grow = [&](std::size_t n) {
      ASSERT_TRUE(w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(lane->length()), n)));
      ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
      w.cache->drain();
      w.check();
    };
    grow(200);
    fs::rename(disk, away);
    grow(200);
    EXPECT_EQ(w.cache->stats().snapshots_on_disk, 1) << "what was not written is not believed to be there";
    fs::rename(away, disk);
    grow(200);
  }
  World w(200, 2, disk);
  w.check();
  EXPECT_EQ(w.cache->find("", t).disk, 600);
  ASSERT_NE(w.cache->load("", t), 0U);
  ASSERT_TRUE(w.cache->drain().at(0).ok);
  auto lane = w.cache->open("", t).value();
  ASSERT_EQ(lane->length(), 600);
  ASSERT_TRUE(w.run(*lane, Tokens(9, 4)));
  w.check();
}

// What a load finds changed when its files have come: the page it left out gone, the snapshot gone, a file damaged.
TEST(CacheProperty, ALoadIsOvertakenByEvents) {
  const TempDir dir;
  const Tokens t(500, 4);
  World w(24, 2, dir.path());
  const auto fill = [&](const Tokens& tokens) {
    auto lane = w.cache->open("", tokens).value();
    ASSERT_TRUE(w.run(*lane, std::span(tokens).subspan(static_cast<std::size_t>(lane->length()))));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
    w.cache->drain();
  };
  const auto length = [&] { return w.cache->find("", t).memory; };
  fill(Tokens(300, 4));
  fill(t);
  w.cache->clear(false);
  // The first two pages are in memory when the load begins and are not when it ends.
  w.cache->load("", Tokens(300, 4));
  w.cache->drain();
  ASSERT_NE(w.cache->load("", t), 0U);
  w.cache->clear(false);
  EXPECT_FALSE(w.cache->drain().at(0).ok);
  w.check();
  EXPECT_EQ(length(), 0);
  // Forgotten on disk too.
  ASSERT_NE(w.cache->load("", t), 0U);
  w.cache->clear(true);
  EXPECT_FALSE(w.cache->drain().at(0).ok);
  w.check();
  // Computed meanwhile.
  fill(t);
  w.cache->clear(false);
  ASSERT_NE(w.cache->load("", t), 0U);
  {
    auto lane = w.cache->open("", t).value();
    ASSERT_TRUE(w.run(*lane, t));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  }
  EXPECT_TRUE(w.cache->drain().at(0).ok);
  w.check();
  EXPECT_EQ(length(), 500);
  // Its first page damaged: nothing that continues it is offered again.
  fill(Tokens(300, 4));
  w.cache->clear(false);
  std::set<fs::path> pages;
  for (const auto& e : fs::directory_iterator(dir.path())) {
    if (e.path().extension() == ".page") pages.insert(e.path());
  }
  fs::resize_file(*pages.begin(), 100);
  ASSERT_NE(w.cache->load("", t), 0U);
  EXPECT_FALSE(w.cache->drain().at(0).ok);
  w.check();
  EXPECT_EQ(w.cache->find("", t).disk, 0);
  EXPECT_EQ(w.cache->load("", t), 0U);
  // No room.
  fill(t);
  w.cache->clear(false);
  ASSERT_NE(w.cache->load("", t), 0U);
  auto greedy = w.cache->open("", Tokens{1}).value();
  ASSERT_TRUE(w.cache->reserve(*greedy, 22 * 128).has_value());
  EXPECT_FALSE(w.cache->drain().at(0).ok);
  w.check();
}

TEST(CacheProperty, TwoLanesOfTheSameTokensShareTheirPages) {
  World w(100, 2);
  const Tokens t(700, 3);
  auto a = w.cache->open("", t).value();
  auto b = w.cache->open("", t).value();
  ASSERT_TRUE(w.run(*a, t));
  ASSERT_TRUE(w.run(*b, t));
  EXPECT_EQ(w.cache->stats().pages_of_lanes, 12);
  ASSERT_TRUE(w.cache->remember(*a, Keep::kUsual));
  ASSERT_TRUE(w.run(*b, Tokens{1, 2, 3}));
  ASSERT_TRUE(w.cache->remember(*b, Keep::kUsual));
  EXPECT_EQ(w.cache->stats().pages_of_lanes, 7) << "five full ones together, one each being filled";
  ASSERT_TRUE(w.run(*a, Tokens(200, 1)));
  ASSERT_TRUE(w.run(*b, Tokens(200, 2)));
  w.check();
}

// A snapshot on disk that knows less of the draft block gives way to one that knows more.
TEST(CacheProperty, DraftStateThatWasNotKnownIsReplaced) {
  const TempDir dir;
  World w(100, 2, dir.path());
  const Tokens t(300, 3);
  {
    auto lane = w.cache->open("", t).value();
    ASSERT_TRUE(w.cache->reserve(*lane, 300).has_value());
    w.model.trunk({.ids = t, .start = 0, .slot = lane->slot(), .pages = lane->pages()});
    w.cache->advance(*lane, t, 0);
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  }
  w.cache->drain();
  w.cache->clear(false);
  {
    auto lane = w.cache->open("", t).value();
    ASSERT_TRUE(w.run(*lane, t));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  }
  w.check();
  w.cache->drain();
  w.cache->clear(false);
  w.cache->load("", t);
  w.cache->drain();
  auto lane = w.cache->open("", t).value();
  EXPECT_EQ(lane->reach(), (cache::Reach{300, 299}));
  ASSERT_TRUE(w.run(*lane, Tokens{1, 2}));
  w.check();
}

TEST(CacheProperty, ASlowDiskIsNotWaitedFor) {
  const TempDir dir;
  World w(300, 2, dir.path());
  w.cache.reset();
  w.config.write_queue_bytes = 1;
  w.start();
  for (std::int32_t i = 0; i < 30; ++i) {
    auto lane = w.cache->open("", Tokens{i}).value();
    ASSERT_TRUE(w.run(*lane, Tokens(300, i)));
    EXPECT_TRUE(w.cache->remember(*lane, Keep::kUsual));
    w.check();
  }
  w.cache->drain();
  w.check();
}

}  // namespace
}  // namespace fathom::testing
