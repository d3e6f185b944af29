#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "base/check.h"

namespace fathom::text {
namespace {

// Up to this many bytes a piece is merged by scanning all its pairs for the best one: quick, and bounded, where a heap
// would only cost. Measured on English and code.
constexpr std::size_t kShort = 48;

// A table at most half full has no chains near this length, unless a hostile file was made to collide.
constexpr int kMaxProbes = 512;

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93U;
  x ^= x >> 32;
  return x;
}

std::uint64_t load(const char* p, std::size_t n) {
  std::uint64_t word = 0;
  std::memcpy(&word, p, n);
  return word;
}

std::uint32_t hash_bytes(std::string_view s) {
  std::uint64_t h = s.size() * 0x9E3779B97F4A7C15U;
  const char* p = s.data();
  std::size_t left = s.size();
  for (; left > 8; left -= 8, p += 8) h = (h ^ load(p, 8)) * 0xD6E8FEB86659FD93U, h ^= h >> 29;
  return static_cast<std::uint32_t>(mix(h ^ load(p, left)));
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::size_t table_size(std::size_t entries) { return std::bit_ceil(std::max<std::size_t>(entries, 1) * 2); }

}  // namespace

void TokenBytes::reserve(std::size_t tokens, std::size_t bytes) {
  begin_.reserve(tokens + 1);
  bytes_.reserve(bytes);
}

void TokenBytes::push_back(std::string_view bytes) {
  bytes_ += bytes;
  begin_.push_back(static_cast<std::uint32_t>(bytes_.size()));
}

Result<Bpe> Bpe::build(const TokenBytes& tokens, const std::vector<bool>& reserved, const std::vector<Merge>& merges) {
  Bpe bpe;
  bpe.tokens_ = &tokens;
  FATHOM_TRY(bpe.index_pieces(reserved));
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    bpe.byte_id_[static_cast<std::size_t>(b)] = bpe.find({&byte, 1});
    if (bpe.byte_id_[static_cast<std::size_t>(b)] < 0) {
      return fail(Code::kCorrupt, "the vocabulary has no token for the byte 0x{:02x}", b);
    }
  }
  FATHOM_TRY(bpe.index_merges(merges));
  bpe.itself_ = std::make_unique<std::atomic<std::uint8_t>[]>(tokens.size());
  return bpe;
}

Result<> Bpe::index_pieces(const std::vector<bool>& reserved) {
  pieces_.resize(table_size(tokens_->size()));
  const std::size_t mask = pieces_.size() - 1;
  for (std::size_t id = 0; id < tokens_->size(); ++id) {
    if (reserved[id]) continue;
    const std::string_view piece = (*tokens_)[id];
    longest_ = std::max(longest_, piece.size());
    const std::uint32_t hash = hash_bytes(piece);
    std::size_t slot = hash & mask;
    for (int probes = 0; pieces_[slot].id >= 0; slot = (slot + 1) & mask) {
      const PieceSlot& taken = pieces_[slot];
      if (taken.hash == hash && (*tokens_)[static_cast<std::size_t>(taken.id)] == piece) {
        return fail(Code::kCorrupt, "the tokens {} and {} stand for the same bytes", taken.id, id);
      }
      if (++probes == kMaxProbes) return fail(Code::kCorrupt, "the vocabulary is made of colliding strings");
    }
    pieces_[slot] = {hash, static_cast<std::int32_t>(id)};
  }
  return {};
}

