#include "grammar/rules.h"

#include <charconv>
#include <utility>

namespace fathom::grammar {

namespace {

void add(std::string& key, std::string_view part) {
  key += std::to_string(part.size());
  key += ':';
  key += part;
}

// The reverse of add(); `key` is what is left. False: it is not so written.
bool take(std::string_view& key, std::string& part) {
  std::size_t n = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), n);
  if (error != std::errc() || end == key.data() + key.size() || *end != ':') return false;
  key.remove_prefix(static_cast<std::size_t>(end - key.data()) + 1);
  if (n > key.size()) return false;
  part = key.substr(0, n);
  key.remove_prefix(n);
  return true;
}

Result<Content> bounded(Content::Kind kind, std::string_view source, std::size_t most) {
  if (source.empty()) return fail(Code::kInvalid, "must not be empty");
  if (source.size() > most) return fail(Code::kInvalid, "{} bytes, at most {} are taken", source.size(), most);
  if (source.find('\0') != std::string_view::npos) return fail(Code::kInvalid, "must not hold a NUL");
  return Content{kind, std::string(source)};
}

}  // namespace

std::string key_of(const Rules& rules) {
  std::string key;
  key += static_cast<char>('0' + static_cast<int>(rules.content.kind));
  key += static_cast<char>('0' + static_cast<int>(rules.calls));
  key += rules.one_call ? '1' : '0';
  add(key, rules.content.source);
  if (rules.calls == Rules::Calls::kNone) return key;
  for (const Tool& tool : rules.tools) {
    add(key, tool.name);
    key += tool.strict ? '1' : '0';
    std::string schema;
    // What prepare_schema gave has been written once already.
    if (tool.strict && text::append_json_text(tool.parameters, schema)) add(key, schema);
  }
  return key;
}

Result<Rules> rules_of(std::string_view key) {
  const auto none = [] { return fail(Code::kInvalid, "no rules have this name"); };
  if (key.size() < 3) return none();
  Rules rules;
  rules.content.kind = static_cast<Content::Kind>(key[0] - '0');
  rules.calls = static_cast<Rules::Calls>(key[1] - '0');
  rules.one_call = key[2] == '1';
  key.remove_prefix(3);
  if (!take(key, rules.content.source)) return none();
  while (!key.empty()) {
    Tool tool;
    if (!take(key, tool.name) || key.empty()) return none();
    tool.strict = key[0] == '1';
    key.remove_prefix(1);
    if (tool.strict) {
      std::string schema;
      if (!take(key, schema)) return none();
      FATHOM_ASSIGN(tool.parameters, text::parse_json_value(schema, "schema"));
    }
    rules.tools.push_back(std::move(tool));
  }
  return rules;
}

Result<Content> regex_content(std::string_view regex) { return bounded(Content::Kind::kRegex, regex, kMaxRegexBytes); }

Result<Content> grammar_content(std::string_view grammar) {
  return bounded(Content::Kind::kGrammar, grammar, kMaxGrammarBytes);
}

Result<Content> choice_content(const text::JsonValue& list) {
  if (!list.is_array() || list.items.empty()) return fail(Code::kInvalid, "expected a list of strings");
  if (list.items.size() > kMaxChoices) return fail(Code::kInvalid, "more than {} choices", kMaxChoices);
  for (const text::JsonValue& choice : list.items) {
    if (!choice.is_string() || choice.text.empty())
      return fail(Code::kInvalid, "expected a list of strings, none empty");
  }
  Content content{.kind = Content::Kind::kChoice};
  FATHOM_TRY(text::append_json_text(list, content.source));
  if (content.source.size() > kMaxGrammarBytes)
    return fail(Code::kInvalid, "{} bytes of choices, at most {} are taken", content.source.size(), kMaxGrammarBytes);
  return content;
}

}  // namespace fathom::grammar
