// Byte-pair merging: the bytes of one piece to token ids. prompt-encoding.md 1.5.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

// The byte strings of ids 0..size-1, one behind the other in one block of memory.
class TokenBytes {
 public:
  void reserve(std::size_t tokens, std::size_t bytes);
  void push_back(std::string_view bytes);
  std::string_view operator[](std::size_t id) const {
    return std::string_view(bytes_).substr(begin_[id], begin_[id + 1] - begin_[id]);
  }
  std::size_t size() const { return begin_.size() - 1; }

 private:
  std::string bytes_;
  std::vector<std::uint32_t> begin_ = {0};
};

// Immutable once built (but for a memo that changes no result); encode may run on any number of threads.
class Bpe {
 public:
  // Two byte strings that become one; the rank is the place in the list.
  struct Merge {
    std::string_view whole;  // left part and right part
    std::size_t left = 0;    // bytes of the left part
  };

  // The ids that take part are those of `tokens` that are not `reserved` (a flag per id): no piece ever becomes a
  // reserved id. Errors (kCorrupt): a byte without a token, two tokens with one spelling, a merge whose parts or whole
  // are no tokens, a merge listed twice. `tokens` must outlive the Bpe.
  static Result<Bpe> build(const TokenBytes& tokens, const std::vector<bool>& reserved,
                           const std::vector<Merge>& merges);

  // Appends the ids of `piece` (any bytes, fewer than 2^31). O(n log n).
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

 private:
  struct PieceSlot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };
  struct PairSlot {
    std::uint64_t pair = ~std::uint64_t{0};
    std::int32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  static constexpr std::int32_t kNoRank = 0x7FFFFFFF;
  class Chain;

  Result<> index_pieces(const std::vector<bool>& reserved);
  Result<> index_merges(const std::vector<Merge>& merges);
  Result<> index_merge(std::int32_t left, std::int32_t right, std::int32_t whole, std::int32_t rank);
  std::int32_t find(std::string_view piece) const;
  std::int32_t find(std::string_view piece, std::uint32_t hash) const;
  const PairSlot& merge_of(std::int32_t left, std::int32_t right) const;
  // Whether the rules of merging turn the spelling of `id` into `id` alone, which makes looking the piece up exact.
  bool merges_to_itself(std::int32_t id) const;
  void merge(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const;

  const TokenBytes* tokens_ = nullptr;
  std::size_t longest_ = 0;  // bytes
  std::array<std::int32_t, 256> byte_id_ = {};
  std::vector<PieceSlot> pieces_;  // open addressing, a power of two, at most half full
  std::vector<PairSlot> pairs_;    // the same
  PairSlot no_merge_;
  // Per id: 0 = not asked yet, 1 = yes, 2 = no. A race writes the same answer twice.
  std::unique_ptr<std::atomic<std::uint8_t>[]> itself_;
};

}  // namespace fathom::text
