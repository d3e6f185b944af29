#include "grammar/lark.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/schema.h"
#include "text/json_reader.h"

namespace fathom::grammar {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

std::string quoted(std::string_view s) {
  std::string out = "\"";
  text::append_json_escaped(s, out);
  return out += '"';
}

JsonValue object_of(std::string_view key, JsonValue value) {
  JsonValue v;
  v.kind = Kind::kObject;
  v.keys.emplace_back(key);
  v.items.push_back(std::move(value));
  return v;
}

class Writer {
 public:
  Writer(const Rules& rules, std::int32_t marker) : rules_(rules), marker_(fmt::format("<[{}]>", marker)) {}

  Result<LarkSource> write() {
    std::string start = "start: ";
    switch (rules_.calls) {
      case Rules::Calls::kNone: start += content(); break;
      case Rules::Calls::kBehindOpener: start += "calls"; break;
      case Rules::Calls::kBehindMarker: start += "\"tool_calls>\\n\" calls"; break;
      case Rules::Calls::kOrContent:
        start += fmt::format("{} | \"\\n\\n<\" {} \"tool_calls>\\n\" calls", content(), marker_);
        break;
    }
    line(start);
    if (rules_.calls != Rules::Calls::kNone) FATHOM_TRY(calls());
    return std::move(out_);
  }

 private:
  void line(std::string_view text) {
    out_.text += text;
    out_.text += '\n';
  }

  std::string part(Content::Kind kind, std::string source) {
    std::string key = fmt::format("{}{}", static_cast<int>(kind), source);
    const auto [at, is_new] = parts_.try_emplace(std::move(key), out_.parts.size());
    if (is_new) out_.parts.push_back({kind, std::move(source)});
    return fmt::format("@p{}", at->second);
  }
  std::string part(const Content& c) { return part(c.kind, c.source); }
  std::string any_json() { return part(Content::Kind::kJsonSchema, "{}"); }

  std::string content() {
    if (rules_.content.kind != Content::Kind::kChoice) return part(rules_.content);
    const auto list = text::parse_json_value(rules_.content.source, "choices");
    std::string all = "(";
    for (const JsonValue& choice : list->items) all += (all.size() > 1 ? " | " : "") + quoted(choice.text);
    return all + ")";
  }

  // prompt-encoding.md 2.8, token for token what a prompt would hold.
  Result<> calls() {
    if (rules_.tools.empty()) return fail(Code::kInvalid, "there are no tools to call");
    if (rules_.tools.size() > kMaxTools) return fail(Code::kInvalid, "more than {} tools", kMaxTools);
    line(fmt::format("calls: {} \"</\" {} \"tool_calls>\"", rules_.one_call ? "call" : "call+", marker_));
    line(fmt::format("call: \"<\" {} \"invoke name=\\\"\" invoke \"</\" {} \"invoke>\\n\"", marker_, marker_));
    std::string invoke = "invoke: ";
    bool free = false;
    for (std::size_t i = 0; i < rules_.tools.size(); ++i) {
      const Tool& tool = rules_.tools[i];
      free = free || !tool.strict;
      invoke +=
          fmt::format("{}{} {}", i == 0 ? "" : " | ", quoted(tool.name + "\">\n"),
                      tool.strict ? fmt::format("args{}", i) : "free+ | " + quoted(tool.name + "\">\n") + " \"\\n\"");
    }
    line(invoke);
    for (std::size_t i = 0; i < rules_.tools.size(); ++i) {
      if (!rules_.tools[i].strict) continue;
      if (auto done = arguments(i); !done)
        return fail(Code::kInvalid, "the parameters of \"{}\": {}", rules_.tools[i].name, done.error().what);
    }
    if (free) line(fmt::format("free: {} ({} | {})", free_name(), raw_text(), json(any_json())));
    if (uses_text_) line("text: /[\\s\\S]*/");
    return {};
  }

