#include "text/prompt.h"

#include <utility>

#include "text/utf8.h"

namespace fathom::text {

void Prompt::mix(std::string_view bytes) {
  for (const char c : bytes) hash_ = (hash_ ^ static_cast<std::uint8_t>(c)) * 0x100000001B3U;
}

// Begins with a byte that text cannot have.
void Prompt::mix_id(std::int32_t id) {
  mix("\xFF");
  for (int shift = 0; shift < 32; shift += 8) {
    hash_ = (hash_ ^ (static_cast<std::uint32_t>(id) >> shift & 0xFFU)) * 0x100000001B3U;
  }
}

void Prompt::control(std::int32_t id) {
  mix_id(id);
  Item& item = items_.emplace_back();
  item.kind = Kind::kControl;
  item.message = message_;
  item.control = id;
}

void Prompt::text(std::string_view s) {
  if (s.empty()) return;
  if (items_.empty() || items_.back().kind != Kind::kText) items_.emplace_back().message = message_;
  items_.back().text += s;
  mix(s);
}

void Prompt::ids(std::vector<std::int32_t> ids) {
  for (const std::int32_t id : ids) mix_id(id);
  Item& item = items_.emplace_back();
  item.kind = Kind::kIds;
  item.message = message_;
  item.ids = std::move(ids);
}

void Prompt::fixed_text(std::string_view s, const ControlTokens& c) {
  const std::pair<std::string_view, std::int32_t> marks[] = {
      {"<think>", c.think_open}, {"</think>", c.think_close}, {"\uFF5CDSML\uFF5C", c.dsml}};
  while (!s.empty()) {
    std::size_t at = s.size();
    std::size_t length = 0;
    std::int32_t id = -1;
    for (const auto& [spelling, control] : marks) {
      if (const std::size_t found = s.find(spelling); found < at) at = found, length = spelling.size(), id = control;
    }
    text(s.substr(0, at));
    if (id >= 0) control(id);
    s.remove_prefix(at + length);
  }
}

bool Prompt::ends_with(std::int32_t id) const {
  return !items_.empty() && items_.back().kind == Kind::kControl && items_.back().control == id;
}

EncodedPrompt encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer) {
  EncodedPrompt out;
  for (const Prompt::Item& item : prompt.items()) {
    const std::size_t begin = out.ids.size();
    switch (item.kind) {
      case Prompt::Kind::kControl: out.ids.push_back(item.control); break;
      case Prompt::Kind::kText: tokenizer.encode_to(item.text, Mode::kPlain, out.ids); break;
      case Prompt::Kind::kIds: out.ids.insert(out.ids.end(), item.ids.begin(), item.ids.end()); break;
    }
    out.spans.push_back({item.kind, item.message, begin, out.ids.size()});
  }
  return out;
}

std::string prompt_string(const Prompt& prompt, const Tokenizer& tokenizer) {
  std::string out;
  Utf8Stream stream;
  for (const Prompt::Item& item : prompt.items()) {
    out += item.text;
    if (item.kind == Prompt::Kind::kControl) out += tokenizer.token_bytes(item.control).value_or("");
    for (const std::int32_t id : item.ids) stream.push(tokenizer.token_bytes(id).value_or(""), out);
    stream.finish(out);
  }
  return out;
}

}  // namespace fathom::text
