#include "cache/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_set>

namespace fathom::cache {
namespace {

namespace fs = std::filesystem;

// What a job does: write `bytes`, or remove, or mark as used, or read.
enum class Verb : std::uint8_t { kWrite, kRemove, kTouch };

struct Job {
  Verb verb = Verb::kWrite;
  FileKind kind = FileKind::kPage;
  std::uint64_t id = 0;
  std::vector<std::byte> bytes;
};

struct ReadJob {
  std::uint64_t ticket = 0;
  std::vector<DiskTier::Wanted> files;
};

// A lock that the kernel takes back when the process ends, however it ends.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {}  // NOLINT
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool opened() const { return fd_ >= 0; }
  bool take() { return ::flock(fd_, LOCK_EX | LOCK_NB) == 0; }

 private:
  int fd_;
};

bool ends_with(const std::string& name, std::string_view end) {
  return name.size() >= end.size() && std::string_view(name).substr(name.size() - end.size()) == end;
}

std::int64_t last_use(const fs::path& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return 0;
  return std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
}

// Headers of all good files of the directory; bad ones are removed.
std::vector<DiskTier::Found> scan(const DiskOptions& o) {
  std::vector<DiskTier::Found> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(o.directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (ends_with(name, ".tmp")) {
      fs::remove(entry.path(), ignored);  // a write that the last process did not finish
      continue;
    }
    if (!ends_with(name, ".page") && !ends_with(name, ".state")) continue;
    auto header = read_file_header(entry.path(), o.fingerprint);
    if (!header) {
      o.warn(fmt::format("cache: {}; removed", header.error().what));
      fs::remove(entry.path(), ignored);
      continue;
    }
    found.push_back({.header = std::move(header).value(), .used = last_use(entry.path())});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.header.id < b.header.id; });
  return found;
}

// Keeps what continues something that is there and is nobody's double. Parents come first: they are older.
void keep_connected(const DiskOptions& o, std::vector<DiskTier::Found>& found) {
  struct Place {
    std::uint64_t parent;
    FileKind kind;
    std::string salt;
    std::vector<std::int32_t> tokens;
    auto operator<=>(const Place&) const = default;
  };
  std::map<std::uint64_t, std::int32_t> ends;  // of pages: id -> position after them
  std::map<Place, std::uint64_t> taken;
  std::unordered_set<std::uint64_t> ids;
  std::vector<DiskTier::Found> kept;
  for (DiskTier::Found& f : found) {
    const FileHeader& h = f.header;
    const auto parent = ends.find(h.parent);
    const bool connected = h.parent == 0 || (parent != ends.end() && parent->second == h.position);
    const bool fresh =
        connected && ids.insert(h.id).second && taken.emplace(Place{h.parent, h.kind, h.salt, h.tokens}, h.id).second;
    if (!fresh) {
      o.warn(
          fmt::format("cache: {} continues nothing that is there, or is a double; removed", file_name(h.kind, h.id)));
      std::error_code ignored;
      fs::remove(o.directory / file_name(h.kind, h.id), ignored);
      continue;
    }
    if (h.kind == FileKind::kPage) ends.emplace(h.id, h.position + static_cast<std::int32_t>(h.tokens.size()));
    kept.push_back(std::move(f));
  }
  found = std::move(kept);
}

}  // namespace

struct DiskTier::State {
  explicit State(DiskOptions o) : options(std::move(o)), lock(options.directory / "lock") {}

  DiskOptions options;
  DirectoryLock lock;
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable idle;
  std::deque<Job> jobs;
  std::deque<ReadJob> reads;
  Done done;
  std::size_t queued_bytes = 0;
  bool busy = false;
  bool stop = false;
  bool warned = false;
  std::thread thread;
};

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskOptions options, std::vector<Found>& found) {
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (error || !fs::is_directory(options.directory, error)) {
    return fail(Code::kNotFound, "cache directory {}: {}", options.directory.string(),
                error ? error.message() : "not a directory");
  }
  std::unique_ptr<DiskTier> tier(new DiskTier);
  tier->state_ = std::make_unique<State>(std::move(options));
  State& s = *tier->state_;
  if (!s.lock.opened())
    return fail(Code::kNotFound, "cache directory {} cannot be written", s.options.directory.string());
  if (!s.lock.take())
    return fail(Code::kUnavailable, "cache directory {} is in use by another process", s.options.directory.string());
  found = scan(s.options);
  tier->next_id_ = found.empty() ? 1 : found.back().header.id + 1;
  keep_connected(s.options, found);
  s.thread = std::thread([&s] { work(s); });
  return tier;
}

