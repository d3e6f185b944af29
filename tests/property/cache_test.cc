// Random lives of a StateCache under a model that distrusts its memory (support/fake_model.h): whatever is opened,
// grown, remembered, evicted, written, damaged and read back, every lane's next token finds exactly the bytes it needs,
// and every page, slot and file stays accounted for.
#include <cstdlib>
#include <fstream>
#include <random>

#include "support/cache_world.h"

namespace fathom::testing {
namespace {

namespace fs = std::filesystem;
using cache::Keep;
using cache::Lane;

// Longer runs: FATHOM_PROPERTY_SCALE=20.
int scale() {
  const char* s = std::getenv("FATHOM_PROPERTY_SCALE");
  return s != nullptr ? std::max(1, std::atoi(s)) : 1;
}

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

void live(CacheWorld& w, unsigned seed, int steps, bool disk) {
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
    CacheWorld w(std::array{6, 12, 40, 200}[round % 4], 1 + round % 5);
    live(w, static_cast<unsigned>(round), 300, false);
    if (HasFatalFailure()) return;
  }
}

TEST(CacheProperty, EveryLaneFindsItsBytesWithADiskThatIsDamagedAndRestarted) {
  for (int round = 0; round < 40 * scale(); ++round) {
    const TempDir dir;
    CacheWorld w(std::array{10, 30, 100}[round % 3], 1 + round % 4, dir.path());
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
    CacheWorld w(300, 3, dir.path(), 1U << 22U, shapes[i]);
    live(w, static_cast<unsigned>(2000 + i), 300, true);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace fathom::testing
