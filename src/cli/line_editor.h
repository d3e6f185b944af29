// Lines from a person (edited, with history) or from a pipe (as they come).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace fathom::cli {

class LineEditor {
 public:
  // history: file that keeps lines from one run to the next, made where it is missing; empty: none is kept.
  explicit LineEditor(std::filesystem::path history);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  enum class Event { kLine, kInterrupted, kEnd };
  // The next line without its end. A backslash before the end joins it with the next line. kInterrupted: Ctrl-C, the
  // line is dropped. kEnd: Ctrl-D on an empty line, or the end of the pipe. `prompt` is shown on a terminal only.
  Event read(const std::string& prompt, std::string& line);

 private:
  struct Terminal;
  Event read_one(const std::string& prompt, std::string& line);
  std::unique_ptr<Terminal> terminal_;
};

// $XDG_STATE_HOME/fathom/history, or ~/.local/state/fathom/history; nothing where neither is set.
std::optional<std::filesystem::path> default_history_file();

}  // namespace fathom::cli
