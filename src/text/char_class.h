// Character classes of the pre-tokenizer, by code point. prompt-encoding.md 1.3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace fathom::text {

enum CharClass : std::uint8_t {
  kOther,        // controls, format characters, private use, unassigned
  kLetter,       // general category L
  kMark,         // M
  kNumber,       // N
  kPunctuation,  // P
  kSymbol,       // S
  kSpace,        // White_Space other than CR and LF
  kLineBreak,    // CR, LF
  kNothing,      // no character: the end of the text that a rule may see
};

class CharClassTable {
 public:
  static const CharClassTable& get();

  CharClass of(char32_t c) const { return blocks_[std::size_t{index_[c >> kShift]} << kShift | (c & kMask)]; }

  struct Char {
    CharClass cls = kOther;
    bool cjk = false;        // U+4E00-9FA5 or U+3040-30FF, the runs that the second stage cuts out
    std::size_t length = 0;  // bytes
  };
  Char at(std::string_view text, std::size_t i) const {
    const auto b = static_cast<std::uint8_t>(text[i]);
    if (b < 0x80) return {blocks_[b], false, 1};  // blocks are numbered as they appear: ASCII is the first
    const CodePoint c = decode_utf8(text, i);
    // U+FFFD itself is a symbol (3 bytes); one byte long it stands for a broken byte, which has no class.
    if (c.length == 1) return {kOther, false, 1};
    const bool cjk = (c.value >= 0x4E00 && c.value <= 0x9FA5) || (c.value >= 0x3040 && c.value <= 0x30FF);
    return {of(c.value), cjk, c.length};
  }

 private:
  CharClassTable();
  static constexpr int kShift = 7;
  static constexpr char32_t kMask = (1U << kShift) - 1;
  std::array<std::uint16_t, (0x110000 >> kShift)> index_ = {};
  std::vector<CharClass> blocks_;
};

}  // namespace fathom::text