// Three look-ups in a large table per merge: their places are fetched a few merges ahead, so that loading a vocabulary
// does not wait for memory at each.
Result<> Bpe::index_merges(const std::vector<Merge>& merges) {
  constexpr std::size_t kAhead = 16;
  pairs_.resize(table_size(merges.size()));
  const std::size_t mask = pieces_.size() - 1;
  std::array<std::array<std::uint32_t, 3>, kAhead> hashes;  // of left part, right part, whole
  const auto parts = [&](std::size_t i) {
    const auto& [whole, left] = merges[i];
    return std::array<std::string_view, 3>{whole.substr(0, left), whole.substr(left), whole};
  };
  const auto fetch = [&](std::size_t i) {
    const auto strings = parts(i);
    for (std::size_t k = 0; k < 3; ++k) {
      hashes[i % kAhead][k] = hash_bytes(strings[k]);
      __builtin_prefetch(&pieces_[hashes[i % kAhead][k] & mask]);
    }
  };
  for (std::size_t i = 0; i < std::min(kAhead, merges.size()); ++i) fetch(i);
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto strings = parts(i);
    std::array<std::int32_t, 3> ids = {};
    for (std::size_t k = 0; k < 3; ++k) ids[k] = find(strings[k], hashes[i % kAhead][k]);
    FATHOM_TRY(index_merge(ids[0], ids[1], ids[2], static_cast<std::int32_t>(i)));
    if (i + kAhead < merges.size()) fetch(i + kAhead);
  }
  return {};
}

Result<> Bpe::index_merge(std::int32_t left, std::int32_t right, std::int32_t id, std::int32_t rank) {
  if (left < 0 || right < 0 || id < 0) {
    return fail(Code::kCorrupt, "merge {}: its {} is not in the vocabulary", rank,
                left < 0    ? "left part"
                : right < 0 ? "right part"
                            : "concatenation");
  }
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = pairs_.size() - 1;
  std::size_t slot = mix(key) & mask;
  for (int probes = 0; pairs_[slot].rank != kNoRank; slot = (slot + 1) & mask) {
    if (pairs_[slot].pair == key) {
      return fail(Code::kCorrupt, "merge {} is the same as merge {}", rank, pairs_[slot].rank);
    }
    if (++probes == kMaxProbes) return fail(Code::kCorrupt, "the merges are made of colliding pairs");
  }
  pairs_[slot] = {key, rank, id};
  return {};
}

std::int32_t Bpe::find(std::string_view piece) const {
  return piece.size() > longest_ ? -1 : find(piece, hash_bytes(piece));
}

std::int32_t Bpe::find(std::string_view piece, std::uint32_t hash) const {
  const std::size_t mask = pieces_.size() - 1;
  for (std::size_t slot = hash & mask; pieces_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (pieces_[slot].hash == hash && (*tokens_)[static_cast<std::size_t>(pieces_[slot].id)] == piece) {
      return pieces_[slot].id;
    }
  }
  return -1;
}

const Bpe::PairSlot& Bpe::merge_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = pairs_.size() - 1;
  for (std::size_t slot = mix(key) & mask; pairs_[slot].rank != kNoRank; slot = (slot + 1) & mask) {
    if (pairs_[slot].pair == key) return pairs_[slot];
  }
  return no_merge_;
}

bool Bpe::merges_to_itself(std::int32_t id) const {
  std::atomic<std::uint8_t>& memo = itself_[static_cast<std::size_t>(id)];
  const std::uint8_t known = memo.load(std::memory_order_relaxed);
  if (known != 0) return known == 1;
  std::vector<std::int32_t> ids;
  merge((*tokens_)[static_cast<std::size_t>(id)], ids);
  const bool yes = ids.size() == 1;
  memo.store(yes ? 1 : 2, std::memory_order_relaxed);
  return yes;
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_id_[static_cast<std::uint8_t>(piece[0])]);
    return;
  }
  if (const std::int32_t id = find(piece); id >= 0 && merges_to_itself(id)) {
    ids.push_back(id);
    return;
  }
  merge(piece, ids);
}

