// Any bytes through the tokenizer and back.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::text;
  static const auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/models/fathom-tiny");
  FATHOM_CHECK(tokenizer, "the embedded tokenizer loads");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Mode mode : {Mode::kPlain, Mode::kSpecial}) {
    const auto ids = tokenizer->encode(text, mode);
    std::string joined;
    for (const std::int32_t id : ids) {
      FATHOM_CHECK(mode == Mode::kSpecial || !tokenizer->is_added(id), "plain text holds no added token");
      joined += tokenizer->token_bytes(id).value();
    }
    FATHOM_CHECK(joined == text, "text comes back");
    const std::string decoded = tokenizer->decode(ids).value();
    FATHOM_CHECK(find_invalid_utf8(decoded) == std::string::npos, "decoded text is UTF-8");
    FATHOM_CHECK(find_invalid_utf8(text) != std::string::npos || decoded == text, "valid text decodes to itself");
  }
  return 0;
}
