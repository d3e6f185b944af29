// JSON from outside: parsed with bounds, never with an exception that escapes.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace fathom {

// Keeps the order of members, as prompt rendering must.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t max_bytes = std::size_t{256} << 20;
  int max_depth = 128;  // arrays and objects inside each other
};

// `what` names the source in errors (a file, "request body"). Errors: kInvalid (too large, too deep, not JSON, not
// UTF-8), with byte position. Duplicate members: the last one wins, in the first one's place.
Result<Json> parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});

}  // namespace fathom
