#include "cache/state_cache.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fathom::cache {
namespace {

using Tokens = std::span<const std::int32_t>;

std::int32_t full_pages(std::int32_t length) { return length / ops::kPageTokens; }
bool on_a_page(std::int32_t length) { return length % ops::kPageTokens != 0; }

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

}  // namespace

Lane::~Lane() { cache_.close(*this); }
std::byte* Lane::slot() const { return cache_.slots_.data(slot_); }
std::byte* Lane::extra() const { return cache_.image_.extra(slot()); }

StateCache::StateCache(const model::CacheLayout& layout, Memory& memory, CacheConfig config)
    : config_(std::move(config)), memory_(memory), image_(layout, config_.draft_layers, config_.extra_bytes) {}

StateCache::~StateCache() { FATHOM_CHECK(lanes_.empty(), "lanes go before their cache"); }

Result<std::unique_ptr<StateCache>> StateCache::create(const model::CacheLayout& layout, Memory& memory,
                                                       CacheConfig config) {
  if (config.slots < 1) return fail(Code::kInvalid, "the cache needs a slot at least (asked for {})", config.slots);
  std::unique_ptr<StateCache> c(new StateCache(layout, memory, std::move(config)));
  // A model without compressed layers has empty pages; images need some room all the same.
  const std::size_t page_bytes = std::max<std::size_t>(layout.page_bytes, 64);
  const std::size_t slot_bytes = c->image_.slot_bytes() * static_cast<std::size_t>(c->config_.slots);
  const auto least = static_cast<std::size_t>(c->config_.slots + 1);
  if (c->config_.memory_bytes < slot_bytes + least * page_bytes) {
    return fail(Code::kInvalid, "the cache has {} bytes; {} slots and as many pages and one need {}",
                c->config_.memory_bytes, c->config_.slots, slot_bytes + least * page_bytes);
  }
  const std::size_t pages = std::min<std::size_t>((c->config_.memory_bytes - slot_bytes) / page_bytes, 1U << 30U);
  FATHOM_ASSIGN(c->slots_, BlockPool::create(memory, c->image_.slot_bytes(), c->config_.slots));
  FATHOM_ASSIGN(c->pages_, BlockPool::create(memory, page_bytes, static_cast<std::int32_t>(pages)));
  c->lanes_on_.assign(pages, 0);
  FATHOM_TRY(c->open_disk());
  return c;
}

StateCache::Found StateCache::find(std::string_view salt, Tokens tokens) const {
  const Match m = tree_.find(salt, tokens);
  Found found{.memory = m.memory_length(), .disk = m.disk_length(), .shared = m.shared};
  for (const Node* n = m.memory != nullptr ? m.memory->node : nullptr; n != nullptr && !n->is_root(); n = n->parent) {
    found.pages_of_lanes += lanes_on_[static_cast<std::size_t>(n->page)] > 0 ? 1 : 0;
  }
  return found;
}

Result<std::unique_ptr<Lane>> StateCache::open(std::string_view salt, Tokens tokens) {
  std::unique_ptr<Lane> lane(new Lane(*this));
  lane->salt_ = salt;
  lane->slot_ = slots_.take();
  lanes_.push_back(lane.get());
  if (lane->slot_ == kNoBlock) return fail(Code::kExhausted, "all {} slots of the cache are taken", slots_.total());
  while (Snapshot* s = tree_.find(salt, tokens).memory) {
    if (restore(*lane, *s)) {
      lane->tokens_.assign(tokens.begin(), tokens.begin() + s->reach.length);
      return lane;
    }
    if (lanes_.size() > 1) return fail(Code::kExhausted, "no page of the cache is free");
    // Nobody will give a page back: what is remembered has them all, and is worth less than going on.
    if (disk_ != nullptr) persist(*s);
    ++counters_.evicted_from_memory;
    drop_from_memory(*s);
  }
  return lane;
}

// False, and the lane without pages, where none can be had for the one being filled.
bool StateCache::restore(Lane& lane, Snapshot& s) {
  std::byte* filling = nullptr;
  std::vector<BlockId> own;
  std::vector<BlockId> path;
  for (const Node* n = s.node; !n->is_root(); n = n->parent) path.push_back(n->page);
  for (auto page = path.rbegin(); page != path.rend(); ++page) {
    pages_.share(*page);
    add_page(lane, *page);
  }
  if (on_a_page(s.reach.length)) {
    // What is being restored must not make room for itself.
    memory_order_.erase(s.heat);
    const bool have = take_pages(1, own);
    memory_order_.emplace(s.heat, &s);
    if (!have) {
      for (const BlockId page : std::exchange(lane.pages_, {})) release_page(page);
      lane.page_data_.clear();
      return false;
    }
    add_page(lane, own[0]);
    filling = pages_.data(own[0]);
  }
  set_heat(s, Keep::kUsual);
  if (s.on_disk()) disk_->touch(FileKind::kSnapshot, s.file.id);
  copy_image(s.reach, lane.slot(), filling, s.image, /*save=*/false);
  lane.reach_ = s.reach;
  return true;
}

