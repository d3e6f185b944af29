// StreamParser: what the model writes, taken apart while it arrives: reasoning, content, tool calls. prompt-encoding.md
// 4.2 to 4.5. It forgives every slip listed there and fails on none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/render.h"

namespace fathom::text {

// What the parser must know of a tool: which parameters its schema declares, and whether a value that does not say so
// itself is JSON or a string (4.3).
struct ParserTool {
  std::string name;
  std::unordered_map<std::string, bool>
      properties;  // name -> declared with a type that is not, or does not include, string

  static ParserTool from_schema(std::string name, const JsonValue& parameters);
};

struct ParserOptions {
  ParserState initial = ParserState::kContent;   // text/render.h: initial_state
  std::optional<std::vector<ParserTool>> tools;  // nothing: tools are inactive and markup is text
  std::vector<std::string> stop;                 // matched in content only; none empty
  bool include_stop = false;                     // the match is sent too
  bool one_call = false;                         // the turn ends behind the first complete call
};

struct ParserEvent {
  enum class Kind : std::uint8_t { kReasoning, kContent, kToolStart, kToolArgs };
  Kind kind = Kind::kContent;
  int index = 0;     // of the call, for kToolStart and kToolArgs; counts from 0
  std::string text;  // kToolStart: the tool's name; kToolArgs: a piece of the arguments' JSON text
  bool operator==(const ParserEvent&) const = default;
};

struct ParsedCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

enum class FinishReason : std::uint8_t { kStop, kLength, kToolCalls };
// "stop", "length", "tool_calls".
std::string_view finish_reason_name(FinishReason reason);

// The control tokens that mean something in an answer.
enum class Control : std::uint8_t { kThinkOpen, kThinkClose, kDsml, kTurnEnd };

// How generation ended: the model ended its turn, or something cut it (token limit, context end).
enum class End : std::uint8_t { kTurn, kCut };

// One answer; one thread. Memory is bounded by the longest JSON value plus what has been parsed; time is linear.
class StreamParser {
 public:
  explicit StreamParser(ParserOptions options);
  StreamParser(StreamParser&&) noexcept;
  StreamParser& operator=(StreamParser&&) noexcept;
  ~StreamParser();

  // Ordinary text, cut anywhere, even inside a character.
  void text(std::string_view bytes);
  void control(Control c);
  // No more comes. Idempotent; a turn end or a stop string seen before wins over `end`.
  void finish(End end);

  // Events since the last call; adjacent ones of a kind (and index) are one. Concatenated per kind they are the same
  // for every way to cut the input.
  std::vector<ParserEvent> take_events();

  // Nothing that follows can change the result: the turn or the tool block ended, or a stop string matched. The engine
  // should stop generating.
  bool done() const;
  bool in_reasoning() const;

  // After finish():
  FinishReason finish_reason() const;
  const std::optional<std::string>& matched_stop() const;
  const std::vector<ParsedCall>& calls() const;  // complete ones only
  // A tool_start was sent for a call that did not become complete; its index is calls().size().
  bool has_incomplete_call() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

struct TokenOptions {
  std::vector<std::int32_t> stop_ids;  // end the turn as EOS does
  bool ignore_eos = false;             // what ends a turn is sampled like any token and shows as nothing
};

// The same fed with token ids, as sampled. The format must outlive it.
class TokenParser {
 public:
  TokenParser(const ChatFormat& format, ParserOptions options, TokenOptions tokens = {});

  // Error: kInvalid, an id outside the vocabulary; nothing has changed then.
  Result<> push(std::int32_t id);

  StreamParser& parser() { return parser_; }
  // Tokens pushed while the parser was in reasoning, the closing tag included.
  int reasoning_tokens() const { return reasoning_tokens_; }

 private:
  const ChatFormat* format_;
  StreamParser parser_;
  TokenOptions options_;
  int reasoning_tokens_ = 0;
};

// Feeds `raw`, in which each spelling of a control token stands for that token. For tests and people.
void parse_raw(StreamParser& parser, std::string_view raw);

}  // namespace fathom::text
