#include "text/detokenizer.h"

namespace fathom::text {

Result<std::string> Detokenizer::push(std::int32_t id) {
  const auto bytes = tokenizer_->token_bytes(id);
  if (!bytes) {
    return fail(Code::kInvalid, "token id {} is outside the vocabulary (0 to {})", id, tokenizer_->vocab_size() - 1);
  }
  std::string text;
  stream_.push(*bytes, text);
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  stream_.finish(text);
  return text;
}

}  // namespace fathom::text
