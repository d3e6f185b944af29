// Cases of the cache, each a behaviour that was asked for or a fault that others had (field-faults.md 3), under a model
// that distrusts its memory (support/fake_model.h).
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <set>

#include "support/cache_world.h"

namespace fathom::testing {
namespace {

namespace fs = std::filesystem;
using cache::Keep;
using cache::StateCache;

// Snapshots at every position of two pages and a bit, each continued across the next page's end. field-faults.md 3:
// hits without the window's tail, compressor state that was lost.
TEST(Cache, EveryPositionCanBeRemembered) {
  CacheWorld w(900, 2);
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

TEST(Cache, ALaneThatGaveBackDraftsIsRememberedAtWhatItKept) {
  // Rejected tokens were written to rings, entries and pages; a snapshot knows nothing of them.
  FakeShape shape;
  shape.rollback = 7;
  CacheWorld w(100, 2, {}, 0, shape);
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

TEST(Cache, ASharedPrefixOf600TokensHits) {
  CacheWorld w(300, 3);
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

TEST(Cache, ColdestGoFirstAndLanesNever) {
  CacheWorld w(60, 3);
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

TEST(Cache, WhatCannotBeHadCostsNobodyHisSnapshot) {
  CacheWorld w(40, 2);
  auto a = w.cache->open("", Tokens{1}).value();
  ASSERT_TRUE(w.run(*a, Tokens(300, 1)));
  ASSERT_TRUE(w.cache->remember(*a, Keep::kUsual));
  EXPECT_FALSE(w.cache->reserve(*a, 50 * 128).has_value());
  EXPECT_EQ(w.cache->find("", Tokens(300, 1)).memory, 300);
}

// A snapshot from the disk, written when there was more memory, may fill all there is: then it gives way.
TEST(Cache, WhatIsRememberedNeverStandsInTheWay) {
  TempDir disk;
  const FakeShape shape{.window = 128};
  const Tokens tokens(60, 7);
  CacheWorld w(100, 1, disk.path(), 1U << 20U, shape);
  {
    auto lane = w.cache->open("", tokens).value();
    ASSERT_TRUE(w.run(*lane, tokens));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  }
  w.cache->drain();
  const std::int32_t image = w.cache->image_pages({.length = 60, .drafted = 59});
  ASSERT_GE(image, 2);
  w.config.memory_bytes -= static_cast<std::size_t>(100 - image) * w.model.layout().page_bytes;
  w.start();
  ASSERT_EQ(w.cache->pages(), image);
  ASSERT_NE(w.cache->load("", tokens), 0U);
  w.cache->drain();
  ASSERT_EQ(w.cache->find("", tokens).memory, 60);
  auto lane = w.cache->open("", tokens);
  ASSERT_TRUE(lane.has_value()) << lane.error().what;
  EXPECT_EQ((*lane)->length(), 0);
  ASSERT_TRUE(w.run(**lane, tokens));
  w.check();
}

TEST(Cache, ABudgetTooSmallIsRefusedAtTheStart) {
  // field-faults.md 6: a pool of no pages, and requests that were never scheduled.
  CacheWorld w(10, 2);
  w.cache.reset();
  w.config.memory_bytes = 2 * (w.model.layout().slot_bytes + 64) + 2 * w.model.layout().page_bytes;
  const auto c = StateCache::create(w.model.layout(), w.memory, w.config);
  ASSERT_FALSE(c.has_value());
  EXPECT_EQ(c.error().code, Code::kInvalid);
  w.config.slots = 0;
  EXPECT_FALSE(StateCache::create(w.model.layout(), w.memory, w.config).has_value());
}

TEST(Cache, AKilledProcessLosesNothingThatWasWritten) {
  const TempDir dir;
  Tokens t(777);
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<std::int32_t>(i * 7 % 31);
  const pid_t child = ::fork();
  if (child == 0) {
    CacheWorld w(200, 2, dir.path());
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
  CacheWorld w(200, 2, dir.path());
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

TEST(Cache, AnotherModelAnotherBudgetAnotherRollback) {
  const TempDir dir;
  const Tokens t(500, 9);
  const auto fill = [&](CacheWorld& w) {
    auto lane = w.cache->open("", t).value();
    ASSERT_TRUE(w.run(*lane, std::span(t).subspan(static_cast<std::size_t>(lane->length()))));
    ASSERT_TRUE(w.cache->remember(*lane, Keep::kUsual));
  };
  {
    CacheWorld w(100, 2, dir.path());
    fill(w);
  }
  {
    FakeShape shape;
    shape.rollback = 9;  // the same bytes in rings of other sizes
    CacheWorld w(70, 3, dir.path(), 1U << 20U, shape);
    EXPECT_EQ(w.cache->find("", t).disk, 500);
    w.cache->load("", t);
    w.cache->drain();
    auto lane = w.cache->open("", t).value();
    EXPECT_EQ(lane->length(), 500);
    ASSERT_TRUE(w.run(*lane, Tokens(200, 3)));
    w.check();
  }
  {
    CacheWorld w(100, 2, dir.path(), 4000);  // field-faults.md 3: garbage after a restart with another budget
    w.check();
    EXPECT_EQ(w.cache->find("", t).disk, 0);
    fill(w);
    EXPECT_LE(w.cache->stats().disk_bytes, 4000U);
  }
  {
    CacheWorld w(100, 2, dir.path());
    fill(w);
  }
  {
    CacheWorld w(100, 2, dir.path());
    w.cache.reset();
    w.config.identity = "another model";
    w.start();
    EXPECT_EQ(w.cache->find("", t).disk, 0);
    w.check();
  }
}

TEST(Cache, ADiskThatFailsForAWhileCostsOnlyWhatItDidNotTake) {
  const TempDir dir;
  const fs::path disk = dir.path() / "disk";
  const fs::path away = dir.path() / "away";
  const Tokens t(900, 4);
  {
    CacheWorld w(200, 2, disk);
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
  CacheWorld w(200, 2, disk);
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
TEST(Cache, ALoadIsOvertakenByEvents) {
  const TempDir dir;
  const Tokens t(500, 4);
  CacheWorld w(24, 2, dir.path());
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

TEST(Cache, TwoLanesOfTheSameTokensShareTheirPages) {
  CacheWorld w(100, 2);
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
TEST(Cache, DraftStateThatWasNotKnownIsReplaced) {
  const TempDir dir;
  CacheWorld w(100, 2, dir.path());
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

TEST(Cache, ASlowDiskIsNotWaitedFor) {
  const TempDir dir;
  CacheWorld w(300, 2, dir.path());
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