  std::string closing() { return fmt::format("\"</\" {} \"parameter>\\n\"", marker_); }
  std::string raw(std::string_view value) { return fmt::format("\"true\\\">\" {} {}", value, closing()); }
  std::string json(std::string_view value) { return fmt::format("\"false\\\">\" {} {}", value, closing()); }
  std::string raw_text() {
    uses_text_ = true;
    return raw("text");
  }
  std::string free_name() const {
    return fmt::format("\"<\" {} \"parameter name=\\\"\" /[^\"<>\\n]{{1,128}}/ \"\\\" string=\\\"\"", marker_);
  }

  // Parameters in the order of the schema, those that are not required left out at will: at_k is what may follow where
  // k is next, some_k the same with at least one to come.
  Result<> arguments(std::size_t i) {
    const JsonValue& root = rules_.tools[i].parameters;
    const JsonValue* schema = resolve_ref(root, root);
    if (schema == nullptr || !schema->is_object()) return fail(Code::kInvalid, "expected a schema of an object");
    const JsonValue* type = schema->get("type");
    if (type != nullptr && type->text != "object") return fail(Code::kInvalid, "expected a schema of an object");
    static const JsonValue none = {};
    const JsonValue* found = schema->get("properties");
    const JsonValue& properties = found != nullptr ? *found : none;
    const JsonValue* more = schema->get("additionalProperties");
    const std::size_t n = properties.items.size();
    // Others may come only where none is declared: their names could be those of declared ones. A schema that says
    // nothing at all, as tools without arguments have, takes none.
    const bool open = n == 0 && more != nullptr && more->kind != Kind::kFalse;
    const std::string other = fmt::format("other{}", i);
    if (open) {
      FATHOM_ASSIGN(const std::string values, values_of(root, *more));
      line(fmt::format("{}: {} {}", other, free_name(), values));
    }
    std::vector<bool> needed(n, false);
    if (const JsonValue* required = schema->get("required")) {
      for (std::size_t k = 0; k < n; ++k) {
        needed[k] = std::any_of(required->items.begin(), required->items.end(),
                                [&](const JsonValue& name) { return name.text == properties.keys[k]; });
      }
    }
    const auto name = [&](const char* what, std::size_t k) { return fmt::format("{}{}_{}", what, i, k); };
    line(fmt::format("{}: \"\"", name("at", n)));
    if (open) line(fmt::format("{}: {}+", name("some", n), other));
    bool some = open;  // there is a some_{k+1}
    bool all_optional = true;
    for (std::size_t k = n; k-- > 0;) {
      FATHOM_ASSIGN(const std::string one, parameter(root, properties.keys[k], properties.items[k]));
      line(fmt::format("{}: {}", name("p", k), one));
      const std::string taken = fmt::format("{} {}", name("p", k), name("at", k + 1));
      line(fmt::format("{}: {}{}", name("at", k), taken, needed[k] ? "" : " | " + name("at", k + 1)));
      line(fmt::format("{}: {}{}", name("some", k), taken, needed[k] || !some ? "" : " | " + name("some", k + 1)));
      some = true;
      all_optional = all_optional && !needed[k];
    }
    // Without parameters there is an empty line.
    line(fmt::format("args{}: {}{}", i, some ? name("some", 0) : "",
                     !all_optional ? ""
                     : some        ? " | \"\\n\""
                                   : "\"\\n\""));
    return {};
  }

  Result<std::string> parameter(const JsonValue& root, std::string_view key, const JsonValue& schema) {
    if (key.empty() || key.find_first_of("\"<>\n") != std::string_view::npos || key.size() > 256) {
      return fail(Code::kInvalid, "the name {} cannot be written in a call", quoted(key.substr(0, 100)));
    }
    FATHOM_ASSIGN(const std::string values, values_of(root, schema));
    return fmt::format("\"<\" {} {} {}", marker_, quoted(fmt::format("parameter name=\"{}\" string=\"", key)), values);
  }

  Result<std::string> values_of(const JsonValue& root, const JsonValue& schema) {
    std::vector<std::string> values;
    FATHOM_TRY(alternatives(root, schema, 0, values));
    if (values.empty()) return fail(Code::kInvalid, "a schema that no value satisfies");
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    std::string all = "(";
    for (const std::string& v : values) all += (all.size() > 1 ? " | " : "") + v;
    return all + ")";
  }

