#include "grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace fathom::grammar {
namespace {

using text::JsonValue;
using Kind = JsonValue::Kind;
using Names = std::span<const std::string_view>;

// Keywords that restrict, by what they speak of. All others are annotations.
constexpr std::string_view kOfObjects[] = {
    "properties",        "required",         "additionalProperties", "patternProperties",
    "propertyNames",     "minProperties",    "maxProperties",        "dependencies",
    "dependentRequired", "dependentSchemas", "unevaluatedProperties"};
constexpr std::string_view kOfArrays[] = {
    "items",    "prefixItems", "minItems",    "maxItems",         "uniqueItems",
    "contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"};
constexpr std::string_view kOfStrings[] = {"pattern", "format", "minLength", "maxLength"};
constexpr std::string_view kOfNumbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kOfAny[] = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"};
constexpr std::string_view kChoosing[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Of these, what is honoured.
constexpr std::string_view kHonoured[] = {"properties",       "required",        "additionalProperties",
                                          "minProperties",    "maxProperties",   "items",
                                          "prefixItems",      "minItems",        "maxItems",
                                          "pattern",          "format",          "minLength",
                                          "maxLength",        "minimum",         "maximum",
                                          "exclusiveMinimum", "exclusiveMaximum"};
// Formats that the library knows. Others say what a string means, not what it looks like.
constexpr std::string_view kFormats[] = {"email", "date",     "time", "date-time", "duration",    "ipv4",
                                         "ipv6",  "hostname", "uuid", "uri",       "json-pointer"};
constexpr std::string_view kTypes[] = {"null", "boolean", "string", "integer", "number", "array", "object"};

bool among(std::string_view name, Names names) { return std::find(names.begin(), names.end(), name) != names.end(); }
bool restricts(std::string_view key) {
  return key == "type" || among(key, kOfObjects) || among(key, kOfArrays) || among(key, kOfStrings) ||
         among(key, kOfNumbers) || among(key, kOfAny) || among(key, kChoosing);
}

JsonValue make(Kind kind) {
  JsonValue v;
  v.kind = kind;
  return v;
}
JsonValue make_string(std::string_view s) {
  JsonValue v = make(Kind::kString);
  v.text = s;
  return v;
}
void set(JsonValue& object, std::string_view key, JsonValue value) {
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    if (object.keys[i] == key) {
      object.items[i] = std::move(value);
      return;
    }
  }
  object.keys.emplace_back(key);
  object.items.push_back(std::move(value));
}
bool equal(const JsonValue& a, const JsonValue& b) {
  return a.kind == b.kind && a.text == b.text && a.keys == b.keys && a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), equal);
}
std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// One segment of a JSON Pointer in a URI fragment: percent-decoded, then ~1 and ~0.
std::string unescape(std::string_view part) {
  std::string out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    unsigned value = 0;
    if (part[i] == '%' && i + 2 < part.size() &&
        std::from_chars(part.data() + i + 1, part.data() + i + 3, value, 16).ptr == part.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      out += part[i + 1] == '0' ? '~' : '/';
      ++i;
    } else {
      out += part[i];
    }
  }
  return out;
}

const JsonValue* follow(const JsonValue& root, std::string_view uri) {
  if (uri == "#") return &root;
  if (uri.substr(0, 2) != "#/") return nullptr;
  const JsonValue* at = &root;
  uri.remove_prefix(1);
  while (at != nullptr && !uri.empty()) {
    uri.remove_prefix(1);
    const std::size_t end = std::min(uri.find('/'), uri.size());
    const std::string part = unescape(uri.substr(0, end));
    uri.remove_prefix(end);
    if (at->is_array()) {
      std::size_t index = 0;
      const auto r = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool good = r.ec == std::errc() && r.ptr == part.data() + part.size() && index < at->items.size();
      at = good ? &at->items[index] : nullptr;
    } else {
      at = at->find(part);
    }
  }
  return at;
}

class Preparer {
 public:
  Preparer(const JsonValue& root, bool strict) : root_(root), strict_(strict) {}

  tl::expected<Schema, SchemaFault> run() {
    JsonValue out;
    if (!schema(root_, "", 0, out)) return tl::unexpected(*fault_);
    return Schema{std::move(out), std::move(ignored_)};
  }