void Bpe::merge(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.size() <= kShort) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShort> symbol;
  std::array<std::int32_t, kShort> rank;    // of the pair (i, i + 1)
  std::array<std::int32_t, kShort> result;  // what that pair becomes
  std::size_t n = piece.size();
  const auto look_up = [&](std::size_t i) {
    const PairSlot& m = merge_of(symbol[i], symbol[i + 1]);
    rank[i] = m.rank;
    result[i] = m.id;
  };
  for (std::size_t i = 0; i < n; ++i) symbol[i] = byte_id_[static_cast<std::uint8_t>(piece[i])];
  for (std::size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    // The first of the smallest: the leftmost pair wins among equals.
    const auto best = static_cast<std::size_t>(std::min_element(rank.begin(), rank.begin() + (n - 1)) - rank.begin());
    if (rank[best] == kNoRank) break;
    symbol[best] = result[best];
    std::copy(symbol.begin() + best + 2, symbol.begin() + n, symbol.begin() + best + 1);
    if (best + 2 < n) {
      std::copy(rank.begin() + best + 2, rank.begin() + n - 1, rank.begin() + best + 1);
      std::copy(result.begin() + best + 2, result.begin() + n - 1, result.begin() + best + 1);
    }
    --n;
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.insert(ids.end(), symbol.begin(), symbol.begin() + n);
}

// A piece as a linked list of symbols, with the pairs that can merge in a heap, lowest rank first, leftmost first among
// equals. Pairs that have changed since stay in the heap and are passed over.
class Bpe::Chain {
 public:
  Chain(const Bpe& bpe, std::string_view piece) : bpe_(bpe), nodes_(piece.size()) {
    const auto n = static_cast<std::int32_t>(piece.size());
    for (std::int32_t i = 0; i < n; ++i) {
      node(i) = {bpe.byte_id_[static_cast<std::uint8_t>(piece[static_cast<std::size_t>(i)])], i - 1,
                 i + 1 < n ? i + 1 : -1, kNoRank, -1};
    }
    std::vector<Entry> entries;
    for (std::int32_t i = 0; i + 1 < n; ++i) {
      if (look_up(i)) entries.push_back(entry(i));
    }
    heap_ = Heap(std::greater<>(), std::move(entries));
  }

  void merge_all() {
    while (!heap_.empty()) {
      const Entry top = heap_.top();
      heap_.pop();
      const auto at = static_cast<std::int32_t>(top & 0xFFFFFFFFU);
      if (entry(at) == top) merge(at);
    }
  }

  void append_to(std::vector<std::int32_t>& ids) const {
    for (std::int32_t i = 0; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next) {
      ids.push_back(nodes_[static_cast<std::size_t>(i)].symbol);
    }
  }

 private:
  struct Node {
    std::int32_t symbol;
    std::int32_t previous;
    std::int32_t next;
    std::int32_t rank;  // of the pair with the next symbol; kNoRank where there is none or this node is gone
    std::int32_t result;
  };
  using Entry = std::uint64_t;  // rank above, position below: compares as the order of merging
  using Heap = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  Node& node(std::int32_t i) { return nodes_[static_cast<std::size_t>(i)]; }

  Entry entry(std::int32_t i) { return pair_key(node(i).rank, i); }

  bool look_up(std::int32_t i) {
    Node& a = node(i);
    const PairSlot& m = a.next < 0 ? bpe_.no_merge_ : bpe_.merge_of(a.symbol, node(a.next).symbol);
    a.rank = m.rank;
    a.result = m.id;
    return a.rank != kNoRank;
  }

  void merge(std::int32_t at) {
    Node& a = node(at);
    Node& gone = node(a.next);
    a.symbol = a.result;
    a.next = gone.next;
    gone.rank = kNoRank;
    if (a.next >= 0) node(a.next).previous = at;
    if (look_up(at)) heap_.push(entry(at));
    if (a.previous >= 0 && look_up(a.previous)) heap_.push(entry(a.previous));
  }

  const Bpe& bpe_;
  std::vector<Node> nodes_;
  Heap heap_;
};

void Bpe::merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const {
  FATHOM_CHECK(piece.size() < 0x7FFFFFFF, "a piece is shorter than 2 GiB");
  Chain chain(*this, piece);
  chain.merge_all();
  chain.append_to(ids);
}

}  // namespace fathom::text
