// Detokenizer: ids to text while they arrive, never a broken character. prompt-encoding.md 1.8.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom::text {

// One stream; one thread. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // What `id` completes: valid UTF-8, often empty in the middle of an emoji. Error: kInvalid, an id outside the
  // vocabulary; the stream stays usable.
  Result<std::string> push(std::int32_t id);
  // The end: what was held back, as one U+FFFD, or nothing.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream stream_;
};

}  // namespace fathom::text
