// Sequence: the memory of one sequence, owned; a slot and as many pages as its tokens need. Not shared with others:
// sharing, snapshots and eviction are built on top of the same bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/cache_layout.h"
#include "ops/backend.h"

namespace fathom::cache {

class Sequence {
 public:
  // Error: kExhausted. layout and backend outlive the sequence.
  static Result<Sequence> create(const model::CacheLayout& layout, ops::Backend& backend);

  // Tokens that slot and pages hold.
  std::int32_t length() const { return length_; }
  std::byte* slot() const { return slot_.get(); }
  std::span<std::byte* const> pages() const { return pages_; }

  // Makes room for `tokens` more. Error: kExhausted; the sequence is unchanged then.
  Result<> reserve(std::int32_t tokens);
  // After a step that ran `tokens` tokens.
  void advance(std::int32_t tokens) { length_ += tokens; }
  // Forgets the last tokens, at most the layout's rollback since the furthest the sequence has been. For drafts not
  // taken.
  void take_back(std::int32_t tokens);
  // Starts over. Nothing is cleared, because positions alone say what is live.
  void restart() { length_ = 0; }

 private:
  Sequence(const model::CacheLayout& layout, ops::Backend& backend) : layout_(&layout), backend_(&backend) {}
  const model::CacheLayout* layout_;
  ops::Backend* backend_;
  std::int32_t length_ = 0;
  ops::Buffer slot_;
  std::vector<ops::Buffer> owned_pages_;
  std::vector<std::byte*> pages_;
};

}  // namespace fathom::cache
