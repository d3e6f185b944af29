// FakeModel: what a model does to slots and pages, without the arithmetic, and with distrust. Every row that it writes
// carries a hash of all tokens up to it and a link to the row before; every step first checks that each row a real
// model would read is the right one, by following those links back from the newest. So a cache that restores the wrong
// bytes, or too few, is found out at the next token, and at the price of nearly nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/cache_layout.h"
#include "model/model.h"

namespace fathom::testing {

struct FakeShape {
  std::int32_t window = 16;
  std::int32_t rollback = 4;
  std::vector<std::int32_t> ratios{4, 128, 0};  // of the trunk's layers
  bool draft = true;                            // one draft layer after them
};

class FakeModel {
 public:
  using Hash = std::uint64_t;

  explicit FakeModel(const FakeShape& shape = {});

  const model::CacheLayout& layout() const { return layout_; }
  std::int32_t draft_layers() const { return shape_.draft ? 1 : 0; }

  // The hash of a sequence, from nothing.
  static Hash hash(std::span<const std::int32_t> tokens);
  static Hash next(Hash before, std::int32_t token);

  // Runs a chunk; returns the hash after each of its tokens. What was wrong with the memory goes to error().
  std::vector<Hash> trunk(const model::Chunk& chunk);
  // The draft block at positions start .. start + ids.size(), ids being the tokens that follow: needs all before it.
  void draft(const model::Chunk& chunk, std::span<const Hash> streams);

  // The first complaint; empty while there is none.
  const std::string& error() const { return error_; }
  // Times the draft block met a window that had been cleared.
  std::uint64_t cleared_windows() const { return cleared_windows_; }

 private:
  struct Row {
    Hash own;
    Hash before;
  };
  Row window_row(std::size_t layer, std::byte* slot, std::int32_t position) const;
  Row compressor_row(const ops::CompressorRing& ring, std::byte* slot, std::int32_t position) const;
  Row entry(const ops::EntryPages& pages, const model::Chunk& chunk, std::int32_t w) const;
  Hash newest(const model::Chunk& chunk) const;
  void check(const model::Chunk& chunk);
  void check_entries(const ops::EntryPages& pages, const model::Chunk& chunk, std::int32_t ratio,
                     std::span<const Hash> recent);
  void write(const model::Chunk& chunk, std::int32_t position, Row row);
  void expect(bool ok, const char* what, std::size_t layer, std::int32_t position, std::int32_t start);

  FakeShape shape_;
  model::CacheLayout layout_;
  std::string error_;
  std::uint64_t cleared_windows_ = 0;
};

}  // namespace fathom::testing
