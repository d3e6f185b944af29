// The disk half of StateCache: what is written, what is found at the start, what is fetched back.
#include <algorithm>
#include <set>

#include "base/check.h"
#include "cache/state_cache.h"

namespace fathom::cache {

Result<> StateCache::open_disk() {
  if (config_.disk_directory.empty()) return {};
  DiskOptions options;
  const model::CacheLayout& l = image_.layout();
  std::string identity = fmt::format("{}|page {}|extra {}|draft {}", config_.identity, page_bytes(),
                                     config_.extra_bytes, config_.draft_layers);
  // Offsets and ring sizes may differ from run to run: files hold rows by position.
  for (const model::LayerCache& layer : l.layers) {
    identity += fmt::format("|{} {} {} {} {} {}", layer.ratio, layer.window.capacity - l.rollback,
                            static_cast<int>(layer.window.codec.format), layer.window.codec.dim, layer.compressor.width,
                            static_cast<int>(layer.index_keys.codec.format));
  }
  options.directory = config_.disk_directory;
  options.fingerprint = fingerprint_of(identity);
  options.warn = config_.warn;
  options.notify = config_.notify;
  std::vector<DiskTier::Found> found;
  FATHOM_ASSIGN(disk_, DiskTier::open(std::move(options), found));
  adopt(found);
  return {};
}

// Builds the tree of what an earlier run left.
void StateCache::adopt(const std::vector<DiskTier::Found>& found) {
  std::vector<const DiskTier::Found*> snapshots;
  for (const DiskTier::Found& f : found) {
    if (f.header.kind == FileKind::kSnapshot) snapshots.push_back(&f);
    const std::uint64_t expected =
        f.header.kind == FileKind::kPage
            ? page_bytes()
            : image_.bytes({f.header.position + static_cast<std::int32_t>(f.header.tokens.size()), f.header.drafted});
    if (f.header.payload_bytes != expected) {
      config_.warn(fmt::format("cache: {} holds {} bytes, expected {}; removed", file_name(f.header.kind, f.header.id),
                               f.header.payload_bytes, expected));
      disk_->remove(f.header.kind, f.header.id);
      continue;
    }
    if (!adopt(f)) disk_->remove(f.header.kind, f.header.id);
  }
  std::stable_sort(snapshots.begin(), snapshots.end(), [](const auto* a, const auto* b) { return a->used < b->used; });
  for (const DiskTier::Found* f : snapshots) {
    const auto owner = files_.find(f->header.id);
    if (owner != files_.end()) set_heat(*owner->second.snapshot, Keep::kUsual);
  }
  // Pages whose snapshots are gone.
  std::vector<Node*> leaves;
  for (const auto& n : tree_.nodes()) {
    if (!n->is_root() && n->empty()) leaves.push_back(n.get());
  }
  for (Node* leaf : leaves) {
    Snapshot* s = tree_.add_snapshot(*leaf, {}, 0);
    tree_.count_disk(leaf, +1, [](Node&) {});
    tree_.count_disk(leaf, -1, [this](Node& n) { drop_page_file(n); });
    tree_.forget(s);
  }
  while (disk_used_ > config_.disk_bytes && !disk_order_.empty()) {
    ++counters_.evicted_from_disk;
    drop_from_disk(*disk_order_.begin()->second);
  }
}

bool StateCache::adopt(const DiskTier::Found& f) {
  const FileHeader& h = f.header;
  Node* parent = nullptr;
  if (h.parent == 0) {
    parent = tree_.root(h.salt);
  } else {
    const auto owner = files_.find(h.parent);
    if (owner == files_.end() || owner->second.node == nullptr) return false;
    parent = owner->second.node;
  }
  const FileRef file{.id = h.id, .bytes = h.file_bytes(), .written = true};
  if (h.kind == FileKind::kPage) {
    TokenPage tokens;
    std::copy(h.tokens.begin(), h.tokens.end(), tokens.begin());
    Node* node = tree_.child(*parent, tokens);
    node->file = file;
    files_[h.id] = {.node = node};
  } else {
    Snapshot* s = tree_.add_snapshot(*parent, h.tokens, h.drafted);
    s->file = file;
    s->heat = {.stamp = 0, .serial = h.id};
    files_[h.id] = {.snapshot = s};
    disk_order_.emplace(s->heat, s);
    tree_.count_disk(parent, +1, [](Node&) {});
  }
  disk_used_ += file.bytes;
  return true;
}

std::vector<std::byte> StateCache::image_bytes(const Snapshot& s) const {
  std::vector<std::byte> out(image_.bytes(s.reach));
  for (std::size_t done = 0, i = 0; done < out.size(); ++i) {
    const std::size_t n = std::min(page_bytes(), out.size() - done);
    memory_.fetch(out.data() + done, pages_.data(s.image[i]), n);
    done += n;
  }
  return out;
}

// Has a snapshot in memory written, with those pages of its path that are not on disk. What does not fit into the queue
// or the budget is not written.
void StateCache::persist(Snapshot& s) {
  if (s.on_disk()) return;
  std::vector<Node*> chain;
  while (true) {
    chain.clear();
    std::size_t bytes = image_.bytes(s.reach) + 1024;
    for (Node* n = s.node; !n->is_root() && n->file.id == 0; n = n->parent) {
      chain.push_back(n);
      bytes += page_bytes() + 1024;
    }
    const std::size_t queued = disk_->queued_bytes();
    if (bytes > config_.disk_bytes || (queued > 0 && queued + bytes > config_.write_queue_bytes)) {
      ++counters_.not_written;
      return;
    }
    if (disk_used_ + bytes <= config_.disk_bytes) break;
    // The coldest may hold the last claim on pages of this very path: the chain is looked at again.
    ++counters_.evicted_from_disk;
    drop_from_disk(*disk_order_.begin()->second);
  }
  std::reverse(chain.begin(), chain.end());
  write_chain(s, chain);
}

void StateCache::write_chain(Snapshot& s, const std::vector<Node*>& chain) {
  const auto header = [this](FileKind kind, const Node* parent, std::span<const std::int32_t> tokens,
                             std::size_t payload) {
    FileHeader h;
    h.kind = kind;
    h.id = disk_->new_id();
    h.parent = parent->file.id;
    h.payload_bytes = payload;
    if (parent->is_root()) h.salt = parent->salt;
    h.position = parent->length();
    h.tokens.assign(tokens.begin(), tokens.end());
    return h;
  };
  std::vector<std::byte> payload(page_bytes());
  for (Node* n : chain) {
    const FileHeader h = header(FileKind::kPage, n->parent, n->tokens, page_bytes());
    memory_.fetch(payload.data(), pages_.data(n->page), payload.size());
    disk_->write(h, payload);
    n->file = {.id = h.id, .bytes = h.file_bytes()};
    files_[h.id] = {.node = n};
    disk_used_ += n->file.bytes;
  }
  payload = image_bytes(s);
  FileHeader h = header(FileKind::kSnapshot, s.node, s.tail, payload.size());
  h.drafted = s.reach.drafted;
  disk_->write(h, payload);
  s.file = {.id = h.id, .bytes = h.file_bytes()};
  files_[h.id] = {.snapshot = &s};
  disk_used_ += s.file.bytes;
  disk_order_.emplace(s.heat, &s);
  tree_.count_disk(s.node, +1, [](Node&) {});
}

void StateCache::drop_page_file(Node& n) {
  disk_->remove(FileKind::kPage, n.file.id);
  files_.erase(n.file.id);
  disk_used_ -= n.file.bytes;
  n.file = {};
}

void StateCache::drop_from_disk(Snapshot& s) {
  disk_->remove(FileKind::kSnapshot, s.file.id);
  files_.erase(s.file.id);
  disk_used_ -= s.file.bytes;
  s.file = {};
  disk_order_.erase(s.heat);
  tree_.count_disk(s.node, -1, [this](Node& n) { drop_page_file(n); });
  if (!s.in_memory()) tree_.forget(&s);
}

// A file turned out not to be there, or not to be whole: nor is what continues it.
void StateCache::drop_file(std::uint64_t id) {
  const auto owner = files_.find(id);
  if (owner == files_.end()) return;
  if (owner->second.snapshot != nullptr) {
    drop_from_disk(*owner->second.snapshot);
    return;
  }
  for (Snapshot* s : tree_.below(*owner->second.node)) {
    if (s->on_disk()) drop_from_disk(*s);
  }
}

std::uint64_t StateCache::load(std::string_view salt, std::span<const std::int32_t> tokens) {
  Snapshot* s = disk_ != nullptr ? tree_.find(salt, tokens).disk : nullptr;
  if (s == nullptr) return 0;
  set_heat(*s, Keep::kUsual);
  disk_->touch(FileKind::kSnapshot, s->file.id);
  auto load = std::make_unique<Load>();
  load->salt = salt;
  load->reach = s->reach;
  load->tokens.assign(tokens.begin(), tokens.begin() + s->reach.length);
  std::vector<DiskTier::Wanted> files;
  for (const Node* n = s->node; !n->is_root(); n = n->parent) {
    if (n->page != kNoBlock) continue;
    load->depths.push_back(n->depth);
    files.push_back({FileKind::kPage, n->file.id});
  }
  files.push_back({FileKind::kSnapshot, s->file.id});
  const std::uint64_t ticket = next_ticket_++;
  disk_->read(ticket, std::move(files));
  loads_.emplace(ticket, std::move(load));
  return ticket;
}

// Puts what was read into memory, where it is still wanted and there is room.
bool StateCache::install(const Load& load, std::vector<std::vector<std::byte>>& payloads) {
  Snapshot* s = tree_.exact(load.salt, load.tokens);
  if (s != nullptr && s->in_memory()) return true;
  // The disk may have given the snapshot up meanwhile; then it would come back as one that nobody remembers.
  if (s == nullptr || s->reach != load.reach) return false;
  std::vector<BlockId> image;
  std::vector<BlockId> pages;
  if (!take_pages(image_pages(load.reach) + static_cast<std::int32_t>(load.depths.size()), pages)) return false;
  s = tree_.exact(load.salt, load.tokens);  // making room may have moved others to the disk, and this one off it
  image.assign(pages.begin() + static_cast<std::ptrdiff_t>(load.depths.size()), pages.end());
  pages.resize(load.depths.size());

  for (std::size_t i = 0; i < pages.size(); ++i) memory_.store(pages_.data(pages[i]), payloads[i].data(), page_bytes());
  const std::vector<std::byte>& bytes = payloads.back();
  for (std::size_t done = 0, i = 0; done < bytes.size(); ++i) {
    const std::size_t n = std::min(page_bytes(), bytes.size() - done);
    memory_.store(pages_.data(image[i]), bytes.data() + done, n);
    done += n;
  }
  std::vector<BlockId> by_depth(load.tokens.size() / ops::kPageTokens + 1, kNoBlock);
  for (std::size_t i = 0; i < pages.size(); ++i) by_depth[static_cast<std::size_t>(load.depths[i])] = pages[i];
  // Making room may have taken pages of this path that were in memory when the files were chosen.
  const bool come_already = s != nullptr && s->in_memory();
  bool whole = s != nullptr && !come_already;
  for (const Node* n = whole ? s->node : nullptr; whole && !n->is_root(); n = n->parent) {
    whole = whole && (n->page != kNoBlock || by_depth[static_cast<std::size_t>(n->depth)] != kNoBlock);
  }
  if (whole) {
    for (Node* n = s->node; !n->is_root(); n = n->parent) {
      if (n->page == kNoBlock) n->page = std::exchange(by_depth[static_cast<std::size_t>(n->depth)], kNoBlock);
    }
    put_in_memory(*s, std::move(image), Keep::kUsual);
  } else {
    for (const BlockId b : image) pages_.release(b);
  }
  for (const BlockId b : by_depth) {
    if (b != kNoBlock) pages_.release(b);
  }
  return whole || come_already;
}

std::vector<StateCache::Loaded> StateCache::handle(DiskTier::Done done) {
  for (const DiskTier::Written& w : done.written) {
    const auto owner = files_.find(w.id);
    if (owner == files_.end()) continue;
    if (!w.ok) {
      drop_file(w.id);
    } else if (owner->second.node != nullptr) {
      owner->second.node->file.written = true;
    } else {
      owner->second.snapshot->file.written = true;
    }
  }
  std::vector<Loaded> out;
  for (DiskTier::Read& r : done.read) {
    const auto it = loads_.find(r.ticket);
    FATHOM_CHECK(it != loads_.end(), "only what was asked for is read");
    const std::unique_ptr<Load> load = std::move(it->second);
    loads_.erase(it);
    if (r.failed != 0) drop_file(r.failed);
    const bool ok = r.failed == 0 && install(*load, r.payloads);
    ++(ok ? counters_.loads : counters_.failed_loads);
    out.push_back({.ticket = r.ticket, .ok = ok});
  }
  return out;
}

std::vector<StateCache::Loaded> StateCache::poll() {
  return disk_ != nullptr ? handle(disk_->poll()) : std::vector<Loaded>{};
}

std::vector<StateCache::Loaded> StateCache::drain() {
  if (disk_ == nullptr) return {};
  disk_->drain();
  return handle(disk_->poll());
}

}  // namespace fathom::cache
