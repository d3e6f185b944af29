// Chunk: consecutive tokens of one sequence, and the memory they continue in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom::model {

enum class Rows : std::uint8_t { kNone, kLast, kAll };  // which tokens of a chunk logits are wanted for

// The sequence's memory holds tokens [0, start) when the step begins and [0, start + ids.size()) when it ends.
struct Chunk {
  std::span<const std::int32_t> ids;
  std::int32_t start = 0;
  std::byte* slot = nullptr;          // CacheLayout::slot_bytes of backend memory
  std::span<std::byte* const> pages;  // CacheLayout::page_bytes each, at least pages_for(start + ids.size());
                                      // drafts need none, their layers have only a window
  Rows logits = Rows::kLast;

  std::int32_t tokens() const { return static_cast<std::int32_t>(ids.size()); }
  std::int32_t rows() const {
    switch (logits) {
      case Rows::kNone: return 0;
      case Rows::kLast: return std::min(tokens(), 1);
      case Rows::kAll: return tokens();
    }
    return 0;
  }
};

}  // namespace fathom::model
