// A plain reading of JSON Schema, written from the standard and apart from schema.cc, to judge what comes out.
#include <regex.h>

#include <cmath>
#include <cstdlib>

#include "grammar/test_support.h"

namespace fathom::grammar {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;

bool same(const JsonValue& a, const JsonValue& b) {
  if (a.kind != b.kind) return false;
  if (a.is(Kind::kNumber)) return std::strtod(a.text.c_str(), nullptr) == std::strtod(b.text.c_str(), nullptr);
  if (a.text != b.text || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    const JsonValue* other = a.is_object() ? b.find(a.keys[i]) : &b.items[i];
    if (other == nullptr || !same(a.items[i], *other)) return false;
  }
  return true;
}

bool is_type(const JsonValue& v, const std::string& type) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (!v.is(Kind::kNumber)) return false;
  const double x = std::strtod(v.text.c_str(), nullptr);
  return type == "number" || x == std::floor(x);
}

std::size_t characters(const std::string& s) {
  std::size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xC0U) != 0x80 ? 1 : 0;
  return n;
}

bool matches(const std::string& s, const std::string& pattern) {
  regex_t compiled = {};
  EXPECT_EQ(regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NOSUB), 0) << pattern;
  const bool found = regexec(&compiled, s.c_str(), 0, nullptr, 0) == 0;
  regfree(&compiled);
  return found;
}

double number(const JsonValue* v) { return v == nullptr ? 0 : std::strtod(v->text.c_str(), nullptr); }

std::string judge_type(const JsonValue& schema, const JsonValue& v) {
  const JsonValue* type = schema.get("type");
  if (type == nullptr) return "";
  if (!type->is_array()) return is_type(v, type->text) ? "" : "not of type " + type->text;
  for (const JsonValue& t : type->items) {
    if (is_type(v, t.text)) return "";
  }
  return "of no type in the list";
}

std::string judge_scalar(const JsonValue& schema, const JsonValue& v) {
  const auto has = [&](const char* key) { return schema.get(key) != nullptr; };
  if (v.is(Kind::kNumber)) {
    const double x = std::strtod(v.text.c_str(), nullptr);
    if (has("minimum") && x < number(schema.get("minimum"))) return "below minimum";
    if (has("maximum") && x > number(schema.get("maximum"))) return "above maximum";
    if (has("exclusiveMinimum") && x <= number(schema.get("exclusiveMinimum"))) return "not above exclusiveMinimum";
    if (has("exclusiveMaximum") && x >= number(schema.get("exclusiveMaximum"))) return "not below exclusiveMaximum";
  }
  if (v.is_string()) {
    const auto n = static_cast<double>(characters(v.text));
    if (has("minLength") && n < number(schema.get("minLength"))) return "shorter than minLength";
    if (has("maxLength") && n > number(schema.get("maxLength"))) return "longer than maxLength";
    if (has("pattern") && !matches(v.text, schema.get("pattern")->text)) return "does not match the pattern";
  }
  return "";
}

std::string judge_array(const JsonValue& root, const JsonValue& schema, const JsonValue& v) {
  const auto n = static_cast<double>(v.items.size());
  if (schema.get("minItems") != nullptr && n < number(schema.get("minItems"))) return "fewer than minItems";
  if (schema.get("maxItems") != nullptr && n > number(schema.get("maxItems"))) return "more than maxItems";
  const JsonValue* prefix = schema.get("prefixItems");
  for (std::size_t i = 0; i < v.items.size(); ++i) {
    const JsonValue* item = prefix != nullptr && i < prefix->items.size() ? &prefix->items[i] : schema.get("items");
    const std::string why = item == nullptr ? "" : judge(root, *item, v.items[i]);
    if (!why.empty()) return "[" + std::to_string(i) + "]: " + why;
  }
  return "";
}

std::string judge_object(const JsonValue& root, const JsonValue& schema, const JsonValue& v) {
  const auto n = static_cast<double>(v.items.size());
  if (schema.get("minProperties") != nullptr && n < number(schema.get("minProperties"))) return "too few members";
  if (schema.get("maxProperties") != nullptr && n > number(schema.get("maxProperties"))) return "too many members";
  if (const JsonValue* required = schema.get("required")) {
    for (const JsonValue& name : required->items) {
      if (v.find(name.text) == nullptr) return "lacks " + name.text;
    }
  }
  const JsonValue* properties = schema.get("properties");
  for (std::size_t i = 0; i < v.items.size(); ++i) {
    const JsonValue* own = properties != nullptr ? properties->find(v.keys[i]) : nullptr;
    if (own == nullptr) own = schema.get("additionalProperties");
    const std::string why = own == nullptr ? "" : judge(root, *own, v.items[i]);
    if (!why.empty()) return v.keys[i] + ": " + why;
  }
  return "";
}

}  // namespace

std::string judge(const JsonValue& root, const JsonValue& schema, const JsonValue& v) {
  if (schema.is_bool()) return schema.is_true() ? "" : "nothing is allowed here";
  if (const JsonValue* ref = schema.get("$ref"); ref != nullptr) {
    const std::string name = ref->text.substr(std::string("#/$defs/").size());
    return judge(root, *root.get("$defs")->get(name), v);
  }
  if (const JsonValue* value = schema.find("const"); value != nullptr && !same(*value, v)) return "not the constant";
  if (const JsonValue* values = schema.get("enum")) {
    bool found = false;
    for (const JsonValue& one : values->items) found = found || same(one, v);
    if (!found) return "not in the enum";
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const JsonValue* options = schema.get(key);
    bool found = options == nullptr;
    for (std::size_t i = 0; !found && i < options->items.size(); ++i) found = judge(root, options->items[i], v).empty();
    if (!found) return std::string("none of ") + key;
  }
  if (const JsonValue* parts = schema.get("allOf")) {
    for (const JsonValue& part : parts->items) {
      if (std::string why = judge(root, part, v); !why.empty()) return "allOf: " + why;
    }
  }
  for (const std::string& why : {judge_type(schema, v), judge_scalar(schema, v)}) {
    if (!why.empty()) return why;
  }
  if (v.is_array()) return judge_array(root, schema, v);
  return v.is_object() ? judge_object(root, schema, v) : "";
}

}  // namespace fathom::grammar
