// Rules: what an answer must look like, as the doors (server, command line) say it and the compiler takes it. Text
// only; tokens come in with compiler.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json_value.h"

namespace fathom::grammar {

inline constexpr std::size_t kMaxRegexBytes = std::size_t{16} << 10U;
inline constexpr std::size_t kMaxGrammarBytes = std::size_t{64} << 10U;
inline constexpr std::size_t kMaxChoices = 1000;
inline constexpr std::size_t kMaxTools = 512;

// The answer's text. Empty text: anything.
struct Content {
  enum class Kind : std::uint8_t {
    kAny,
    kJsonSchema,  // the JSON text of a schema that prepare_schema made
    kRegex,       // the whole text matches
    kGrammar,     // in the library's EBNF; the first rule is "root"
    kChoice,      // one of the strings of a JSON list
  };
  Kind kind = Kind::kAny;
  std::string source = {};
  bool operator==(const Content&) const = default;
};

// A tool and what its arguments are.
struct Tool {
  std::string name;
  bool strict = false;              // arguments follow `parameters`; else they are well-formed and no more
  text::JsonValue parameters = {};  // of prepare_schema, for an object; only where strict
};

struct Rules {
  Content content = {};
  std::vector<Tool> tools = {};
  // Where the tokens that are constrained begin.
  enum class Calls : std::uint8_t {
    kNone,          // the content; tools are of no interest
    kBehindOpener,  // calls, behind a block's opener and its newline
    kBehindMarker,  // calls, behind the marker of a block's opener: prompt-encoding.md 2.8
    kOrContent,     // the content, or a block of calls
  };
  Calls calls = Calls::kNone;
  bool one_call = false;  // the block ends behind the first
};

// A name for everything that matters in `rules`: equal for equal ones only.
std::string key_of(const Rules& rules);
// The rules that have this name. Error: kInvalid, where it is none.
Result<Rules> rules_of(std::string_view key);

// The rules of a content as it stands in a request. Errors: kInvalid, a sentence without the field's name.
Result<Content> regex_content(std::string_view regex);
Result<Content> grammar_content(std::string_view grammar);
Result<Content> choice_content(const text::JsonValue& list);

}  // namespace fathom::grammar
