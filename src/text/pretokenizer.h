// The pre-tokenizer: cuts text into the pieces that byte-pair merging never crosses. prompt-encoding.md 1.3.
//
// The specification gives three regular expressions applied one after the other. Here they are one hand-written scanner
// over a table of character classes: linear, no backtracking, no look-ahead beyond one character (or one run of white
// space). The test keeps the regular expressions as the judge.
#pragma once

#include <cstddef>
#include <string_view>

namespace fathom::text {

class CharClassTable;

class PreTokenizer {
 public:
  PreTokenizer();

  // The end of the piece that begins at `begin` (< text.size()), where `begin` is 0 or the end of the piece before.
  // Any bytes are accepted; a byte that is not UTF-8 counts as a character of no class.
  std::size_t piece_end(std::string_view text, std::size_t begin) const;

 private:
  const CharClassTable* classes_;  // built once, never changed, lives as long as the program
};

}  // namespace fathom::text
