#include "text/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

namespace fathom::text {
namespace {

using Kind = JsonReader::Kind;

// Below this many members a new name is looked up in the list, above in a table: linear for any object.
constexpr std::size_t kFewMembers = 16;

class Builder {
 public:
  Builder(std::string_view text, JsonValueLimits limits) : reader_(text, limits.max_depth), left_(limits.max_values) {}

  Result<JsonValue> build(std::string_view what) {
    JsonValue root;
    if (!value(root) || !reader_.finish()) return fail(Code::kInvalid, "{}: {}", what, reader_.error());
    return root;
  }

 private:
  // Recursion is bounded by the reader's depth limit.
  bool value(JsonValue& out) {
    if (left_-- == 0) return reader_.fail("too many values");
    out.kind = reader_.peek();
    std::string_view text;
    bool flag = false;
    switch (out.kind) {
      case Kind::kObject: return object(out);
      case Kind::kArray:
        if (!reader_.enter_array()) return false;
        while (reader_.element()) {
          if (!value(out.items.emplace_back())) return false;
        }
        return reader_.ok();
      case Kind::kString:
        if (!reader_.string(text)) return false;
        out.text = text;
        return true;
      case Kind::kNumber:
        if (!reader_.number(text)) return false;
        out.text = text;
        return true;
      case Kind::kTrue:
      case Kind::kFalse: return reader_.boolean(flag);
      case Kind::kNull: return reader_.null();
      case Kind::kNone: return reader_.fail("expected a value");
    }
    return false;
  }

  bool object(JsonValue& out) {
    std::unordered_map<std::string, std::size_t> places;  // filled once there are many members
    std::string_view key;
    if (!reader_.enter_object()) return false;
    while (reader_.member(key)) {
      std::size_t place = out.keys.size();
      if (out.keys.size() < kFewMembers) {
        place = static_cast<std::size_t>(std::find(out.keys.begin(), out.keys.end(), key) - out.keys.begin());
      } else {
        if (places.empty()) {
          for (std::size_t i = 0; i < out.keys.size(); ++i) places.emplace(out.keys[i], i);
        }
        place = places.emplace(key, out.keys.size()).first->second;
      }
      if (place == out.keys.size()) {
        out.keys.emplace_back(key);
        out.items.emplace_back();
      }
      out.items[place] = JsonValue();
      if (!value(out.items[place])) return false;
    }
    return reader_.ok();
  }

  JsonReader reader_;
  std::size_t left_;
};

Result<> append_number(const std::string& token, std::string& out) {
  if (token.find_first_of(".eE") == std::string::npos) {
    out += token == "-0" ? "0" : token;
    return {};
  }
  // strtod rounds correctly and tells too large from too small; the program never leaves the "C" locale.
  const double value = std::strtod(token.c_str(), nullptr);
  if (!std::isfinite(value)) return fail(Code::kInvalid, "the number {:.40} is too large", token);
  append_json_double(value, out);
  return {};
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  if (kind != Kind::kObject) return nullptr;
  const auto it = std::find(keys.begin(), keys.end(), key);
  return it == keys.end() ? nullptr : &items[static_cast<std::size_t>(it - keys.begin())];
}

const JsonValue* JsonValue::get(std::string_view key) const {
  const JsonValue* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<JsonValue> parse_json_value(std::string_view text, std::string_view what, JsonValueLimits limits) {
  return Builder(text, limits).build(what);
}

void append_json_double(double value, std::string& out) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.begin(), buffer.end(), value, std::chars_format::scientific).ptr;
  const std::string_view s(buffer.data(), static_cast<std::size_t>(end - buffer.data()));  // -d.ddde-XX
  const std::size_t e = s.find('e');
  const bool negative = s[0] == '-';
  int exponent = 0;
  std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), end, exponent);
  std::string digits;
  for (const char c : s.substr(negative ? 1 : 0, e - (negative ? 1 : 0))) {
    if (c != '.') digits.push_back(c);
  }
  if (negative) out.push_back('-');
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= whole) digits.resize(whole + 1, '0');
    out += digits.substr(0, whole) + "." + digits.substr(whole);
  }
}

Result<> append_json_text(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case Kind::kTrue: out += "true"; break;
    case Kind::kFalse: out += "false"; break;
    case Kind::kNumber: return append_number(value.text, out);
    case Kind::kString:
      out += '"';
      append_json_escaped(value.text, out);
      out += '"';
      break;
    case Kind::kArray:
    case Kind::kObject:
      out += value.is_array() ? '[' : '{';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        if (value.is_object()) {
          out += '"';
          append_json_escaped(value.keys[i], out);
          out += "\": ";
        }
        FATHOM_TRY(append_json_text(value.items[i], out));
      }
      out += value.is_array() ? ']' : '}';
      break;
    case Kind::kNull:
    case Kind::kNone: out += "null"; break;
  }
  return {};
}

}  // namespace fathom::text
