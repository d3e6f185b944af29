// What loading and running a checkpoint holds, against what was announced; weights stay mapped, so that a checkpoint
// larger than the memory there is still loads (field-faults.md 7: engines that staged it all were killed).
//
// Each case runs in a child process of its own, so that nothing else counts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "cache/sequence.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/content.h"
#include "checkpoint/inventory.h"
#include "checkpoint/plan.h"
#include "checkpoint/synthetic.h"
#include "model/model.h"
#include "ops/backend.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FATHOM_SANITIZED 1
#else
#define FATHOM_SANITIZED 0
#endif

namespace fathom {
namespace {

constexpr std::int32_t kContext = 4096;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// V4-Flash, narrower: 280 MB, most of it experts as in the real one.
checkpoint::SyntheticSpec narrow_flash() {
  const checkpoint::Geometry g = *checkpoint::published("v4-flash");
  checkpoint::ModelConfig c = *checkpoint::shrunk(g.config, 4, 64);
  c.vocab = 8192;
  c.hidden = 1024;
  c.heads = 16;
  c.q_rank = 256;
  c.o_rank = 256;
  c.expert_inner = 512;
  return {c, g.storage, 1};
}

struct Held {
  std::uint64_t before = 0;  // anonymous, when the child began
  std::uint64_t peak = 0;    // anonymous, most seen until the end
  std::uint64_t opened = 0;  // anonymous, once the checkpoint is open and every weight was read
  std::uint64_t end = 0;     // anonymous, after that step
  std::uint64_t weights = 0;
  std::uint64_t announced = 0;  // cache, state and workspace
  double open_s = 0;
  double read_s = 0;
  bool ok = false;
};

// Watches the anonymous memory of this process while it lives.
class PeakWatch {
 public:
  PeakWatch() : thread_([this] { watch(); }) {}
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;
  ~PeakWatch() { stop(); }
  std::uint64_t stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  void watch() {
    while (!done_) {
      peak_ = std::max(peak_, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::atomic<bool> done_{false};
  std::uint64_t peak_ = 0;
  std::thread thread_;
};

// Opens, reads every weight, loads, runs the largest step.
Held open_and_run(const std::filesystem::path& folder) {
  Held h;
  h.before = anonymous_bytes();
  PeakWatch watch;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const auto opened = checkpoint::Checkpoint::open(folder);
  if (!opened) return h;
  h.open_s = seconds();
  {
    ThreadPool pool(2);
    checkpoint::Problems problems;
    checkpoint::check_values(*opened, pool, problems, {});
    if (!problems.empty()) return h;
  }
  h.read_s = seconds() - h.open_s;
  h.opened = anonymous_bytes();
  h.weights = opened->tensor_bytes();

  const auto backend = ops::make_cpu_backend({.threads = 2});
  const model::ModelOptions options;
  auto model = model::Model::load(*opened, *backend, options);
  if (!model) return h;
  const model::CacheLayout& layout = (*model)->layout();
  const std::int32_t pages = model::CacheLayout::pages_for(kContext);
  h.announced = layout.slot_bytes + static_cast<std::uint64_t>(pages) * layout.page_bytes +
                checkpoint::workspace_bytes(opened->config(), options.max_step_tokens, options.max_logit_rows);
  auto slot = backend->allocate(layout.slot_bytes);
  std::vector<ops::Buffer> owned;
  std::vector<std::byte*> lent;
  for (std::int32_t i = 0; i < pages; ++i) {
    auto page = backend->allocate(layout.page_bytes);
    if (!page) return h;
    owned.push_back(std::move(*page));
    lent.push_back(owned.back().get());
  }
  if (!slot) return h;
  std::vector<std::int32_t> ids(256);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 31 % 8192);
  const model::Chunk chunk{.ids = ids, .start = 0, .slot = slot->get(), .pages = lent, .logits = model::Rows::kAll};
  if (!(*model)->forward(std::span(&chunk, 1))) return h;
  h.end = anonymous_bytes();
  h.peak = watch.stop();
  h.ok = true;
  return h;
}

// Runs `body` in a child, after `enter` (which may confine it); nothing where the child died.
std::optional<Held> in_child(const std::function<bool()>& enter, const std::function<Held()>& body) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return std::nullopt;
  const pid_t pid = ::fork();
  if (pid == 0) {
    Held h;
    if (enter()) h = body();
    const ssize_t n = ::write(ends[1], &h, sizeof(h));
    ::_exit(n == sizeof(h) ? 0 : 1);
  }
  ::close(ends[1]);
  Held h;
  const ssize_t n = ::read(ends[0], &h, sizeof(h));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (n != sizeof(h) || !h.ok) return std::nullopt;
  return h;
}

class LoadMemory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = std::filesystem::path(testing::TempDir()) / ("fathom-load-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder());
    ThreadPool pool(2);
    const auto wrote = checkpoint::write_synthetic(narrow_flash(), folder(), pool);
    ASSERT_TRUE(wrote) << wrote.error().what;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder()); }
  void SetUp() override {
    if (FATHOM_SANITIZED) GTEST_SKIP() << "sanitizers hold memory of their own";
  }
  static std::filesystem::path& folder() {
    static std::filesystem::path path;
    return path;
  }
};

void expect_as_announced(const Held& held, std::uint64_t opening_limit, std::uint64_t slack) {
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  const std::uint64_t all = held.end - held.before;
  std::printf(
      "weights %.1f MiB, announced %.1f; anonymous: open and read %.1f, running %.1f, peak %.1f MiB; open %.3f s, "
      "read %.2f s\n",
      mib(held.weights), mib(held.announced), mib(held.opened - held.before), mib(all), mib(held.peak - held.before),
      held.open_s, held.read_s);
  EXPECT_LT(held.opened - held.before, opening_limit);
  // The plan counts weights as well: within 2 % of what was used, and some of the kernel's 2 MiB pages.
  const auto planned = static_cast<double>(held.weights + held.announced);
  const auto used = static_cast<double>(held.weights + all);
  EXPECT_NEAR(used, planned, 0.02 * planned + static_cast<double>(slack));
}

TEST_F(LoadMemory, IsWhatWasAnnounced) {
  const auto held = in_child([] { return true; }, [] { return open_and_run(folder()); });
  ASSERT_TRUE(held) << "the child failed";
  EXPECT_GT(held->weights, 250 * kMiB);
  // Names and views of a few thousand tensors, nothing of their bytes.
  expect_as_announced(*held, 16 * kMiB, 8 * kMiB);
  EXPECT_LT(held->peak - held->before, held->announced + 64 * kMiB);
}

// The same for a checkpoint of any size: FATHOM_LARGE_CHECKPOINT=FOLDER, made with `fathom synthesize`.
TEST_F(LoadMemory, OfACheckpointThatIsNamed) {
  const char* named = std::getenv("FATHOM_LARGE_CHECKPOINT");
  if (named == nullptr) GTEST_SKIP() << "FATHOM_LARGE_CHECKPOINT names none";
  const auto held = in_child([] { return true; }, [&] { return open_and_run(named); });
  ASSERT_TRUE(held) << "the child failed";
  expect_as_announced(*held, 64 * kMiB, 8 * kMiB);
  EXPECT_LT(held->peak - held->before, held->announced + 1024 * kMiB);
}

// inspect's formulas for the parts of a sequence and the layout that the model uses are two accounts of one thing.
TEST(SequenceMemory, FormulaAgreesWithTheLayout) {
  using quant::EntryFormat;
  struct Case {
    ops::Numerics numerics;
    checkpoint::CacheFormat format;
  };
  for (const char* name : {"v4-flash", "v4-pro", "v4-flash-0731"}) {
    const checkpoint::ModelConfig c = checkpoint::published(name)->config;
    for (const Case& k : {Case{ops::kFloat, {EntryFormat::kF32, EntryFormat::kF32}},
                          Case{ops::kOfficial, {EntryFormat::kFp8RopeF32, EntryFormat::kFp4}},
                          Case{ops::kOfficialBf16, {EntryFormat::kFp8RopeBf16, EntryFormat::kFp4}}}) {
      const model::CacheLayout layout = model::plan_cache(c, k.numerics, /*rollback=*/0);
      for (const std::int64_t context : {128, 4096, 131072, 1 << 20}) {
        const auto laid_out = static_cast<double>(
            layout.slot_bytes + static_cast<std::uint64_t>(model::CacheLayout::pages_for(context)) * layout.page_bytes);
        const auto formula = static_cast<double>(checkpoint::sequence_memory(c, k.format, context).total());
        EXPECT_NEAR(laid_out / formula, 1, 0.005) << name << " " << name_of(k.numerics) << " " << context;
      }
    }
  }
}

// A group below this process's own with a limit, where the machine allows one (cgroup version 1 or 2, root).
class LimitedGroup {
 public:
  explicit LimitedGroup(std::uint64_t limit) {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      const std::size_t second = line.find(':', line.find(':') + 1);
      const std::string group = line.substr(second + 1);
      if (line.find(":memory:") != std::string::npos)
        make("/sys/fs/cgroup/memory" + group, "memory.limit_in_bytes", limit);
      else if (line.starts_with("0::")) make("/sys/fs/cgroup" + group, "memory.max", limit);
      if (usable()) return;
    }
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;
  ~LimitedGroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool usable() const { return !folder_.empty(); }
  bool enter() const { return put("cgroup.procs", std::to_string(::getpid())); }

 private:
  void make(const std::string& parent, const char* file, std::uint64_t limit) {
    folder_ = parent + "/fathom-test-" + std::to_string(::getpid());
    std::error_code error;
    if (std::filesystem::create_directory(folder_, error) && put(file, std::to_string(limit))) return;
    ::rmdir(folder_.c_str());
    folder_.clear();
  }
  bool put(const char* file, const std::string& text) const {
    const int fd = ::open((folder_ + "/" + file).c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool ok = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    return ok;
  }
  std::string folder_;
};

TEST_F(LoadMemory, ACheckpointLargerThanMemoryRuns) {
  // 280 MB of weights, 160 MiB of memory.
  const LimitedGroup group(160 * kMiB);
  if (!group.usable()) GTEST_SKIP() << "no memory-limited cgroup can be made here";
  const auto held = in_child([&] { return group.enter(); }, [] { return open_and_run(folder()); });
  ASSERT_TRUE(held) << "killed, or refused";
  EXPECT_GT(held->weights, 250 * kMiB);
}

}  // namespace
}  // namespace fathom