 private:
  bool wrong(const std::string& path, std::string what) { return stop(false, path, std::move(what)); }
  bool stop(bool unsupported, const std::string& path, std::string what) {
    if (!fault_) fault_ = SchemaFault{unsupported, path, std::move(what)};
    return false;
  }
  // A keyword that will not be honoured. False where that ends it.
  bool pass_over(const std::string& path, std::string_view key, std::string_view why = "is not supported") {
    if (strict_) return stop(true, join(path, key), fmt::format("the keyword {} {}", key, why));
    if (ignored_.size() < 100) ignored_.push_back(join(path, key));
    return true;
  }
  bool pass_over_all(const JsonValue& in, const std::string& path, Names honoured) {
    for (const std::string& key : in.keys) {
      if (restricts(key) && !among(key, honoured) && !pass_over(path, key, "is not supported here")) return false;
    }
    return true;
  }

  bool schema(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    if (depth > kMaxSchemaDepth)
      return wrong(path, fmt::format("schemas are nested more than {} deep", kMaxSchemaDepth));
    if (++schemas_ > kMaxSchemas) return wrong(path, fmt::format("more than {} subschemas", kMaxSchemas));
    if (in.is_bool()) {
      out = make(in.is_true() ? Kind::kObject : Kind::kFalse);
      return true;
    }
    if (!in.is_object()) return wrong(path, "expected a schema: an object, true or false");
    out = make(Kind::kObject);
    if (!definitions(in, path, depth, out)) return false;
    if (in.get("$ref") != nullptr) return reference(in, path, out);
    if (in.find("const") != nullptr) return constant(in, path, out);
    if (in.get("enum") != nullptr) return enumeration(in, path, out);
    for (const char* key : {"anyOf", "oneOf"}) {
      if (in.get(key) != nullptr) return alternatives(in, key, path, depth, out);
    }
    if (in.get("allOf") != nullptr) return merged(in, path, depth, out);
    return typed(in, path, depth, out);
  }

  bool definitions(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    for (const char* key : {"$defs", "definitions"}) {
      const JsonValue* defs = in.get(key);
      if (defs == nullptr) continue;
      if (!defs->is_object()) return wrong(join(path, key), "expected an object of schemas");
      if (!schema_map(*defs, join(path, key), depth, out, key)) return false;
    }
    return true;
  }

  bool schema_map(const JsonValue& in, const std::string& path, int depth, JsonValue& out, const char* key) {
    JsonValue map = make(Kind::kObject);
    for (std::size_t i = 0; i < in.items.size(); ++i) {
      map.keys.push_back(in.keys[i]);
      if (!schema(in.items[i], join(path, in.keys[i]), depth + 1, map.items.emplace_back())) return false;
    }
    set(out, key, std::move(map));
    return true;
  }

  bool reference(const JsonValue& in, const std::string& path, JsonValue& out) {
    const JsonValue& ref = *in.get("$ref");
    if (!ref.is_string()) return wrong(join(path, "$ref"), "expected a string");
    if (follow(root_, ref.text) == nullptr) {
      return wrong(join(path, "$ref"), fmt::format("\"{}\" names nothing in this schema; references look as in "
                                                   "\"#/$defs/name\"",
                                                   ref.text.substr(0, 100)));
    }
    if (resolve_ref(root_, in) == nullptr) return wrong(join(path, "$ref"), "the reference leads in a circle");
    static constexpr std::string_view kOnly[] = {"$ref"};
    set(out, "$ref", ref);
    return pass_over_all(in, path, kOnly);
  }

  bool constant(const JsonValue& in, const std::string& path, JsonValue& out) {
    static constexpr std::string_view kOnly[] = {"const", "type", "enum"};
    set(out, "const", *in.find("const"));
    return pass_over_all(in, path, kOnly);
  }