void StateCache::close(Lane& lane) {
  for (const BlockId page : lane.pages_) release_page(page);
  if (lane.slot_ != kNoBlock) slots_.release(lane.slot_);
  lanes_.erase(std::find(lanes_.begin(), lanes_.end(), &lane));
}

void StateCache::add_page(Lane& lane, BlockId page) {
  if (lanes_on_[static_cast<std::size_t>(page)]++ == 0) ++lane_pages_;
  lane.pages_.push_back(page);
  lane.page_data_.push_back(pages_.data(page));
}

void StateCache::release_page(BlockId page) {
  if (--lanes_on_[static_cast<std::size_t>(page)] == 0) --lane_pages_;
  pages_.release(page);
}

// The lane takes another page of the same contents for its own.
void StateCache::replace_page(Lane& lane, std::size_t index, BlockId page) {
  pages_.share(page);
  if (lanes_on_[static_cast<std::size_t>(page)]++ == 0) ++lane_pages_;
  release_page(lane.pages_[index]);
  lane.pages_[index] = page;
  lane.page_data_[index] = pages_.data(page);
}

Result<> StateCache::reserve(Lane& lane, std::int32_t tokens) {
  const std::int32_t needed = model::CacheLayout::pages_for(std::int64_t{lane.length()} + tokens) -
                              static_cast<std::int32_t>(lane.pages_.size());
  std::vector<BlockId> taken;
  if (needed > 0 && !take_pages(needed, taken)) {
    return fail(Code::kExhausted, "{} pages of the cache are needed, running sequences hold {} of {}", needed,
                lane_pages_, pages_.total());
  }
  for (const BlockId page : taken) add_page(lane, page);
  return {};
}

void StateCache::advance(Lane& lane, Tokens ids, std::int32_t drafted) {
  lane.tokens_.insert(lane.tokens_.end(), ids.begin(), ids.end());
  lane.reach_ = {.length = static_cast<std::int32_t>(lane.tokens_.size()), .drafted = drafted};
  FATHOM_CHECK(static_cast<std::int32_t>(lane.pages_.size()) >= model::CacheLayout::pages_for(lane.length()),
               "tokens lie on reserved pages");
  FATHOM_CHECK(0 <= drafted && drafted <= lane.length(), "the draft block follows the trunk");
}

void StateCache::clear_draft(Lane& lane, std::int32_t drafted) {
  std::vector<std::byte> zeros;
  for (const Piece& p : image_.draft_windows()) {
    zeros.resize(std::max(zeros.size(), p.bytes));
    memory_.store(lane.slot() + p.offset, zeros.data(), p.bytes);
  }
  lane.reach_.drafted = drafted;
}

bool StateCache::remember(Lane& lane, Keep keep) {
  const Tokens tokens = lane.tokens();
  if (Snapshot* old = tree_.exact(lane.salt_, tokens); old != nullptr) {
    if (old->in_memory()) {
      if (keep == Keep::kUsual) set_heat(*old, keep);
      if (disk_ != nullptr) persist(*old);
      return true;
    }
    // What is on disk may know less of the draft block. One snapshot has one reach.
    if (old->reach != lane.reach()) drop_from_disk(*old);
  }
  std::vector<BlockId> image;
  if (!take_pages(image_pages(lane.reach()), image)) return false;
  const std::int32_t full = full_pages(lane.length());
  std::byte* filling = on_a_page(lane.length()) ? lane.page_data_[static_cast<std::size_t>(full)] : nullptr;
  copy_image(lane.reach(), lane.slot(), filling, image, /*save=*/true);

  Node* node = tree_.path(lane.salt_, tokens, full);
  for (Node* n = node; !n->is_root(); n = n->parent) {
    const auto index = static_cast<std::size_t>(n->depth - 1);
    if (n->page == kNoBlock) {
      n->page = lane.pages_[index];
      pages_.share(n->page);
    } else if (n->page != lane.pages_[index]) {
      replace_page(lane, index, n->page);  // computed twice, to the same bits
    }
  }
  Snapshot* s = tree_.exact(lane.salt_, tokens);
  if (s == nullptr)
    s = tree_.add_snapshot(*node, tokens.subspan(static_cast<std::size_t>(node->length())), lane.reach().drafted);
  put_in_memory(*s, std::move(image), keep);
  if (disk_ != nullptr) persist(*s);
  return true;
}

std::int32_t StateCache::pages_within_reach() const { return pages_.total() - lane_pages_; }

std::int32_t StateCache::image_pages(Reach reach) const {
  return static_cast<std::int32_t>(std::max<std::size_t>(1, (image_.bytes(reach) + page_bytes() - 1) / page_bytes()));
}

