#include "base/json.h"

namespace fathom {
namespace {

// The deepest nesting of arrays and objects, without parsing: brackets outside strings. Runs before the parser, so that
// no hostile depth reaches it.
bool deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    return fail(Code::kInvalid, "{}: {} bytes of JSON, more than the limit of {}", what, text.size(), limits.max_bytes);
  }
  if (deeper_than(text, limits.max_depth)) {
    return fail(Code::kInvalid, "{}: JSON nested deeper than {} levels", what, limits.max_depth);
  }
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    return fail(Code::kInvalid, "{}: not valid JSON at byte {}: {}", what, e.byte, e.what());
  } catch (const nlohmann::json::exception& e) {
    return fail(Code::kInvalid, "{}: not valid JSON: {}", what, e.what());
  }
}

}  // namespace fathom
