// /tokenize and /detokenize. http-api.md 9.
#include <utility>

#include "server/api_call.h"
#include "server/json_out.h"

namespace fathom::server {

void Api::tokenize(Call& call) {
  text::JsonValue body;
  if (!read_body(call, body)) return;
  Fields f(body);
  bool bos = true;
  bool special = true;
  bool strings = false;
  if (!f.boolean("add_special_tokens", bos) || !f.boolean("parse_special", special) ||
      !f.boolean("return_token_strs", strings)) {
    return refuse(call, f.refused());
  }
  std::vector<std::int32_t> ids;
  const text::JsonValue* prompt = body.get("prompt");
  if (prompt != nullptr) {
    if (!prompt->is_string()) return refuse(call, invalid("prompt", "a string"));
    ids = format_.tokenizer().encode(prompt->text, special ? text::Mode::kSpecial : text::Mode::kPlain);
    const std::int32_t first = format_.control().bos;
    if (bos && (ids.empty() || ids[0] != first)) ids.insert(ids.begin(), first);
  } else if (body.get("messages") != nullptr) {
    auto request = text::map_request(text::Dialect::kChat, body, options_.defaults);
    if (!request) return refuse(call, {request.error()});
    const auto rendered = text::render_request(format_, *request);
    if (!rendered) return refuse(call, refusal(400, "messages", "invalid_value", rendered.error().what));
    ids = text::encode_prompt(rendered->prompt, format_.tokenizer()).ids;
  } else {
    return refuse(call, refusal(400, "prompt", "missing_field", "prompt: missing, and so is messages"));
  }
  Obj out;
  out.num("count", static_cast<std::int64_t>(ids.size()))
      .num("max_model_len", options_.context)
      .raw("tokens", number_list(ids));
  if (strings) {
    std::vector<std::string> list;
    for (const std::int32_t id : ids) list.push_back(quote(format_.tokenizer().token_bytes(id).value_or("")));
    out.raw("token_strs", join_list(list));
  } else {
    out.null("token_strs");
  }
  answer(call, out.done());
}

void Api::detokenize(Call& call) {
  text::JsonValue body;
  if (!read_body(call, body)) return;
  const text::JsonValue* tokens = body.get("tokens");
  if (tokens == nullptr) return refuse(call, refusal(400, "tokens", "missing_field", "tokens: missing"));
  const auto ids = read_ids(*tokens, "tokens", format_.tokenizer().vocab_size());
  if (!ids) return refuse(call, ids.error());
  const auto text = format_.tokenizer().decode(*ids);
  if (!text) return refuse(call, refusal(400, "tokens", "invalid_value", text.error().what));
  answer(call, Obj().str("prompt", *text).done());
}

}  // namespace fathom::server