// Between a lane's slot and page and the pages of an image, in either direction.
void StateCache::copy_image(Reach reach, std::byte* slot, std::byte* page, const std::vector<BlockId>& image,
                            bool save) {
  std::size_t done = 0;
  for (const Piece& p : image_.pieces(reach)) {
    std::byte* at = (p.in_page ? page : slot) + p.offset;
    for (std::size_t left = p.bytes; left > 0;) {
      const std::size_t offset = done % page_bytes();
      const std::size_t n = std::min(left, page_bytes() - offset);
      std::byte* block = pages_.data(image[done / page_bytes()]) + offset;
      save ? memory_.copy(block, at, n) : memory_.copy(at, block, n);
      at += n;
      done += n;
      left -= n;
    }
  }
}

void StateCache::put_in_memory(Snapshot& s, std::vector<BlockId> image, Keep keep) {
  s.image = std::move(image);
  set_heat(s, keep);
  memory_order_.emplace(s.heat, &s);
  tree_.count_memory(s.node, +1, [](Node&) {});
}

void StateCache::drop_from_memory(Snapshot& s) {
  for (const BlockId b : s.image) pages_.release(b);
  s.image.clear();
  memory_order_.erase(s.heat);
  tree_.count_memory(s.node, -1, [this](Node& n) { pages_.release(std::exchange(n.page, kNoBlock)); });
  if (!s.on_disk()) tree_.forget(&s);
}

void StateCache::set_heat(Snapshot& s, Keep keep) {
  if (s.in_memory()) memory_order_.erase(s.heat);
  if (s.on_disk()) disk_order_.erase(s.heat);
  ++clock_;
  std::uint64_t stamp = clock_;
  if (keep == Keep::kPassing && !memory_order_.empty()) stamp -= (clock_ - memory_order_.begin()->first.stamp) / 2;
  s.heat = {.stamp = stamp, .serial = clock_};
  if (s.in_memory()) memory_order_.emplace(s.heat, &s);
  if (s.on_disk()) disk_order_.emplace(s.heat, &s);
}

bool StateCache::make_room(std::int32_t pages) {
  while (pages_.free() < pages) {
    if (memory_order_.empty()) return false;
    Snapshot& coldest = *memory_order_.begin()->second;
    if (disk_ != nullptr) persist(coldest);
    ++counters_.evicted_from_memory;
    drop_from_memory(coldest);
  }
  return true;
}

// All or none.
bool StateCache::take_pages(std::int32_t n, std::vector<BlockId>& out) {
  // Not one snapshot is given up for what cannot be had anyway.
  if (n > pages_within_reach() || !make_room(n)) return false;
  for (std::int32_t i = 0; i < n; ++i) out.push_back(pages_.take());
  return true;
}

void StateCache::clear(bool disk_too) {
  while (!memory_order_.empty()) drop_from_memory(*memory_order_.begin()->second);
  while (disk_too && !disk_order_.empty()) drop_from_disk(*disk_order_.begin()->second);
}

CacheStats StateCache::stats() const {
  CacheStats s = counters_;
  s.pages = pages_.total();
  s.pages_free = pages_.free();
  s.pages_of_lanes = lane_pages_;
  s.lanes = static_cast<std::int32_t>(lanes_.size());
  s.snapshots_in_memory = static_cast<std::int64_t>(memory_order_.size());
  s.snapshots_on_disk = static_cast<std::int64_t>(disk_order_.size());
  s.memory_bytes = static_cast<std::size_t>(pages_.total()) * page_bytes() +
                   static_cast<std::size_t>(slots_.total()) * slots_.block_bytes();
  s.disk_bytes = disk_used_;
  return s;
}

std::string StateCache::describe() const {
  const std::size_t page_pool = static_cast<std::size_t>(pages_.total()) * page_bytes();
  const std::size_t slot_pool = static_cast<std::size_t>(slots_.total()) * slots_.block_bytes();
  const std::int32_t some = 64 * ops::kPageTokens;
  std::string out = fmt::format(
      "cache memory     {:10.1f} MiB\n"
      "  pages          {:10.1f} MiB   {} of {:.1f} KiB, 128 tokens each: {:.2f} KiB a token, {} tokens\n"
      "  slots          {:10.1f} MiB   {} of {:.1f} KiB, one for each running sequence\n"
      "  a snapshot     {:10.1f} MiB   at a page's end, {:.1f} MiB one token before; taken from the pages\n",
      mib(page_pool + slot_pool), mib(page_pool), pages_.total(), static_cast<double>(page_bytes()) / 1024,
      static_cast<double>(page_bytes()) / 1024 / ops::kPageTokens, std::int64_t{pages_.total()} * ops::kPageTokens,
      mib(slot_pool), slots_.total(), static_cast<double>(slots_.block_bytes()) / 1024, mib(image_.bytes({some, some})),
      mib(image_.bytes({some - 1, some - 1})));
  if (disk_ != nullptr) {
    out += fmt::format("cache on disk    {:10.1f} MiB   of {:.1f} MiB used, {} snapshots; {}\n",
                       mib(config_.disk_bytes), mib(disk_used_), disk_order_.size(), config_.disk_directory.string());
  }
  return out;
}

}  // namespace fathom::cache
