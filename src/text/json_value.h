// JsonValue: a parsed request, with member order and number tokens kept, and the JSON text that goes into prompts.
// prompt-encoding.md 2.13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json_reader.h"

namespace fathom::text {

struct JsonValue {
  using Kind = JsonReader::Kind;

  Kind kind = Kind::kNull;
  std::string text;               // of a string its value; of a number its token as written
  std::vector<JsonValue> items;   // elements, or members' values
  std::vector<std::string> keys;  // of an object: the name of items[i]; no name twice

  bool is(Kind k) const { return kind == k; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kTrue || kind == Kind::kFalse; }
  bool is_true() const { return kind == Kind::kTrue; }

  // The member's value; null pointer where this is no object or has no such member. Linear in the members.
  const JsonValue* find(std::string_view key) const;
  // The same, but a member that is null counts as absent.
  const JsonValue* get(std::string_view key) const;
};

struct JsonValueLimits {
  int max_depth = 128;
  std::size_t max_values = std::size_t{2} << 20;  // of any kind; bounds memory to about 90 bytes each
};

// `what` names the source in errors. Errors: kInvalid, with byte position. Repeated members: the first one's place, the
// last one's value. Time and memory linear in the text.
Result<JsonValue> parse_json_value(std::string_view text, std::string_view what, JsonValueLimits limits = {});

// Appends the JSON text of `value`: Python's default style with non-ASCII kept. Errors: kInvalid, a number too large
// for a double, which has no JSON text.
Result<> append_json_text(const JsonValue& value, std::string& out);
// A finite double in Python's style, as in 1.0, 1e-05, 1e+16.
void append_json_double(double value, std::string& out);

}  // namespace fathom::text