  // How a value of the schema can be written: strings as they are, all else as JSON.
  Result<> alternatives(const JsonValue& root, const JsonValue& schema, int depth, std::vector<std::string>& out) {
    if (schema.kind == Kind::kFalse) return {};
    if (depth > kMaxSchemaDepth || out.size() > kMaxEnumValues) return fail(Code::kInvalid, "too many alternatives");
    if (const JsonValue* ref = schema.get("$ref")) {
      const JsonValue* meant = resolve_ref(root, schema);
      if (meant == nullptr) return fail(Code::kInvalid, "\"{}\" leads nowhere", ref->text.substr(0, 100));
      return alternatives(root, *meant, depth + 1, out);
    }
    if (const JsonValue* value = schema.find("const")) return literal(*value, out);
    if (const JsonValue* values = schema.get("enum")) {
      for (const JsonValue& value : values->items) FATHOM_TRY(literal(value, out));
      return {};
    }
    if (const JsonValue* options = schema.get("anyOf")) {
      for (const JsonValue& option : options->items) FATHOM_TRY(alternatives(root, option, depth + 1, out));
      return {};
    }
    const JsonValue* type = schema.get("type");
    if (type == nullptr) {
      out.push_back(raw_text());
      out.push_back(json(any_json()));
      return {};
    }
    const std::vector<JsonValue> types = type->is_array() ? type->items : std::vector<JsonValue>{*type};
    for (const JsonValue& t : types) {
      if (t.text == "string") {
        out.push_back(string(schema));
        continue;
      }
      JsonValue narrowed = schema;
      for (std::size_t k = 0; k < narrowed.keys.size(); ++k) {
        if (narrowed.keys[k] == "type") narrowed.items[k] = t;
      }
      FATHOM_ASSIGN(const std::string value, value_of(root, std::move(narrowed)));
      out.push_back(json(value));
    }
    return {};
  }

  Result<> literal(const JsonValue& value, std::vector<std::string>& out) {
    if (value.is_string()) {
      out.push_back(raw(quoted(value.text)));
      return {};
    }
    FATHOM_ASSIGN(const std::string written, value_of(JsonValue{}, object_of("const", value)));
    out.push_back(json(written));
    return {};
  }

  // Lengths count characters; a pattern spans the whole value. Formats say what a string means: of those only the
  // ones that a pattern of a line describes are enforced.
  std::string string(const JsonValue& schema) {
    static const std::map<std::string_view, std::string_view> kPatterns = {
        {"date", R"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))"},
        {"time", R"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"},
        {"date-time",
         R"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"},
        {"uuid", R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"},
        {"ipv4", R"(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9]))"}};
    if (const JsonValue* pattern = schema.get("pattern")) return raw(part(Content::Kind::kRegex, pattern->text));
    if (const JsonValue* format = schema.get("format")) {
      const auto known = kPatterns.find(format->text);
      if (known != kPatterns.end()) return raw(part(Content::Kind::kRegex, std::string(known->second)));
    }
    const JsonValue* low = schema.get("minLength");
    const JsonValue* high = schema.get("maxLength");
    if (low == nullptr && high == nullptr) return raw_text();
    return raw(fmt::format("/[\\s\\S]{{{},{}}}/", low != nullptr ? low->text : "0", high != nullptr ? high->text : ""));
  }

  // The schema by itself, with the definitions that it may refer to.
  Result<std::string> value_of(const JsonValue& root, JsonValue schema) {
    for (const char* key : {"$defs", "definitions"}) {
      const JsonValue* defs = root.get(key);
      if (defs == nullptr || schema.get(key) != nullptr) continue;
      schema.keys.emplace_back(key);
      schema.items.push_back(*defs);
    }
    std::string text;
    FATHOM_TRY(text::append_json_text(schema, text));
    return part(Content::Kind::kJsonSchema, std::move(text));
  }

  const Rules& rules_;
  const std::string marker_;
  LarkSource out_;
  std::map<std::string, std::size_t> parts_;
  bool uses_text_ = false;
};

}  // namespace

Result<LarkSource> write_lark(const Rules& rules, std::int32_t marker_id) { return Writer(rules, marker_id).write(); }

}  // namespace fathom::grammar