  bool enumeration(const JsonValue& in, const std::string& path, JsonValue& out) {
    const JsonValue& values = *in.get("enum");
    if (!values.is_array() || values.items.empty()) return wrong(join(path, "enum"), "expected a list of values");
    if (values.items.size() > kMaxEnumValues) {
      return wrong(join(path, "enum"), fmt::format("more than {} values", kMaxEnumValues));
    }
    static constexpr std::string_view kOnly[] = {"enum", "type"};
    set(out, "enum", values);
    return pass_over_all(in, path, kOnly);
  }

  bool alternatives(const JsonValue& in, const char* key, const std::string& path, int depth, JsonValue& out) {
    const JsonValue& list = *in.get(key);
    if (!list.is_array() || list.items.empty()) return wrong(join(path, key), "expected a list of schemas");
    JsonValue options = make(Kind::kArray);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", join(path, key), i);
      JsonValue option;
      if (!schema(list.items[i], at, depth + 1, option)) return false;
      if (option.kind != Kind::kFalse) options.items.push_back(std::move(option));
    }
    if (options.items.empty()) return wrong(join(path, key), "no value can satisfy it");
    set(out, "anyOf", std::move(options));
    const std::string_view honoured[] = {key};
    return pass_over_all(in, path, honoured);
  }

  // allOf and what stands beside it, as one schema: possible where each keyword stands once or says the same, but for
  // properties and required, which add up.
  bool merged(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    const JsonValue& list = *in.get("allOf");
    const std::string at = join(path, "allOf");
    if (!list.is_array() || list.items.empty()) return wrong(at, "expected a list of schemas");
    JsonValue all = make(Kind::kObject);
    for (const char* key : {"$defs", "definitions"}) {
      if (const JsonValue* defs = in.get(key)) set(all, key, *defs);
    }
    Merge merge{.all = all};
    if (!add_to(merge, in, path, depth)) return false;
    const bool possible = merge.possible && (!merge.closed || merge.with_properties < 2);
    if (possible) return schema(all, path, depth + 1, out);
    if (!pass_over(path, "allOf", "has parts that speak of the same thing and cannot be merged")) return false;
    JsonValue rest = in;
    for (std::size_t i = 0; i < rest.keys.size(); ++i) {
      if (rest.keys[i] == "allOf") rest.keys[i] = "$comment";
    }
    return schema(rest, path, depth + 1, out);
  }

  struct Merge {
    JsonValue& all;
    bool possible = true;
    bool closed = false;  // a part allows no other properties than its own
    int with_properties = 0;
  };
  // Adds what a part says and what the parts of its allOf say. False where it is no schema.
  bool add_to(Merge& m, const JsonValue& part, const std::string& path, int depth) {
    if (depth > kMaxSchemaDepth) return wrong(path, "allOf leads in a circle");
    if (++schemas_ > kMaxSchemas) return wrong(path, fmt::format("more than {} subschemas", kMaxSchemas));
    for (std::size_t i = 0; i < part.keys.size() && m.possible; ++i) {
      if (restricts(part.keys[i]) && part.keys[i] != "allOf") add_keyword(m, part.keys[i], part.items[i]);
    }
    const JsonValue* parts = part.get("allOf");
    if (parts == nullptr) return true;
    const std::string at = join(path, "allOf");
    if (!parts->is_array()) return wrong(at, "expected a list of schemas");
    for (std::size_t i = 0; i < parts->items.size() && m.possible; ++i) {
      const JsonValue& one = parts->items[i];
      const std::string here = fmt::format("{}[{}]", at, i);
      const JsonValue* meant = resolve_ref(root_, one);
      if (meant == nullptr) return wrong(here, "the reference leads nowhere");
      if (meant != &one && std::count_if(one.keys.begin(), one.keys.end(), restricts) > 1) m.possible = false;
      if (meant->is_true()) continue;
      if (!meant->is_object()) return wrong(here, "expected a schema that can be satisfied");
      if (!add_to(m, *meant, here, depth + 1)) return false;
    }
    return true;
  }

  static void add_keyword(Merge& m, const std::string& key, const JsonValue& value) {
    if (key == "properties") ++m.with_properties;
    if (key == "additionalProperties" && !value.is_true()) m.closed = true;
    const JsonValue* has = m.all.find(key);
    if (has == nullptr || equal(*has, value)) {
      set(m.all, key, value);
    } else if (key == "properties" && has->is_object() && value.is_object()) {
      JsonValue both = *has;
      for (std::size_t k = 0; k < value.keys.size(); ++k) {
        const JsonValue* old = both.find(value.keys[k]);
        if (old != nullptr && !equal(*old, value.items[k])) m.possible = false;
        else set(both, value.keys[k], value.items[k]);
      }
      set(m.all, key, std::move(both));
    } else if (key == "required" && has->is_array() && value.is_array()) {
      JsonValue both = *has;
      both.items.insert(both.items.end(), value.items.begin(), value.items.end());
      set(m.all, key, std::move(both));
    } else {
      m.possible = false;
    }
  }

  // Which types the schema allows.
  bool types(const JsonValue& in, const std::string& path, std::vector<std::string>& out) {
    if (const JsonValue* type = in.get("type")) {
      const std::span<const JsonValue> list =
          type->is_array() ? std::span<const JsonValue>(type->items) : std::span<const JsonValue>(type, 1);
      for (const JsonValue& t : list) {
        if (!t.is_string() || !among(t.text, kTypes))
          return wrong(join(path, "type"), "expected one of null, boolean, string, integer, number, array and object");
        if (std::find(out.begin(), out.end(), t.text) == out.end()) out.push_back(t.text);
      }
      return !out.empty() || wrong(join(path, "type"), "expected at least one type");
    }
    const auto speaks = [&](Names of) {
      return std::any_of(in.keys.begin(), in.keys.end(), [&](const std::string& k) { return among(k, of); });
    };
    if (speaks(kOfObjects)) out.emplace_back("object");
    if (speaks(kOfArrays)) out.emplace_back("array");
    if (speaks(kOfStrings)) out.emplace_back("string");
    if (speaks(kOfNumbers)) out.emplace_back("number");
    return true;
  }

  bool typed(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    std::vector<std::string> allowed;
    if (!types(in, path, allowed) || !pass_over_some(in, path, kOfAny)) return false;
    if (allowed.empty()) return true;
    const auto has = [&](std::string_view t) { return std::find(allowed.begin(), allowed.end(), t) != allowed.end(); };
    JsonValue type = make(Kind::kArray);
    for (const std::string& t : allowed) type.items.push_back(make_string(t));
    set(out, "type", allowed.size() == 1 ? type.items[0] : std::move(type));
    if (has("object") && !object(in, path, depth, out)) return false;
    if (has("array") && !array(in, path, depth, out)) return false;
    if (has("string") && !string(in, path, out)) return false;
    return (!has("integer") && !has("number")) || number(in, path, out);
  }
  bool pass_over_some(const JsonValue& in, const std::string& path, Names names) {
    for (const std::string& key : in.keys) {
      if (among(key, names) && !among(key, kHonoured) && !is_idle(key, *in.find(key)) && !pass_over(path, key))
        return false;
    }
    return true;
  }
  // Says nothing that is not so anyway.
  static bool is_idle(std::string_view key, const JsonValue& value) {
    return (key == "uniqueItems" && value.kind == Kind::kFalse) ||
           ((key == "unevaluatedProperties" || key == "unevaluatedItems" || key == "additionalItems") &&
            value.is_true());
  }

  bool object(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    if (!pass_over_some(in, path, kOfObjects)) return false;
    const JsonValue* properties = in.get("properties");
    if (properties != nullptr && !properties->is_object())
      return wrong(join(path, "properties"), "expected an object of schemas");
    if (properties != nullptr && !schema_map(*properties, join(path, "properties"), depth, out, "properties"))
      return false;
    const JsonValue* others = in.get("additionalProperties");
    JsonValue more = make(properties != nullptr && !properties->items.empty() ? Kind::kFalse : Kind::kTrue);
    if (others != nullptr && !schema(*others, join(path, "additionalProperties"), depth + 1, more)) return false;
    if (!required(in, path, more, out)) return false;
    if (more.is_object() && more.items.empty()) more = make(Kind::kTrue);
    set(out, "additionalProperties", std::move(more));
    const JsonValue* declared = out.get("properties");
    const JsonValue* needed = out.get("required");
    const std::size_t optional =
        (declared != nullptr ? declared->items.size() : 0) - (needed != nullptr ? needed->items.size() : 0);
    if (optional > kMaxOptionalProperties) {
      return wrong(join(path, "properties"), fmt::format("more than {} that are not required", kMaxOptionalProperties));
    }
    return counts(in, path, "minProperties", "maxProperties", out);
  }

  bool required(const JsonValue& in, const std::string& path, const JsonValue& more, JsonValue& out) {
    const JsonValue* names = in.get("required");
    if (names == nullptr) return true;
    const std::string at = join(path, "required");
    if (!names->is_array()) return wrong(at, "expected a list of names");
    JsonValue needed = make(Kind::kArray);
    const JsonValue* found = out.get("properties");
    JsonValue properties = found != nullptr ? *found : make(Kind::kObject);
    std::vector<std::string_view> known(properties.keys.begin(), properties.keys.end());
    std::sort(known.begin(), known.end());
    std::vector<std::string_view> seen;
    for (const JsonValue& name : names->items) {
      if (!name.is_string()) return wrong(at, "expected a list of names");
      seen.push_back(name.text);
    }
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    std::vector<std::pair<std::string, JsonValue>> added;
    for (const std::string_view name : seen) {
      needed.items.push_back(make_string(name));
      if (std::binary_search(known.begin(), known.end(), name)) continue;
      if (more.kind == Kind::kFalse) {
        return wrong(at, fmt::format("\"{}\" is required and not among the properties", name.substr(0, 100)));
      }
      added.emplace_back(name, more.is_true() ? make(Kind::kObject) : more);
    }
    for (auto& [name, value] : added) {
      properties.keys.push_back(std::move(name));
      properties.items.push_back(std::move(value));
    }
    if (!properties.items.empty()) set(out, "properties", std::move(properties));
    if (!needed.items.empty()) set(out, "required", std::move(needed));
    return true;
  }

  bool array(const JsonValue& in, const std::string& path, int depth, JsonValue& out) {
    const JsonValue* items = in.get("items");
    const JsonValue* prefix = in.get("prefixItems");
    const JsonValue* more = items;
    if (items != nullptr && items->is_array()) {  // the form of older drafts
      prefix = items;
      more = in.get("additionalItems");
    }
    for (const std::string_view key : kOfArrays) {
      const JsonValue* value = in.get(key);
      const bool honoured = among(key, kHonoured) || (key == "additionalItems" && prefix == items);
      if (value != nullptr && !honoured && !is_idle(key, *value) && !pass_over(path, key)) return false;
    }
    std::size_t first = 0;
    if (prefix != nullptr) {
      if (!prefix->is_array()) return wrong(join(path, "prefixItems"), "expected a list of schemas");
      JsonValue list = make(Kind::kArray);
      for (std::size_t i = 0; i < prefix->items.size(); ++i) {
        const std::string at = fmt::format("{}[{}]", join(path, "prefixItems"), i);
        if (!schema(prefix->items[i], at, depth + 1, list.items.emplace_back())) return false;
      }
      first = list.items.size();
      if (first > 0) set(out, "prefixItems", std::move(list));
    }
    JsonValue rest = make(Kind::kTrue);
    std::int64_t least = 0;
    if (!count(in, path, "minItems", least)) return false;
    if (more != nullptr && !schema(*more, join(path, "items"), depth + 1, rest)) return false;
    if (more == nullptr && first > 0 && least <= static_cast<std::int64_t>(first)) rest = make(Kind::kFalse);
    if (rest.is_object() && rest.items.empty()) rest = make(Kind::kTrue);
    set(out, "items", std::move(rest));
    return counts(in, path, "minItems", "maxItems", out);
  }

  bool string(const JsonValue& in, const std::string& path, JsonValue& out) {
    const JsonValue* pattern = in.get("pattern");
    const JsonValue* format = in.get("format");
    for (const char* key : {"pattern", "format"}) {
      const JsonValue* value = in.get(key);
      if (value != nullptr && !value->is_string()) return wrong(join(path, key), "expected a string");
    }
    if (pattern != nullptr && pattern->text.size() > kMaxSchemaBytes / 16)
      return wrong(join(path, "pattern"), fmt::format("more than {} bytes", kMaxSchemaBytes / 16));
    if (format != nullptr && !among(format->text, kFormats)) format = nullptr;
    if (pattern != nullptr && !fits_json_strings(pattern->text)) {
      if (!pass_over(path, "pattern", "must not ask for quotes, backslashes or control characters")) return false;
      pattern = nullptr;
    }
    if (pattern != nullptr) set(out, "pattern", *pattern);
    if (pattern != nullptr && format != nullptr && !pass_over(path, "format", "beside pattern is not supported"))
      return false;
    if (pattern == nullptr && format != nullptr) set(out, "format", *format);
    if (pattern == nullptr && format == nullptr) return counts(in, path, "minLength", "maxLength", out);
    for (const char* key : {"minLength", "maxLength"}) {
      if (in.get(key) != nullptr && !pass_over(path, key, "beside pattern or format is not supported")) return false;
    }
    return true;
  }

  // A pattern is matched against what stands between the quotes, where some characters cannot stand as they are.
  static bool fits_json_strings(std::string_view pattern) {
    constexpr std::string_view kHarmless = "dDwWsS.+*?()[]{}|/-^$";
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] == '"' || static_cast<unsigned char>(pattern[i]) < 0x20) return false;
      if (pattern[i] != '\\') continue;
      if (++i == pattern.size() || kHarmless.find(pattern[i]) == std::string_view::npos) return false;
    }
    return true;
  }

  bool number(const JsonValue& in, const std::string& path, JsonValue& out) {
    for (const std::string_view key : kOfNumbers) {
      const JsonValue* value = in.get(key);
      if (value == nullptr) continue;
      if (!value->is(Kind::kNumber)) return wrong(join(path, key), "expected a number");
      if (key == "multipleOf") {
        if (!pass_over(path, key)) return false;
      } else {
        set(out, key, *value);
      }
    }
    return true;
  }

  bool count(const JsonValue& in, const std::string& path, const char* key, std::int64_t& out) {
    const JsonValue* value = in.get(key);
    if (value == nullptr) return true;
    const char* end = value->text.data() + value->text.size();
    const auto r = std::from_chars(value->text.data(), end, out);
    const bool whole = r.ec == std::errc() && (r.ptr == end || std::string_view(r.ptr) == ".0");
    if (value->is(Kind::kNumber) && whole && out >= 0) {
      out = std::min<std::int64_t>(out, kMostCount);
      return true;
    }
    return wrong(join(path, key), "expected a whole number of at least 0");
  }
  bool counts(const JsonValue& in, const std::string& path, const char* low, const char* high, JsonValue& out) {
    for (const char* key : {low, high}) {
      std::int64_t n = 0;
      if (!count(in, path, key, n)) return false;
      if (in.get(key) == nullptr) continue;
      JsonValue value = make(Kind::kNumber);
      value.text = std::to_string(n);
      set(out, key, std::move(value));
    }
    return true;
  }

  static constexpr std::int64_t kMostCount = 1'000'000'000;
  const JsonValue& root_;
  const bool strict_;
  std::size_t schemas_ = 0;
  std::vector<std::string> ignored_;
  std::optional<SchemaFault> fault_;
};

}  // namespace

const JsonValue* resolve_ref(const JsonValue& root, const JsonValue& schema) {
  const JsonValue* at = &schema;
  for (int turns = 0; turns <= kMaxSchemaDepth; ++turns) {
    const JsonValue* ref = at->get("$ref");
    if (ref == nullptr) return at;
    if (!ref->is_string()) return nullptr;
    at = follow(root, ref->text);
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

tl::expected<Schema, SchemaFault> prepare_schema(const JsonValue& schema, bool strict) {
  std::string text;
  if (const auto written = text::append_json_text(schema, text); !written) {
    return tl::unexpected(SchemaFault{false, "", written.error().what});
  }
  if (text.size() > kMaxSchemaBytes) {
    return tl::unexpected(
        SchemaFault{false, "", fmt::format("{} bytes of schema, at most {} are taken", text.size(), kMaxSchemaBytes)});
  }
  return Preparer(schema, strict).run();
}

}  // namespace fathom::grammar
