// JSON text: the reader says yes exactly where the tree can be built, and what is written is read back the same.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/json_reader.h"
#include "text/json_value.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fathom::text;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool valid = is_json(text);
  const auto value = parse_json_value(text, "fuzz");
  FATHOM_CHECK(valid == value.has_value(), "reader and tree agree about what JSON is");
  if (!value) return 0;
  std::string once;
  if (!append_json_text(*value, once)) return 0;  // a number too large for a double
  const auto again = parse_json_value(once, "fuzz");
  std::string twice;
  FATHOM_CHECK(again && append_json_text(*again, twice), "what was written is JSON");
  FATHOM_CHECK(once == twice, "writing what was written changes nothing");
  return 0;
}
