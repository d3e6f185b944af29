// UTF-8: checking, and turning any bytes into valid text as they arrive. prompt-encoding.md 1.8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom::text {

// The offset of the first byte that does not belong to a valid character (no overlong forms, no surrogates, at most
// U+10FFFF), or npos if all of `bytes` is valid UTF-8.
std::size_t find_invalid_utf8(std::string_view bytes);

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  // bytes taken
};

// The character at bytes[at] (at < bytes.size()). A byte that begins no valid character gives U+FFFD and length 1, so a
// walk over hostile bytes always moves on.
CodePoint decode_utf8(std::string_view bytes, std::size_t at);

void append_utf8(char32_t code_point, std::string& out);

// Makes valid UTF-8 out of a stream of bytes: a character that is not yet complete is held back (at most 3 bytes),
// bytes that cannot become one are replaced by U+FFFD, one per maximal subpart. The result does not depend on how the
// stream was cut. One thread.
class Utf8Stream {
 public:
  // Appends to `out` what `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  // The stream ends here (or something that is not text intervenes): a held beginning becomes one U+FFFD.
  void finish(std::string& out);
  bool holds() const { return !held_.empty(); }

 private:
  std::string held_;  // the beginning of a character, valid so far
};

}  // namespace fathom::text
