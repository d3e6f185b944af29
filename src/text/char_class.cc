#include "text/char_class.h"

#include <algorithm>
#include <iterator>

namespace fathom::text {
namespace {

struct Range {
  char32_t first;
  CharClass cls;
};

constexpr Range kRanges[] = {
#include "text/char_class_table.inc"
};

}  // namespace

CharClassTable::CharClassTable() {
  std::array<CharClass, std::size_t{1} << kShift> block = {};
  const Range* range = std::begin(kRanges);
  for (char32_t c = 0; c < 0x110000; ++c) {
    while (range + 1 != std::end(kRanges) && range[1].first <= c) ++range;
    block[c & kMask] = range->cls;
    if ((c & kMask) != kMask) continue;
    std::size_t known = 0;
    while (known < blocks_.size() && !std::equal(block.begin(), block.end(), blocks_.begin() + known)) {
      known += block.size();
    }
    if (known == blocks_.size()) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[c >> kShift] = static_cast<std::uint16_t>(known >> kShift);
  }
}

const CharClassTable& CharClassTable::get() {
  static const CharClassTable table;
  return table;
}

}  // namespace fathom::text