DiskTier::~DiskTier() {
  if (state_ == nullptr || !state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

void DiskTier::write(const FileHeader& header, std::span<const std::byte> payload) {
  Job job{.verb = Verb::kWrite,
          .kind = header.kind,
          .id = header.id,
          .bytes = encode_file(header, state_->options.fingerprint, payload)};
  const std::lock_guard lock(state_->mutex);
  state_->queued_bytes += job.bytes.size();
  state_->jobs.push_back(std::move(job));
  state_->wake.notify_all();
}

void DiskTier::remove(FileKind kind, std::uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  state_->jobs.push_back({.verb = Verb::kRemove, .kind = kind, .id = id, .bytes = {}});
  state_->wake.notify_all();
}

void DiskTier::touch(FileKind kind, std::uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  state_->jobs.push_back({.verb = Verb::kTouch, .kind = kind, .id = id, .bytes = {}});
  state_->wake.notify_all();
}

void DiskTier::read(std::uint64_t ticket, std::vector<Wanted> files) {
  const std::lock_guard lock(state_->mutex);
  state_->reads.push_back({.ticket = ticket, .files = std::move(files)});
  state_->wake.notify_all();
}

DiskTier::Done DiskTier::poll() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->done, {});
}

std::size_t DiskTier::queued_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes;
}

void DiskTier::drain() {
  std::unique_lock lock(state_->mutex);
  state_->idle.wait(lock, [this] { return state_->jobs.empty() && state_->reads.empty() && !state_->busy; });
}

namespace {

DiskTier::Read perform(const ReadJob& job, const DiskOptions& o) {
  DiskTier::Read result{.ticket = job.ticket, .payloads = {}};
  for (const DiskTier::Wanted& w : job.files) {
    auto payload = read_file_payload(o.directory / file_name(w.kind, w.id), o.fingerprint);
    if (!payload) {
      o.warn(fmt::format("cache: {}; computed again instead", payload.error().what));
      result.payloads.clear();
      result.failed = w.id;
      return result;
    }
    result.payloads.push_back(std::move(payload).value());
  }
  return result;
}

// Whether a write succeeded; removals and marks are not reported.
Result<> perform(const Job& job, const DiskOptions& o) {
  const fs::path path = o.directory / file_name(job.kind, job.id);
  switch (job.verb) {
    case Verb::kWrite: return write_file(path, job.bytes);
    case Verb::kRemove: ::unlink(path.c_str()); return {};
    case Verb::kTouch: ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW); return {};
  }
  return {};
}

}  // namespace

void DiskTier::work(State& s) {
  std::unique_lock lock(s.mutex);
  while (true) {
    s.wake.wait(lock, [&s] { return s.stop || !s.jobs.empty() || !s.reads.empty(); });
    if (!s.reads.empty()) {
      const ReadJob job = std::move(s.reads.front());
      s.reads.pop_front();
      s.busy = true;
      lock.unlock();
      Read result = perform(job, s.options);
      lock.lock();
      s.done.read.push_back(std::move(result));
    } else if (!s.jobs.empty()) {
      const Job job = std::move(s.jobs.front());
      s.jobs.pop_front();
      s.busy = true;
      lock.unlock();
      const Result<> result = perform(job, s.options);
      if (!result && !std::exchange(s.warned, true)) s.options.warn(fmt::format("cache: {}", result.error().what));
      lock.lock();
      if (job.verb == Verb::kWrite) {
        s.queued_bytes -= job.bytes.size();
        s.done.written.push_back({.id = job.id, .ok = result.has_value()});
      }
    } else {
      return;  // told to stop, and nothing is left
    }
    s.busy = false;
    if (s.jobs.empty() && s.reads.empty()) s.idle.notify_all();
    lock.unlock();
    s.options.notify();
    lock.lock();
  }
}

}  // namespace fathom::cache
