// An answer as a person sees it while it comes: thinking dimmed, tool calls named, what it took at the end.
#pragma once

#include <string>
#include <vector>

#include "cli/generate.h"
#include "text/stream_parser.h"

namespace fathom::cli {

struct ViewOptions {
  bool styled = false;    // standard output is a terminal
  bool thinking = false;  // show it; always where styled
  bool silent = false;    // show nothing at all: the answer is wanted as JSON
};

// Writes to standard output as events come, flushed each time; keeps what it has seen. One answer; one thread.
class AnswerView {
 public:
  explicit AnswerView(ViewOptions options) : options_(options) {}

  void show(const std::vector<text::ParserEvent>& events);
  // Ends the line.
  void finish();
  bool failed() const { return failed_; }  // standard output could not be written

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }

 private:
  void write(const std::string& text);
  void style(text::ParserEvent::Kind kind);

  ViewOptions options_;
  std::string content_;
  std::string reasoning_;
  bool dimmed_ = false;
  bool at_line_start_ = true;
  bool failed_ = false;
};

// "13 prompt + 57 generated tokens, first token 12 ms, 812 tokens/s, peak memory 64 MiB", on standard error.
void print_turn(const Turn& turn, bool styled);

// The most memory this process has held so far, in bytes.
std::uint64_t peak_memory();

}  // namespace fathom::cli
