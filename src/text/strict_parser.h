// The published parser of DeepSeek-V4's output: exact, and failing at the first slip. prompt-encoding.md 4.1. A server
// parses with StreamParser; this one tells whether a turn is well-formed, and judges in tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/stream_parser.h"

namespace fathom::text {

struct ParsedMessage {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;
};

// `text`: everything behind the prompt, EOS included, control tokens by their spelling. Error: kInvalid, what was
// wrong.
Result<ParsedMessage> parse_strict(std::string_view text, bool thinking);

}  // namespace fathom::text
