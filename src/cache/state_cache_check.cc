// StateCache::check: every page, slot and file is counted once for each who holds it.
#include <set>

#include "cache/state_cache.h"

namespace fathom::cache {

Result<> StateCache::check() const {
  FATHOM_TRY(check_memory());
  return check_disk();
}

Result<> StateCache::check_memory() const {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(pages_.total()), 0);
  std::vector<std::int32_t> lanes(owners.size(), 0);
  std::set<BlockId> slots;
  for (const Lane* lane : lanes_) {
    if (lane->slot_ != kNoBlock && !slots.insert(lane->slot_).second)
      return fail(Code::kInternal, "slot {} belongs to two lanes", lane->slot_);
    for (std::size_t i = 0; i < lane->pages_.size(); ++i) {
      const auto page = static_cast<std::size_t>(lane->pages_[i]);
      ++owners[page];
      ++lanes[page];
      const bool full = static_cast<std::int32_t>(i + 1) * ops::kPageTokens <= lane->length();
      if (!full && pages_.owners(lane->pages_[i]) != 1)
        return fail(Code::kInternal, "page {} is being filled and shared", page);
    }
  }
  if (slots_.free() + static_cast<std::int32_t>(slots.size()) != slots_.total()) {
    return fail(Code::kInternal, "{} slots are free and {} taken, of {}", slots_.free(), slots.size(), slots_.total());
  }
  std::size_t in_memory = 0;
  for (const auto& n : tree_.nodes()) {
    std::int32_t users = 0;
    for (const auto& [tokens, c] : n->children) users += c->page != kNoBlock ? 1 : 0;
    for (const auto& [tail, s] : n->snapshots) {
      if (!s->in_memory() && !s->on_disk())
        return fail(Code::kInternal, "a snapshot of {} tokens is nowhere", s->reach.length);
      if (!s->in_memory()) continue;
      ++users;
      ++in_memory;
      const auto at = memory_order_.find(s->heat);
      if (at == memory_order_.end() || at->second != s.get())
        return fail(Code::kInternal, "a snapshot in memory is in no order");
      for (const BlockId b : s->image) ++owners[static_cast<std::size_t>(b)];
    }
    if (users != n->memory_users)
      return fail(Code::kInternal, "a node counts {} users in memory and has {}", n->memory_users, users);
    if (!n->is_root() && (users > 0) != (n->page != kNoBlock))
      return fail(Code::kInternal, "a node with {} users, its page {}", users, n->page);
    if (n->empty()) return fail(Code::kInternal, "a node that nothing needs");
    if (n->page != kNoBlock) ++owners[static_cast<std::size_t>(n->page)];
  }
  if (in_memory != memory_order_.size())
    return fail(Code::kInternal, "{} snapshots in memory, {} in order", in_memory, memory_order_.size());
  std::int32_t free = 0;
  std::int32_t held = 0;
  for (std::size_t b = 0; b < owners.size(); ++b) {
    if (owners[b] != pages_.owners(static_cast<BlockId>(b))) {
      return fail(Code::kInternal, "page {} has {} owners and counts {}", b, owners[b],
                  pages_.owners(static_cast<BlockId>(b)));
    }
    if (lanes[b] != lanes_on_[b])
      return fail(Code::kInternal, "page {} is of {} lanes and counts {}", b, lanes[b], lanes_on_[b]);
    free += owners[b] == 0 ? 1 : 0;
    held += lanes[b] > 0 ? 1 : 0;
  }
  if (free != pages_.free() || held != lane_pages_)
    return fail(Code::kInternal, "{} pages free, {} counted; {} of lanes, {} counted", free, pages_.free(), held,
                lane_pages_);
  return {};
}

Result<> StateCache::check_disk() const {
  std::size_t bytes = 0;
  std::size_t files = 0;
  std::size_t snapshots = 0;
  for (const auto& n : tree_.nodes()) {
    std::int32_t users = 0;
    for (const auto& [tokens, c] : n->children) users += c->file.id != 0 ? 1 : 0;
    for (const auto& [tail, s] : n->snapshots) {
      if (!s->on_disk()) continue;
      ++users;
      ++files;
      ++snapshots;
      bytes += s->file.bytes;
      const auto owner = files_.find(s->file.id);
      if (owner == files_.end() || owner->second.snapshot != s.get())
        return fail(Code::kInternal, "file {} has no owner", s->file.id);
      const auto at = disk_order_.find(s->heat);
      if (at == disk_order_.end() || at->second != s.get())
        return fail(Code::kInternal, "a snapshot on disk is in no order");
      if (s->file.written && !n->is_root() && !n->file.written)
        return fail(Code::kInternal, "file {} is there before the one it continues", s->file.id);
    }
    if (users != n->disk_users)
      return fail(Code::kInternal, "a node counts {} users on disk and has {}", n->disk_users, users);
    if (!n->is_root() && (users > 0) != (n->file.id != 0))
      return fail(Code::kInternal, "a node with {} users on disk, its file {}", users, n->file.id);
    if (n->file.id == 0) continue;
    ++files;
    bytes += n->file.bytes;
    const auto owner = files_.find(n->file.id);
    if (owner == files_.end() || owner->second.node != n.get())
      return fail(Code::kInternal, "file {} has no owner", n->file.id);
  }
  if (files != files_.size() || snapshots != disk_order_.size())
    return fail(Code::kInternal, "{} files, {} counted; {} snapshots on disk, {} in order", files, files_.size(),
                snapshots, disk_order_.size());
  if (bytes != disk_used_) return fail(Code::kInternal, "{} bytes on disk, {} counted", bytes, disk_used_);
  if (disk_ != nullptr && disk_used_ > config_.disk_bytes)
    return fail(Code::kInternal, "{} bytes on disk, the budget is {}", disk_used_, config_.disk_bytes);
  return {};
}

}  // namespace fathom::cache
