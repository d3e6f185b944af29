// Message shapes: any JSON as a request of every dialect. Rendered or refused; what is rendered holds together.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/api_request.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/raw_request.h"
#include "text/render.h"

namespace {

using namespace fathom::text;

void check(const Prompt& prompt, const ChatFormat& format) {
  const EncodedPrompt encoded = encode_prompt(prompt, format.tokenizer());
  std::size_t at = 0;
  for (const PromptSpan& span : encoded.spans) {
    FATHOM_CHECK(span.begin == at && span.end >= at, "spans follow one another");
    at = span.end;
    for (std::size_t i = span.begin; i < span.end; ++i) {
      FATHOM_CHECK(format.tokenizer().is_added(encoded.ids[i]) == (span.kind == Prompt::Kind::kControl),
                   "control tokens come from the template alone");
    }
  }
  FATHOM_CHECK(at == encoded.ids.size(), "spans cover all ids");
  FATHOM_CHECK(format.tokenizer().decode(encoded.ids).value() == prompt_string(prompt, format.tokenizer()),
               "ids and text are the same prompt");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto format = ChatFormat::load(FATHOM_SOURCE_DIR "/models/fathom-tiny");
  FATHOM_CHECK(format, "the embedded format loads");
  const auto json = parse_json_value({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json) return 0;
  if (const auto raw = read_raw_request(*json)) {
    if (const auto prompt = render_chat(*format, raw->messages, raw->options, raw->context)) check(*prompt, *format);
  }
  const JsonValue* body = json->get("body");
  for (const Dialect dialect : {Dialect::kChat, Dialect::kMessages, Dialect::kResponses}) {
    const auto request = map_request(dialect, body != nullptr ? *body : *json, {});
    if (!request) {
      FATHOM_CHECK(request.error().status == 400 && !request.error().message.empty(), "a refusal says why");
      continue;
    }
    if (const auto rendered = render_request(*format, *request)) check(rendered->prompt, *format);
  }
  return 0;
}
