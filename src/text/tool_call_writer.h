// ToolCallWriter: turns the parameters of one tool call into the JSON text of its arguments, piece by piece.
// prompt-encoding.md 4.3.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/stream_parser.h"

namespace fathom::text {

class ToolCallWriter {
 public:
  // `tool` may be null: a tool nobody declared. It must outlive the writer.
  ToolCallWriter(std::string name, const ParserTool* tool) : name_(std::move(name)), tool_(tool) {}

  // Each appends to `sent` what may be sent to the client now.
  void begin_parameter(std::string_view key, std::string_view attributes, std::string& sent);
  void value(std::string_view text, std::string& sent);
  void end_parameter(std::string& sent);
  // The call is complete. False: there were no parameters and `body`, the text inside the tag, is neither blank nor a
  // JSON object; then there is no call.
  bool finish(std::string_view body, std::string& sent);

  const std::string& name() const { return name_; }
  int n_parameters() const { return n_parameters_; }
  const std::string& arguments() const { return arguments_; }  // all that was sent

 private:
  bool is_json_value(std::string_view key, std::string_view attributes) const;
  void write(std::string_view text, std::string& sent);
  bool unwraps() const;

  std::string name_;
  const ParserTool* tool_;
  int n_parameters_ = 0;
  bool json_ = false;  // the open value is buffered and checked; else it is a string, sent as it comes
  bool held_ = false;  // the whole call is held: its one parameter may be all the arguments in a wrapper
  std::string value_;  // the open value in mode json; the whole wrapper value while held
  std::string arguments_;
};

}  // namespace fathom::text
