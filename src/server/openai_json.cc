#include "server/openai_json.h"

#include "server/json_out.h"

namespace fathom::server {

std::string usage_json(const Usage& u) {
  return Obj()
      .num("prompt_tokens", u.prompt)
      .num("completion_tokens", u.completion)
      .num("total_tokens", u.prompt + u.completion)
      .raw("prompt_tokens_details", Obj().num("cached_tokens", u.cached).done())
      .raw("completion_tokens_details", Obj().num("reasoning_tokens", u.reasoning).done())
      .num("prompt_cache_hit_tokens", u.cached)
      .num("prompt_cache_miss_tokens", u.prompt - u.cached)
      .done();
}

std::string usage_so_far_json(const Usage& u) {
  return Obj()
      .num("prompt_tokens", u.prompt)
      .num("completion_tokens", u.completion)
      .num("total_tokens", u.prompt + u.completion)
      .done();
}

std::string token_bytes_json(const text::Tokenizer& tokenizer, std::int32_t id) {
  std::vector<std::int32_t> bytes;
  for (const char c : tokenizer.token_bytes(id).value_or("")) bytes.push_back(static_cast<unsigned char>(c));
  return number_list(bytes);
}

std::string token_text_json(const text::Tokenizer& tokenizer, std::int32_t id) {
  return quote(tokenizer.token_bytes(id).value_or(""));
}

std::string sse(std::string_view json) {
  std::string out = "data: ";
  out += json;
  out += "\n\n";
  return out;
}

}  // namespace fathom::server
