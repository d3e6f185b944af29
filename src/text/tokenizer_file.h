// What tokenizer.json says, read and checked. prompt-encoding.md 1.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
};

// Strings as the file has them: byte letters (1.4), not bytes.
struct TokenizerFile {
  struct Span {
    std::uint32_t begin = 0, end = 0;  // in `letters`
  };
  struct VocabEntry {
    Span token;
    std::int64_t id = 0;
  };
  struct MergeEntry {
    Span left, right;
  };
  std::string letters;
  std::vector<VocabEntry> vocab;  // in the order of the file
  std::vector<MergeEntry> merges;
  std::vector<AddedToken> added;

  std::string_view at(Span s) const { return std::string_view(letters).substr(s.begin, s.end - s.begin); }
};

// Refuses any pipeline but the one Fathom implements: kUnavailable. Not JSON or of the wrong shape: kInvalid.
Result<TokenizerFile> read_tokenizer_file(std::string_view json, std::string_view what);

// Turns a string of byte letters into the bytes they stand for; false if some character is not a byte letter.
bool letters_to_bytes(std::string_view letters, std::string& bytes);

}  // namespace fathom::text
