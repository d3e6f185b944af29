// StateCache: the memory of all sequences, running and remembered, under one budget.
//
// A running sequence is a Lane: a slot, full pages that it may share, and the page being filled, its own. remember()
// hangs a snapshot of a lane into the prefix tree; open() begins a lane from the longest remembered prefix of its
// tokens. So reuse between requests, forks, preemption and going on after a restart are one mechanism, and a lane that
// was restored goes on to the bit as if it had never stopped (model.md 7.3).
//
// When room is needed the coldest snapshots leave memory; lanes are never touched. With a disk tier every snapshot is
// also written there, soon and on another thread, and comes back with load().
//
// One thread. Lanes must be gone before their cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/block_pool.h"
#include "cache/disk_tier.h"
#include "cache/prefix_tree.h"
#include "cache/slot_image.h"
#include "model/cache_layout.h"

namespace fathom::cache {

struct CacheConfig {
  std::size_t memory_bytes = 0;   // of slots and pages together
  std::int32_t slots = 1;         // lanes that may be open at once
  std::int32_t draft_layers = 0;  // of the layout's layers, the last ones
  std::size_t extra_bytes = 0;    // a slot has besides, for its owner
  // Everything that decides what the bytes mean and what they would be: model, numerics, backend. The layout is added.
  std::string identity;
  std::filesystem::path disk_directory;  // empty: no disk tier
  std::size_t disk_bytes = 0;
  std::size_t write_queue_bytes = std::size_t{256} << 20U;  // copies waiting to be written; beyond, less is written
  std::function<void(std::string_view)> warn = [](std::string_view) {};  // from any thread
  std::function<void()> notify = [] {};                                  // from another thread: poll() has news
};

struct CacheStats {
  std::int32_t pages = 0;
  std::int32_t pages_free = 0;
  std::int32_t pages_of_lanes = 0;  // with those they share with snapshots
  std::int32_t lanes = 0;
  std::int64_t snapshots_in_memory = 0;
  std::int64_t snapshots_on_disk = 0;
  std::size_t memory_bytes = 0;
  std::size_t disk_bytes = 0;
  std::uint64_t evicted_from_memory = 0;
  std::uint64_t evicted_from_disk = 0;
  std::uint64_t not_written = 0;  // snapshots the disk was too slow for
  std::uint64_t loads = 0;
  std::uint64_t failed_loads = 0;
};

class StateCache;

// Owned by whoever runs the sequence; its memory goes back when it is destroyed.
class Lane {
 public:
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  Reach reach() const { return reach_; }
  std::int32_t length() const { return reach_.length; }
  // The first length() tokens.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::byte* slot() const;
  std::byte* extra() const;
  std::span<std::byte* const> pages() const { return page_data_; }

 private:
  friend class StateCache;
  explicit Lane(StateCache& cache) : cache_(cache) {}
  StateCache& cache_;
  std::string salt_;
  BlockId slot_ = kNoBlock;
  Reach reach_;
  std::vector<std::int32_t> tokens_;
  std::vector<BlockId> pages_;
  std::vector<std::byte*> page_data_;
};

// How soon a snapshot is given up when room is needed: those taken in passing count as if they had not been used for
// half as long as the coldest.
enum class Keep : std::uint8_t { kUsual, kPassing };

class StateCache {
 public:
  // layout is copied; memory outlives the cache. Errors: kInvalid (the budget does not hold the slots and a page for
  // each and one more), kExhausted, those of DiskTier::open.
  static Result<std::unique_ptr<StateCache>> create(const model::CacheLayout& layout, Memory& memory,
                                                    CacheConfig config);
  StateCache(const StateCache&) = delete;
  StateCache& operator=(const StateCache&) = delete;
  ~StateCache();

  struct Found {
    std::int32_t memory = 0;          // tokens that open() would not have to run
    std::int32_t disk = 0;            // that it would not after load(), where that is more; else 0
    std::int32_t shared = 0;          // first tokens that anything remembered has in common, restorable there or not
    std::int32_t pages_of_lanes = 0;  // full pages of `memory` that some lane has anyway
  };
  Found find(std::string_view salt, std::span<const std::int32_t> tokens) const;

  // A lane at the end of the longest prefix of tokens in memory, or at 0. Error: kExhausted where no slot can be had,
  // or no page for the one being filled while other lanes have them.
  Result<std::unique_ptr<Lane>> open(std::string_view salt, std::span<const std::int32_t> tokens);

