// tokenizer.json from anyone: refused with a message, or a tokenizer that works.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::text;
  auto t = Tokenizer::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!t) {
    FATHOM_CHECK(t.error().what.size() > 6, "an error says something");
    return 0;
  }
  const std::string text = "Once upon a time, 1234 <think> \xE2\x82\xAC\n\n  x\xFF";
  for (const Mode mode : {Mode::kPlain, Mode::kSpecial}) {
    std::string joined;
    for (const std::int32_t id : t->encode(text, mode)) {
      FATHOM_CHECK(mode == Mode::kSpecial || !t->is_added(id), "plain text holds no added token");
      joined += t->token_bytes(id).value();
    }
    FATHOM_CHECK(joined == text, "text comes back");
  }
  (void)ChatFormat::make(std::move(*t), Revision::k0731);
  return 0;
}
