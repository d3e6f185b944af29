// The state machine behind StreamParser. Internal to this room. prompt-encoding.md 4.2 names the states.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/stop_matcher.h"
#include "text/stream_parser.h"
#include "text/tool_call_writer.h"
#include "text/utf8.h"

namespace fathom::text {

class StreamParser::Machine {
 public:
  explicit Machine(ParserOptions options);

  void text(std::string_view bytes);
  void control(Control c);
  void finish(End end);
  std::vector<ParserEvent> take_events();

  bool done() const { return ended_ || state_ == State::kDone; }
  bool in_reasoning() const {
    return !ended_ && (state_ == State::kReasoning || (state_ == State::kOrphanClose && back_ == State::kReasoning));
  }
  FinishReason finish_reason() const;
  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  const std::vector<ParsedCall>& calls() const { return calls_; }
  bool has_incomplete_call() const { return announced_; }

 private:
  enum class State : std::uint8_t {
    kReasoning,
    kContent,
    kOrphanClose,  // inside a closing tag that closes nothing, up to '>'
    kToolBlock,
    kBlockClose,  // a closing tag in the block
    kInvokeName,
    kInvokeSkip,  // the rest of the invoke tag
    kInvokeBody,
    kBodyTag,    // an opening tag in the body, behind its marker
    kBodyClose,  // a closing tag in the body
    kParamKey,
    kParamAttributes,
    kParamValue,
    kValueTag,    // a `<` and the marker inside a value: an opening tag, or data?
    kValueClose,  // a closing tag that ends the value
    kDone,
  };

  // Each takes at least one character from the front of `s`, or changes the state; returns the bytes taken.
  std::size_t step(std::string_view s);
  std::size_t visible(std::string_view s);
  std::size_t tool_block(std::string_view s);
  std::size_t invoke_name(std::string_view s);
  std::size_t invoke_body(std::string_view s);
  std::size_t body_tag(std::string_view s);
  std::size_t param_value(std::string_view s);
  std::size_t value_tag(std::string_view s);
  std::size_t closing_tag(std::string_view s);

  void feed(std::string_view s);
  void visible_control(Control c);
  void block_control(Control c);
  void body_control(Control c);
  void value_control(Control c);
  void data_control(Control c, std::string& into);

  void emit(ParserEvent::Kind kind, std::string_view text);
  void emit_visible(std::string_view text);
  void flush_visible();
  void release_stop();
  void open_block();
  void swallow(std::string_view text);
  void close_tag();
  void begin_call();
  void announce();
  void end_parameter();
  void finish_call();
  void end_turn();

  const ParserOptions options_;
  std::unordered_map<std::string, const ParserTool*> tools_;
  State state_ = State::kContent;
  State back_ = State::kContent;  // where an orphan closing tag, or a block that was only mentioned, came from
  Utf8Stream utf8_;
  std::vector<ParserEvent> events_;

  std::string held_;             // text at the end that may belong to markup: newlines, bracket
  std::string tail_;             // the last characters of skipped text, to find what it ends with
  std::string name_;             // a name being read: of a closing tag reduced to a-z, of an invoke, a key
  std::size_t name_length_ = 0;  // characters of an invoke's name
  std::string attributes_;
  std::string lookahead_;  // kValueTag: text behind the marker

  StopMatcher stops_;
  bool content_is_blank_ = true;  // only white space so far
  bool forced_ = false;           // the block was opened by the prompt
  bool block_seen_ = false;       // a block was opened
  bool invoke_seen_ = false;
  std::string swallowed_;  // the block's text, while it may turn out to be only mentioned

  std::optional<ToolCallWriter> call_;  // between its name and its end
  std::string body_;
  bool announced_ = false;  // tool_start was sent for call_
  std::vector<ParsedCall> calls_;

  bool ended_ = false;
  End end_ = End::kTurn;
  std::optional<std::string> matched_stop_;
};

}  // namespace fathom::text