  // Pages for `tokens` more than the lane's length. Error: kExhausted, and nothing changed.
  Result<> reserve(Lane& lane, std::int32_t tokens);
  // The lane now holds these tokens too, and the draft block has come to `drafted`.
  void advance(Lane& lane, std::span<const std::int32_t> ids, std::int32_t drafted);
  // Makes the draft block's windows empty and says it has come to `drafted`: where they are not known.
  void clear_draft(Lane& lane, std::int32_t drafted);
  // Remembers the lane as it is. False where there was no room.
  bool remember(Lane& lane, Keep keep);

  // Pages that could be had now without touching a lane.
  std::int32_t pages_within_reach() const;
  std::int32_t pages() const { return pages_.total(); }
  std::int32_t free_slots() const { return slots_.free(); }
  std::size_t page_bytes() const { return pages_.block_bytes(); }
  // Pages that a snapshot of this reach takes besides full pages.
  std::int32_t image_pages(Reach reach) const;

  // Begins to fetch the longest prefix on disk, where find() said there is one. The number poll() will name; 0:
  // nothing.
  std::uint64_t load(std::string_view salt, std::span<const std::int32_t> tokens);
  struct Loaded {
    std::uint64_t ticket = 0;
    bool ok = false;
  };
  // What the disk has finished meanwhile. Not to be called from inside notify.
  std::vector<Loaded> poll();
  // Waits for the disk, then does as poll().
  std::vector<Loaded> drain();
  // Forgets all that no lane holds, in memory and, if so asked, on disk.
  void clear(bool disk_too);

  CacheStats stats() const;
  // A table of what the budget is spent on, for people.
  std::string describe() const;
  // Whether every page, slot and file is accounted for. Error: kInternal, naming the first thing that is not.
  Result<> check() const;

 private:
  friend class Lane;
  struct Load {
    std::string salt;
    std::vector<std::int32_t> tokens;  // of the snapshot
    Reach reach;
    std::vector<std::int32_t>
        depths;  // of the pages asked for, in the order of the payloads; the image is the last one
  };
  StateCache(const model::CacheLayout& layout, Memory& memory, CacheConfig config);

  bool restore(Lane& lane, Snapshot& s);
  void close(Lane& lane);
  bool make_room(std::int32_t pages);
  bool take_pages(std::int32_t n, std::vector<BlockId>& out);
  void add_page(Lane& lane, BlockId page);
  void release_page(BlockId page);
  void replace_page(Lane& lane, std::size_t index, BlockId page);
  void set_heat(Snapshot& s, Keep keep);
  void copy_image(Reach reach, std::byte* slot, std::byte* page, const std::vector<BlockId>& image, bool save);
  void put_in_memory(Snapshot& s, std::vector<BlockId> image, Keep keep);
  void drop_from_memory(Snapshot& s);

  // Disk: state_cache_disk.cc.
  Result<> open_disk();
  void adopt(const std::vector<DiskTier::Found>& found);
  bool adopt(const DiskTier::Found& found);
  void persist(Snapshot& s);
  void write_chain(Snapshot& s, const std::vector<Node*>& chain);
  void drop_from_disk(Snapshot& s);
  void drop_page_file(Node& n);
  void drop_file(std::uint64_t id);
  bool install(const Load& load, std::vector<std::vector<std::byte>>& payloads);
  std::vector<Loaded> handle(DiskTier::Done done);
  std::vector<std::byte> image_bytes(const Snapshot& s) const;
  Result<> check_memory() const;
  Result<> check_disk() const;

  struct Owner {  // of a file
    Node* node = nullptr;
    Snapshot* snapshot = nullptr;
  };

  CacheConfig config_;
  Memory& memory_;
  SlotImage image_;
  BlockPool slots_;
  BlockPool pages_;
  PrefixTree tree_;
  std::map<Heat, Snapshot*> memory_order_;  // coldest first
  std::map<Heat, Snapshot*> disk_order_;
  std::uint64_t clock_ = 0;
  std::vector<const Lane*> lanes_;
  std::vector<std::int32_t> lanes_on_;  // [pages] how many lanes have the page
  std::int32_t lane_pages_ = 0;         // pages that any lane has

  std::unique_ptr<DiskTier> disk_;
  std::unordered_map<std::uint64_t, Owner> files_;
  std::map<std::uint64_t, std::unique_ptr<Load>> loads_;
  std::uint64_t next_ticket_ = 1;
  std::size_t disk_used_ = 0;
  CacheStats counters_;
};

}  // namespace fathom::cache
