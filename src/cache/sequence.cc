#include "cache/sequence.h"

#include "base/check.h"

namespace fathom::cache {

Result<Sequence> Sequence::create(const model::CacheLayout& layout, ops::Backend& backend) {
  Sequence s(layout, backend);
  FATHOM_ASSIGN(s.slot_, backend.allocate(layout.slot_bytes));
  return s;
}

Result<> Sequence::reserve(std::int32_t tokens) {
  const auto needed = static_cast<std::size_t>(model::CacheLayout::pages_for(std::int64_t{length_} + tokens));
  while (pages_.size() < needed) {
    FATHOM_ASSIGN(ops::Buffer page, backend_->allocate(layout_->page_bytes));
    pages_.push_back(page.get());
    owned_pages_.push_back(std::move(page));
  }
  return {};
}

void Sequence::take_back(std::int32_t tokens) {
  FATHOM_CHECK(0 <= tokens && tokens <= layout_->rollback && tokens <= length_, "at most the rollback is taken back");
  length_ -= tokens;
}

}  // namespace fathom::cache
