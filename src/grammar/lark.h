// From Rules to the source of one grammar, in the library's Lark dialect, and the parts it names. Internal to this
// room.
#pragma once

#include <string>
#include <vector>

#include "grammar/rules.h"

namespace fathom::grammar {

// What "@pI" in the source stands for.
struct Part {
  Content::Kind kind = Content::Kind::kAny;
  std::string source;
};

struct LarkSource {
  std::string text;
  std::vector<Part> parts;
};

// Errors: kInvalid, something in `rules` that cannot be said; starts with the tool's name where it is a tool's.
Result<LarkSource> write_lark(const Rules& rules, std::int32_t marker_id);

}  // namespace fathom::grammar
