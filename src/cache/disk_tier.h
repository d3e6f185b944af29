// DiskTier: a directory of cache files and the thread that reads and writes them. Knows files and numbers; which to
// keep is the cache's business.
//
// Writes and removals happen in the order they were asked for; reads go before them. So where a file's write is
// reported, every file it continues is there too. Nothing is forced to the platter: a killed process loses nothing that
// was written, and what a power cut tears is found by its checksum.
//
// One thread calls; one thread of its own works.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/disk_file.h"

namespace fathom::cache {

struct DiskOptions {
  std::filesystem::path directory;  // made where there is none; one process at a time
  Fingerprint fingerprint;
  std::function<void(std::string_view)> warn = [](std::string_view) {};  // from any thread
  std::function<void()> notify = [] {};                                  // from the worker: poll() has something new
};

class DiskTier {
 public:
  struct Found {
    FileHeader header;
    std::int64_t used = 0;  // time of last use, in an order only
  };
  struct Written {
    std::uint64_t id = 0;
    bool ok = false;
  };
  struct Wanted {
    FileKind kind = FileKind::kPage;
    std::uint64_t id = 0;
  };
  struct Read {
    std::uint64_t ticket = 0;
    std::vector<std::vector<std::byte>> payloads;  // in the order asked for; empty where something failed
    std::uint64_t failed = 0;                      // the file that could not be read; 0: none
  };
  struct Done {
    std::vector<Written> written;
    std::vector<Read> read;
  };

  // Takes the directory, removes what is damaged or foreign with a warning, and reports what is there, parents first.
  // Errors: kNotFound (not a directory that can be written), kUnavailable (another process has it).
  static Result<std::unique_ptr<DiskTier>> open(DiskOptions options, std::vector<Found>& found);
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;
  // Finishes what was asked for.
  ~DiskTier();

  std::uint64_t new_id() { return next_id_++; }
  void write(const FileHeader& header, std::span<const std::byte> payload);
  void remove(FileKind kind, std::uint64_t id);
  // Marks as used now.
  void touch(FileKind kind, std::uint64_t id);
  void read(std::uint64_t ticket, std::vector<Wanted> files);

  Done poll();
  std::size_t queued_bytes() const;  // of writes not yet done
  // Waits until everything asked for is done.
  void drain();

 private:
  struct State;
  DiskTier() = default;
  static void work(State& state);

  std::unique_ptr<State> state_;
  std::uint64_t next_id_ = 1;
};

}  // namespace fathom::cache
